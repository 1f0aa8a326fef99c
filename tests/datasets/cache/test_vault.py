"""Samples as bytes that survive killed writers and bad disks, or are known not to have."""

import os
import pickle
import random
import signal
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.cache.ground import FileGround, MemoryGround
from feedline.datasets.cache.vault import Found, Head, Kind, Missing, Vault

HEAD = Head(bytes(32), 50)


def memory_vault(size: int = 1 << 20, head: Head = HEAD) -> Vault:
    vault = Vault(MemoryGround(size), limit=size, trusts=True)
    assert vault.open(head)
    return vault


def file_vault(path: Path, head: Head = HEAD, limit: int = 1 << 20) -> Vault:
    if not path.exists():
        path.write_bytes(bytes(Vault.least_bytes(head.count)))
    vault = Vault(FileGround(path), limit=limit)
    vault.open(head)
    return vault


def data_of(found: Found | Missing) -> bytes:
    assert isinstance(found, Found)
    return bytes(found.data)


def test_what_was_put_is_got() -> None:
    vault = memory_vault()
    assert vault.get(3) is Missing.ABSENT
    assert vault.put(3, Kind.RECORD, b"three")
    assert vault.put(4, Kind.PICKLE, b"")
    assert data_of(vault.get(3)) == b"three"
    found = vault.get(4)
    assert isinstance(found, Found)
    assert (found.kind, bytes(found.data)) == (Kind.PICKLE, b"")
    assert vault.stored == 2


def test_what_is_there_stays() -> None:
    vault = memory_vault()
    vault.put(3, Kind.RECORD, b"first")
    assert vault.put(3, Kind.RECORD, b"second")
    assert data_of(vault.get(3)) == b"first"
    assert vault.put(3, Kind.RECORD, b"third", again=True)
    assert data_of(vault.get(3)) == b"third"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 49), st.binary(max_size=300)), max_size=40), st.integers(0, 5000))
def test_a_vault_never_goes_beyond_its_limit(puts: list[tuple[int, bytes]], room: int) -> None:
    size = Vault.least_bytes(HEAD.count) + room
    vault = memory_vault(size)
    kept: dict[int, bytes] = {}
    for index, data in puts:
        if vault.put(index, Kind.RECORD, data):
            kept.setdefault(index, data)
    assert vault.used_bytes <= size + 7
    for index in range(HEAD.count):
        if index in kept:
            assert data_of(vault.get(index)) == kept[index]
        else:
            assert vault.get(index) is Missing.ABSENT


def test_every_single_damaged_byte_is_noticed(tmp_path: Path) -> None:
    head = Head(b"f" * 32, 2)
    path = tmp_path / "vault"
    vault = file_vault(path, head)
    vault.put(0, Kind.RECORD, bytes(range(100)))
    vault.put(1, Kind.RECORD, b"other")
    whole = path.read_bytes()
    start = whole.index(bytes(range(100)))
    entry = 4096
    for place in [*range(entry, entry + 24), *range(start, start + 100)]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        assert vault.get(0) is Missing.DAMAGED, place
        assert data_of(vault.get(1)) == b"other"
    vault.close()


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "vault"
    vault = file_vault(path)
    vault.put(0, Kind.RECORD, bytes(5000))
    for size in (path.stat().st_size - 1, 4100, 4096, 10, 0):
        os.truncate(path, size)
        assert vault.get(0) is Missing.DAMAGED
    vault.close()


def test_an_entry_of_another_index_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "vault"
    vault = file_vault(path)
    vault.put(7, Kind.RECORD, b"seven")
    data = bytearray(path.read_bytes())
    data[4096 + 8 * 32 : 4096 + 9 * 32] = data[4096 + 7 * 32 : 4096 + 8 * 32]
    path.write_bytes(data)
    assert vault.get(8) is Missing.DAMAGED
    vault.close()


def test_a_damaged_head_is_no_head(tmp_path: Path) -> None:
    path = tmp_path / "vault"
    vault = file_vault(path)
    assert vault.head() == HEAD
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    assert vault.head() is None
    vault.close()


def test_another_fingerprint_or_count_is_another_vault() -> None:
    vault = memory_vault()
    assert vault.open(HEAD)
    assert not vault.open(Head(b"x" * 32, 50))
    assert not vault.open(Head(bytes(32), 51))


OTHER = Head(b"o" * 32, HEAD.count)


def test_a_sample_of_another_dataset_is_noticed(tmp_path: Path) -> None:
    """Also if the head is right: a writer may have taken this vault for its own."""
    path = tmp_path / "vault"
    vault = file_vault(path)
    vault.put(3, Kind.RECORD, b"three")
    vault.close()
    file_vault(tmp_path / "other", OTHER).close()
    with open(path, "r+b") as file:
        file.write((tmp_path / "other").read_bytes()[:64])
    other = file_vault(path, OTHER)
    assert other.head() == OTHER
    assert other.get(3) is Missing.DAMAGED
    other.close()


