"""Which batches the training loop has received."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.order.plan import Progress


@given(st.permutations(range(8)), st.integers(0, 8))
def test_progress_is_a_prefix_and_a_set_of_early_batches(order: list[int], count: int) -> None:
    progress = Progress()
    for ordinal in order[:count]:
        progress.note(ordinal)
    delivered = set(order[:count])
    assert set(range(progress.delivered)) | progress.early == delivered
    assert progress.delivered not in delivered, "the prefix is as long as possible"
    assert not progress.early & set(range(progress.delivered))


def test_a_batch_delivered_twice_counts_once() -> None:
    """It was made again after an interrupt."""
    progress = Progress()
    for ordinal in (0, 1, 1, 0, 2):
        progress.note(ordinal)
    assert (progress.delivered, progress.early) == (3, set())


def test_early_batches_before_a_resumption_count() -> None:
    progress = Progress(early={1, 3})
    progress.note(0)
    assert (progress.delivered, progress.early) == (2, {3})
    progress.note(2)
    assert (progress.delivered, progress.early) == (4, set())
