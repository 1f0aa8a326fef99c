"""Which batches the training loop has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.order.progress import Progress


@given(st.permutations(range(8)), st.integers(0, 8))
def test_what_was_delivered_in_any_order_is_a_prefix_and_some_out_of_turn(order: list[int], count: int) -> None:
    progress = Progress()
    for ordinal in order[:count]:
        progress.note(ordinal)
    delivered = set(order[:count])
    assert set(range(progress.delivered)) | progress.early == delivered
    assert progress.delivered not in delivered, "the prefix is as long as can be"
    assert not progress.early & set(range(progress.delivered))


def test_an_epoch_that_is_gone_through_leaves_nothing_out_of_turn() -> None:
    progress = Progress()
    for ordinal in (3, 1, 2, 0):
        progress.note(ordinal)
    assert (progress.delivered, progress.early) == (4, set())


def test_a_batch_that_is_noted_twice_counts_once() -> None:
    """An interrupt came after the first time, and it was made again."""
    progress = Progress()
    for ordinal in (0, 1, 1, 0, 2):
        progress.note(ordinal)
    assert (progress.delivered, progress.early) == (3, set())


def test_what_was_early_before_a_resumption_counts() -> None:
    progress = Progress(early={1, 3})
    progress.note(0)
    assert (progress.delivered, progress.early) == (2, {3})
    progress.note(2)
    assert (progress.delivered, progress.early) == (4, set())


def test_iterations_share_nothing() -> None:
    first, second = Progress(), Progress()
    first.note(1)
    first.notes.clear()
    assert second.early == set()
    assert second.streams is not first.streams