@pytest.mark.parametrize("way", ["closed", "pickled", "forked"])
def test_another_vault_behind_the_name_is_neither_read_nor_written(way: str, tmp_path: Path) -> None:
    path = tmp_path / "vault"
    vault = file_vault(path)
    vault.put(3, Kind.RECORD, b"three")
    other = file_vault(tmp_path / "other", OTHER)
    other.put(3, Kind.RECORD, b"another three")
    os.replace(tmp_path / "other", path)
    content = path.read_bytes()
    assert data_of(vault.get(3)) == b"three"  # which has the old file open

    def finds_nothing(one: Vault) -> bool:
        return one.get(3) is Missing.ABSENT and not one.put(4, Kind.RECORD, b"four") and not one.is_same()

    if way == "forked":
        pid = os.fork()
        if pid == 0:
            os._exit(0 if finds_nothing(vault) else 1)
        assert os.waitpid(pid, 0)[1] == 0
    else:
        found = pickle.loads(pickle.dumps(vault)) if way == "pickled" else vault
        vault.close()
        assert finds_nothing(found)
        found.close()
    assert path.read_bytes() == content
    assert data_of(other.get(3)) == b"another three"
    vault.close()
    other.close()


def test_the_same_vault_behind_the_name_is_used_again(tmp_path: Path) -> None:
    vault = file_vault(tmp_path / "vault")
    vault.put(3, Kind.RECORD, b"three")
    vault.close()
    found = pickle.loads(pickle.dumps(vault))
    for one in (vault, found):
        assert data_of(one.get(3)) == b"three"
        assert one.put(4, Kind.RECORD, b"four")
        one.close()


def test_an_emptied_vault_is_empty_for_those_who_had_it_checked() -> None:
    vault = memory_vault()
    vault.put(0, Kind.RECORD, b"old")
    assert data_of(vault.get(0)) == b"old"
    other = Vault(vault._ground, limit=vault.limit, trusts=True)
    other.open(HEAD)
    new = Head(b"n" * 32, 50)
    other.empty(new)
    assert vault.get(0) is Missing.ABSENT
    other.put(0, Kind.RECORD, b"new")
    assert vault.get(0) is Missing.ABSENT
    assert not vault.put(1, Kind.RECORD, b"of the old dataset")
    assert other.get(1) is Missing.ABSENT
    assert not vault.open(HEAD)
    assert vault.open(new)
    assert data_of(vault.get(0)) == b"new"


@pytest.mark.parametrize("where", ["memory", "file"])
def test_writers_that_are_killed_at_any_moment_spoil_nothing(where: str, tmp_path: Path) -> None:
    """Readers see what was put, or nothing, or that it is damaged; and others can go on."""
    head = Head(bytes(32), 4000)
    size = 8 << 20
    if where == "memory":
        vault = memory_vault(size, head)
    else:
        vault = file_vault(tmp_path / "vault", head, size)
    chance = random.Random(5)
    for round_number in range(12):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, b"x")
            while True:
                index = chance.randrange(head.count)
                vault.put(index, Kind.RECORD, b"%d-" % index * (1 + index % 300), again=vault.get(index) is _DAMAGED)
        os.read(reader, 1)
        for _ in range(chance.randrange(50)):  # something to do meanwhile, of a length that varies
            index = chance.randrange(head.count)
            found = vault.get(index)
            if isinstance(found, Found):
                assert bytes(found.data) == b"%d-" % index * (1 + index % 300)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
        assert vault.put(round_number, Kind.RECORD, b"%d-" % round_number * (1 + round_number % 300), again=True)
        assert isinstance(vault.get(round_number), Found)
    for index in range(head.count):
        found = vault.get(index)
        if isinstance(found, Found):
            assert bytes(found.data) == b"%d-" % index * (1 + index % 300)
    vault.close()


_DAMAGED = Missing.DAMAGED


def test_a_vault_that_is_opened_again_is_the_one_behind_the_name(tmp_path: Path) -> None:
    other = Head(b"o" * 32, 50)
    vault = file_vault(tmp_path / "a")
    vault.put(3, Kind.RECORD, b"old")
    replacement = file_vault(tmp_path / "b", other)
    os.replace(tmp_path / "b", tmp_path / "a")
    assert data_of(vault.get(3)) == b"old", "the file that is open"
    vault.reopen(HEAD)
    assert vault.get(3) is Missing.ABSENT
    assert not vault.put(3, Kind.RECORD, b"old")
    vault.reopen(other)
    assert vault.get(3) is Missing.ABSENT
    assert vault.put(3, Kind.RECORD, b"new")
    assert data_of(replacement.get(3)) == data_of(vault.get(3)) == b"new"
    vault.close()
    replacement.close()


def test_a_vault_has_no_place_for_samples_that_came_later() -> None:
    vault = memory_vault()
    vault.put(49, Kind.RECORD, b"last")
    assert not vault.put(50, Kind.RECORD, b"later")
    assert not vault.put(500, Kind.RECORD, b"later")
    assert vault.get(50) is Missing.ABSENT
    assert vault.get(500) is Missing.ABSENT
    assert data_of(vault.get(49)) == b"last"


def test_sizes_of_a_damaged_file_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    vault = file_vault(path)
    assert vault.put(0, Kind.RECORD, b"zero")
    vault.close()
    data = bytearray(path.read_bytes())
    data[4096 + 8 : 4096 + 16] = (1 << 40).to_bytes(8, "little")  # the size in the first entry
    data[128:136] = (1 << 50).to_bytes(8, "little")  # the end of all samples
    path.write_bytes(data)
    assert Vault(FileGround(path), limit=0).open(HEAD)
    vault = file_vault(path)
    tracemalloc.start()
    assert vault.get(0) is Missing.DAMAGED
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    vault.close()


def test_a_head_that_declares_more_entries_than_fit_is_no_head(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    file_vault(path, Head(bytes(32), 1_000_000)).close()
    os.truncate(path, 1 << 16)
    assert Vault(FileGround(path), limit=0).head() is None
