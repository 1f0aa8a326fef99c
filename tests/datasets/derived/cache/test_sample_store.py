"""Samples stored as bytes survive killed writers and bad disks, or the damage is detected."""

import os
import random
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.derived.cache.sample_store import (
    FILE,
    Encoded,
    Head,
    SampleStore,
    decode,
    encode,
    read_store,
    write_store,
)
from feedline.datasets.derived.cache.shared_bytes import SharedFile, SharedMemory
from feedline.errors import CorruptSource
from feedline.memory.sharing.records import NotARecord
from feedline.testing.asserting import apart
from tests.sampling import examples

HEAD = Head(bytes(32), 50)


def memory_store(size: int = 1 << 20, head: Head = HEAD) -> SampleStore:
    store = SampleStore(SharedMemory(size), limit=size)
    assert store.open(head)
    return store


def file_store(path: Path, head: Head = HEAD, limit: int = 1 << 20) -> SampleStore:
    store = SampleStore(SharedFile(path), limit=limit)
    store.open(head)
    return store


def data_of(found: Encoded | None) -> bytes:
    assert isinstance(found, Encoded)
    return bytes(found.data)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 49), st.binary(max_size=300)), max_size=40), st.integers(0, 5000))
def test_a_store_never_goes_beyond_its_limit(puts: list[tuple[int, bytes]], room: int) -> None:
    size = SampleStore.least_bytes(HEAD.count) + room
    store = memory_store(size)
    kept: dict[int, bytes] = {}
    for index, data in puts:
        if store.put(index, Encoded(data)):
            kept.setdefault(index, data)
    assert store.used_bytes <= size + 7
    for index in range(HEAD.count):
        if index in kept:
            assert data_of(store.get(index)) == kept[index]
        else:
            assert store.get(index) is None


def test_damage_is_detected_wherever_it_is(tmp_path: Path) -> None:
    head = Head(b"f" * 32, 3)
    path = tmp_path / "store"
    store = file_store(path, head)
    store.put(0, Encoded(bytes(range(100))))
    store.put(1, Encoded(b"other"))
    whole = path.read_bytes()
    start = whole.index(bytes(range(100)))
    entry = 4096
    for place in [*range(entry, entry + 24), *range(start, start + 100)]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        store.damaged.clear()
        assert store.get(0) is None, place
        assert 0 in store.damaged
        assert data_of(store.get(1)) == b"other"
    path.write_bytes(whole[: entry + 64] + whole[entry + 32 : entry + 64] + whole[entry + 96 :])
    assert store.get(2) is None, "an entry of another index"
    assert 2 in store.damaged
    for size, is_damaged in ((start + 99, True), (4100, True), (10, False), (0, False)):
        os.truncate(path, size)
        store.damaged.clear()
        assert store.get(0) is None
        assert (0 in store.damaged) == is_damaged
    store.close()


OTHER = Head(b"o" * 32, HEAD.count)


@pytest.mark.parametrize("way", ["closed", "forked"])
def test_a_store_that_replaced_the_file_is_neither_read_nor_written(way: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = file_store(path)
    store.put(3, Encoded(b"three"))
    other = file_store(tmp_path / "other", OTHER)
    other.put(3, Encoded(b"another three"))
    os.replace(tmp_path / "other", path)
    content = path.read_bytes()
    assert data_of(store.get(3)) == b"three"  # it has the old file open

    def check() -> None:
        assert store.get(3) is None
        assert not store.put(4, Encoded(b"four"))
        assert not store.is_current()

    if way == "forked":
        apart(check)
    store.close()
    check()
    assert path.read_bytes() == content
    assert data_of(other.get(3)) == b"another three"
    store.close()
    other.close()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_an_emptied_store_is_empty_for_others_until_they_reopen_it(where: str, tmp_path: Path) -> None:
    store = memory_store() if where == "memory" else file_store(tmp_path / "a")
    other = SampleStore(store._shared, limit=store.limit) if where == "memory" else file_store(tmp_path / "a")
    assert other.open(HEAD)
    assert store.put(3, Encoded(b"old"))
    assert data_of(store.get(3)) == data_of(other.get(3)) == b"old"
    assert not other.open(OTHER)
    other.empty(OTHER)
    assert store.get(3) is None
    assert other.put(3, Encoded(b"new"))
    assert store.get(3) is None
    assert store.damaged == set()
    assert not store.put(4, Encoded(b"of the old dataset"))
    assert other.get(4) is None
    assert not store.open(HEAD)
    assert store.open(OTHER)
    assert data_of(store.get(3)) == b"new"
    store.close()
    other.close()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_writers_killed_at_any_moment_do_not_break_the_store(where: str, tmp_path: Path) -> None:
    """Readers see the sample, nothing, or detected damage; others can continue."""
    head = Head(bytes(32), 4000)
    size = 8 << 20
    if where == "memory":
        store = memory_store(size, head)
    else:
        store = file_store(tmp_path / "store", head, size)
    chance = random.Random(5)
    for round_number in range(12):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, b"x")
            while True:
                index = chance.randrange(head.count)
                store.get(index)
                store.put(index, Encoded(b"%d-" % index * (1 + index % 300)))
        os.read(reader, 1)
        for _ in range(chance.randrange(50)):  # work of varying length in the meantime
            index = chance.randrange(head.count)
            found = store.get(index)
            if isinstance(found, Encoded):
                assert bytes(found.data) == b"%d-" % index * (1 + index % 300)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
        assert store.put(round_number, Encoded(b"%d-" % round_number * (1 + round_number % 300)))
        assert isinstance(store.get(round_number), Encoded)
    for index in range(head.count):
        found = store.get(index)
        if isinstance(found, Encoded):
            assert bytes(found.data) == b"%d-" % index * (1 + index % 300)
    store.close()


def test_pickles_are_neither_written_nor_read_by_default() -> None:
    with pytest.raises(NotARecord, match="run code"):
        encode({1, 2}, pickles=False)
    encoded = encode({1, 2}, pickles=True)
    assert encoded.is_pickle
    assert decode(encoded, pickles=True) == {1, 2}
    with pytest.raises(CorruptSource, match="pass pickle=True"):
        decode(encoded, pickles=False)


@pytest.mark.parametrize("before", ["nothing", "another dataset", "a program that was killed at once"])
def test_one_of_several_processes_creates_the_store(before: str, tmp_path: Path) -> None:
    if before == "another dataset":
        write_store(tmp_path, OTHER, 1 << 20)[0].close()
    elif before != "nothing":
        (tmp_path / FILE).touch()
    children = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            store, dropped = write_store(tmp_path, HEAD, 1 << 20)
            store.put(number, Encoded(b"%d" % number))
            os._exit(int(dropped))
        children.append(pid)
    drops = sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)
    assert drops == (before == "another dataset")
    store = read_store(tmp_path)
    assert store.open(HEAD)
    assert [data_of(store.get(number)) for number in range(8)] == [b"%d" % number for number in range(8)]
    store.close()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_killed_process_leaves_no_lock_behind(where: str, tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(bytes(1 << 16))
    shared = SharedMemory(1 << 16) if where == "memory" else SharedFile(tmp_path / "shared")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with shared.locked():
            os.write(writer, b"x")
            signal.pause()
    os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with shared.locked():  # would wait forever
        shared.write(0, b"free")
    os.close(reader)
    os.close(writer)
    shared.close()
