import itertools

from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.tar import ranges
from feedline.datasets.tar.ranges import Range, coalesced


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90_000), st.integers(0, 30_000)), max_size=30),
    st.booleans(),
)
def test_everyone_gets_their_bytes_and_few_reads_are_made(asked: list[tuple[int, int, int]], is_local: bool) -> None:
    shards = [bytes((place * 31 + shard) % 251 for place in range(251)) * 500 for shard in range(3)]
    wanted = [Range(shard, start, start + size, {}, "x") for shard, start, size in asked]
    spans = coalesced(wanted, is_local=lambda shard: is_local)
    for span in spans:
        span.give(shards[span.shard][span.start : span.stop])
    for one in wanted:
        assert one.sample["x"] == shards[one.shard][one.start : one.stop]
    assert sum(len(span.ranges) for span in spans) == len(wanted)
    gap = ranges._LOCAL_GAP if is_local else ranges._REMOTE_GAP
    for span, other in itertools.pairwise(spans):
        assert (span.shard, span.stop) < (other.shard, other.start)
        assert span.shard != other.shard or other.start - span.stop > gap


def test_reads_do_not_grow_without_bound() -> None:
    wanted = [Range(0, start, start + (1 << 20), {}, "x") for start in range(0, 1 << 26, 1 << 20)]
    assert all(span.stop - span.start <= 1 << 24 for span in coalesced(wanted, is_local=lambda shard: True))
    large = coalesced([Range(0, 0, 1 << 30, {}, "x")], is_local=lambda shard: True)
    assert [(span.start, span.stop) for span in large] == [(0, 1 << 30)]
