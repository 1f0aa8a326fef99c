"""The order of shards. How streams use it is tested in test_shard_stream.py and test_sticky.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.shard_order import shuffled
from feedline.datasets.framework.shares import shares_of


@given(count=st.integers(1, 60), ranks=st.integers(1, 6), epoch=st.integers(0, 5), workers=st.integers(1, 3))
def test_a_rank_has_the_same_shards_in_every_epoch(count: int, ranks: int, epoch: int, workers: int) -> None:
    first, later = (shuffled(count, 7, one, ranks) for one in (0, epoch))
    assert sorted(later) == list(range(count))
    for rank in range(ranks):
        parts = [shares_of(count, (worker * ranks + rank, workers * ranks)) for worker in range(workers)]
        own = {later[share.turn] for shares in parts for share in shares if share.every == 1}
        assert ranks == 1 or own <= set(first[rank::ranks])
