"""When each shard is needed next, and that a cache which knows this fetches as little as possible."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.store import stored_bytes
from feedline.datasets.storage import cache_pieces, disk_cache
from feedline.datasets.storage.cache_pieces import victims_of
from feedline.datasets.storage.cached_blob import CachedBlob
from feedline.datasets.storage.disk_cache import DiskCache
from feedline.datasets.storage.foresight import PartForesight, Parts, Readers, ShardForesight, name_of
from tests.datasets.storage.test_disk_cache import Far, opened

PIECE = 100


def orders(count: int, seed: int = 0) -> list[list[int]]:
    dice = random.Random(seed)
    return [dice.sample(range(count), count) for _ in range(12)]


@given(count=st.integers(1, 30), parts=st.integers(1, 5), seed=st.integers(0, 5), turn=st.integers(0, 29))
def test_a_shard_is_needed_in_this_epoch_until_it_has_been_read(count: int, parts: int, seed: int, turn: int) -> None:
    order = orders(count, seed)
    foresight = ShardForesight(list(map(str, range(count))), order.__getitem__, 3, Readers(0, parts))
    foresight.turn = turn % count
    for place, time in enumerate(foresight.times().tolist()):
        this, following = (order[epoch].index(place) for epoch in (3, 4))
        is_divided = this >= count - count % parts
        if this > foresight.turn or is_divided:
            assert time == 3 + this / count
        elif this % parts == 0 or this <= foresight.turn - parts:
            assert time == 4 + following / count
        assert foresight.after(place) == (3 + this / count if is_divided else 4 + following / count)


def test_shards_that_another_machine_reads_next_are_not_needed_here() -> None:
    """With four ranks on two machines, a shard is needed in the next epoch in which this machine reads it."""
    count = 400
    order = orders(count)
    readers = Readers(own=1, count=8, ranks=4, ranks_here=2)
    foresight = ShardForesight(list(map(str, range(count))), order.__getitem__, 0, readers)
    foresight.turn = count
    for place, time in enumerate(foresight.times().tolist()):
        epochs = (epoch for epoch in range(1, 9) if order[epoch].index(place) % 8 % 4 < 2)
        expected = next((epoch + order[epoch].index(place) / count for epoch in epochs), math.inf)
        assert time == expected or time < 1  # or another part is still reading it
    assert len({int(time) for time in foresight.times()} - {0}) > 2


def bound(count: int, capacity: int, order: list[list[int]]) -> int:
    """Return what an optimal cache fetches if every shard is one piece, by looking ahead at every step."""
    sequence = [shard for epoch in order for shard in epoch]
    held, fetched = set[int](), 0
    for at, shard in enumerate(sequence):
        if shard in held:
            continue
        fetched += 1
        following = sequence[at + 1 :]
        candidates = {*held, shard}
        if len(candidates) > capacity:
            candidates.remove(max(candidates, key=lambda one: following.index(one) if one in following else 10**9))
        held = candidates
    return fetched


@pytest.mark.parametrize("share", [0.1, 0.3, 0.8])
def test_fetches_as_much_as_an_optimal_cache(share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", PIECE)
    count, epochs = 60, 4
    order, capacity = orders(count, 2), int(count * share)
    cache = DiskCache(tmp_path / "c", capacity * stored_bytes(PIECE))
    blobs = []
    for number in range(count):
        blob = Far(bytes([number]) * PIECE)
        blob.address = f"s3://bucket/{number}.tar"
        blobs.append(blob)
    for epoch in range(epochs):
        foresight = ShardForesight([name_of(blob.address) for blob in blobs], order.__getitem__, epoch)
        for turn, shard in enumerate(order[epoch]):
            foresight.turn = turn
            assert CachedBlob(blobs[shard], cache, foresight).read(0, PIECE) == bytes([shard]) * PIECE
    fetched = sum(blob.reads for blob in blobs)
    least = bound(count, capacity, order[:epochs])
    assert least <= fetched <= 1.03 * least, "the last epoch keeps what a fifth epoch would need"
    stats = cache.stats()
    assert stats.fetched == fetched * PIECE
    assert stats.served == (count * epochs - fetched) * PIECE
    assert stats.held <= cache.max_bytes
    assert stats.held + stats.dropped == fetched * stored_bytes(PIECE)


def test_pieces_of_another_dataset_stay_while_they_are_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", PIECE)
    cache, other, own = DiskCache(tmp_path / "c", 4 * stored_bytes(PIECE)), Far(b"o" * 3 * PIECE), Far(b"x" * 4 * PIECE)
    own.address = "s3://bucket/own.tar"
    opened(other, cache).read(0, 3 * PIECE)
    foresight = ShardForesight([name_of(own.address)], lambda epoch: [0], 0)
    CachedBlob(own, cache, foresight).read(0, 4 * PIECE)
    assert other.reads == 3
    opened(other, cache).read(0, 3 * PIECE)
    assert other.reads == 3, "they were read recently"
    monkeypatch.setattr(cache_pieces, "_UNUSED_S", -1.0)
    CachedBlob(own, cache, foresight).read(0, 4 * PIECE)
    opened(other, cache).read(0, 3 * PIECE)
    assert other.reads > 3, "they had not been used for a long time"


@given(
    times=st.lists(st.floats(0, 4) | st.just(-math.inf) | st.just(math.inf), max_size=12),
    new=st.floats(0, 4) | st.just(math.inf),
    excess=st.integers(-5, 60),
    data=st.data(),
)
def test_pieces_needed_last_are_evicted_first(times: list[float], new: float, excess: int, data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 9)) for _ in times]
    found, fits = victims_of(np.array(times, float), np.array(sizes, np.int64), new, excess)
    gone = found.tolist()
    assert fits or not gone
    assert all(times[place] > new for place in gone)
    kept = [times[place] for place in range(len(times)) if place not in gone]
    assert not gone or max((time for time in kept), default=-math.inf) <= min(times[place] for place in gone)
    if fits:
        assert excess <= 0 or sum(sizes[place] for place in gone) >= excess
        assert not gone or sum(sizes[place] for place in gone[:-1]) < excess, "no more than necessary"
    else:
        assert sum(size for size, time in zip(sizes, times, strict=True) if time > new) < excess


def test_a_piece_is_needed_with_the_shard_that_covers_most_of_it() -> None:
    """Shards of 1000 bytes after a header of 100, in pieces of 1000; then ten shards in one piece."""
    starts = np.arange(3) * 1000 + 100
    blobs = {
        "a": Parts(0, starts, starts + 1000, 3100),
        "b": Parts(3, np.arange(10) * 100, np.arange(1, 11) * 100, 1000),
    }
    order = [2, 0, 1, *range(12, 2, -1)]
    foresight = PartForesight(13, blobs, lambda epoch: order, 0, piece_bytes=1000)
    foresight.turn = -1
    turns = np.round(foresight.times() * 13).astype(int).tolist()
    assert turns == [1, 2, 0, 0, 3], "the 100 bytes at its edge count only if no other shard needs it"
