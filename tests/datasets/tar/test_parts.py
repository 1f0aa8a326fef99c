from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.tar.parts import Part, stints


@given(st.integers(1, 60), st.integers(1, 40), st.none() | st.integers(0, 2**64 - 1), st.integers(0, 30))
def test_every_sample_of_every_shard_belongs_to_one_part(
    shard_count: int, part_count: int, key: int | None, size: int
) -> None:
    found: Counter[tuple[int, int]] = Counter()
    for number in range(part_count):
        own = stints(shard_count, Part(number, part_count), key)
        assert own, "nobody is idle"
        for stint in own:
            found.update((stint.shard, sample) for sample in range(size) if sample % stint.every == stint.place)
    assert found == Counter((shard, sample) for shard in range(shard_count) for sample in range(size))


@given(st.integers(1, 60), st.integers(1, 20))
def test_shards_are_shared_only_where_they_do_not_go_round(shard_count: int, part_count: int) -> None:
    readers: Counter[int] = Counter()
    for number in range(part_count):
        own = stints(shard_count, Part(number, part_count), 3)
        assert len({stint.shard for stint in own}) == len(own)
        readers.update(stint.shard for stint in own)
    left = shard_count % part_count
    assert sum(count > 1 for count in readers.values()) <= left
    assert sum(readers.values()) == shard_count - left + (part_count if left else 0)


def test_shards_are_shuffled_before_they_are_shared_out() -> None:
    """Which shards a part gets differs between epochs, not only their order."""
    own = [frozenset(stint.shard for stint in stints(100, Part(0, 10), key)) for key in range(150)]
    assert len(set(own)) == 150
    assert set().union(*own) == set(range(100))


def test_without_a_key_shards_keep_their_order() -> None:
    assert [stint.shard for stint in stints(7, Part(), None)] == list(range(7))


def test_every_order_of_shards_is_as_likely() -> None:
    found = Counter(tuple(stint.shard for stint in stints(4, Part(), int(key))) for key in np.arange(4_800))
    assert len(found) == 24
    assert all(130 < count < 280 for count in found.values())
