"""How much memory recent batches needed."""

from __future__ import annotations

from feedline.memory.slot_table import Usage


def deliver(usage: Usage, *sizes: int) -> None:
    for size in sizes:
        usage.note(size)
        usage.end()


def test_the_largest_of_recent_batches_is_expected_and_forgotten_after_two_spans() -> None:
    usage = Usage(4)
    deliver(usage, 100, 5000, *[100] * 14)
    assert usage.expected_bytes == 5000
    deliver(usage, *[100] * 15)
    assert usage.expected_bytes == 5000, "the previous span counts too"
    deliver(usage, 100, 200)
    assert usage.expected_bytes == 200


def test_batches_that_ran_ahead_count_for_a_while() -> None:
    usage = Usage(4)
    usage.begin(20)
    deliver(usage, *[10] * 16)
    assert usage.spare_bytes(0) == 220
    deliver(usage, *[10] * 16)
    assert usage.spare_bytes(0) == 60
