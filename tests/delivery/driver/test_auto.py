"""Which engine a loader starts with, given a probe of its dataset."""

from __future__ import annotations

import pytest

from feedline.delivery.driver.probe import Probe


@pytest.mark.parametrize(
    ("what", "cpu_share", "threads", "gain", "do"),
    [
        # Measured on 16 cores: 8 threads made 52 batches a second where one made 9, 16 processes 89.
        ("Pillow on 16 cores", 0.99, 8, 5.7, False),
        ("Pillow on 2 cores", 0.99, 2, 1.7, False),  # measured: 89 % of what 2 processes made
        ("Python on 16 cores", 1.0, 8, 1.0, False),
        ("Python on 2 cores", 1.0, 2, 1.0, False),
        ("sleeping", 0.01, 8, 7.9, True),
        ("sleeping and Python", 0.25, 8, 4.0, False),
        ("leaves the GIL", 1.0, 8, 7.6, True),
        ("leaves the GIL on 2 cores", 1.0, 2, 1.95, True),
        ("threads were not tried", 1.0, 0, 0.0, False),
        ("no thread made a batch", 1.0, 8, 0.0, False),
    ],
)
def test_threads_are_chosen_where_they_scale(what: str, cpu_share: float, threads: int, gain: float, do: bool) -> None:
    assert Probe(0.1, cpu_share, threads, gain).suits_threads is do, what
