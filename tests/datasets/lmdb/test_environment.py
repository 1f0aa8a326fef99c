"""Pages of LMDB databases, as bytes: nothing here is mapped."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from numpy.typing import NDArray

from feedline.datasets import LMDBDataset
from feedline.datasets.lmdb import environment as pages_module
from feedline.datasets.lmdb.environment import check_pages
from feedline.errors import CorruptSource
from tests.sources.test_damage import REFUSED, RIGHT, in_child

PAGE = 4096
BRANCH, LEAF = 1, 2


def write(path: Path, count: int, size: int) -> Path:
    with lmdb.open(str(path), subdir=False, map_size=1 << 26) as database, database.begin(write=True) as transaction:
        for number in range(count):
            transaction.put(b"key%05d" % number, bytes([number % 256]) * size)
    return path


def pages(data: bytes, kind: int) -> list[int]:
    """Return the pages of a kind, where they begin. Those that no tree leads to may be among them."""
    heads = [(place, *struct.unpack_from("<QHHHH", data, place)) for place in range(2 * PAGE, len(data), PAGE)]
    return [place for place, own, _, flags, lower, _ in heads if own == place // PAGE and flags == kind and lower > 16]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.mdb", 600, 100)


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 10), (600, 100), (40, 9000), (3000, 1)])
def test_whole_databases(tmp_path: Path, count: int, size: int) -> None:
    check_pages(str(write(tmp_path / "a.mdb", count, size)))


def test_databases_with_several_values_of_a_key_and_databases_inside(tmp_path: Path) -> None:
    file = str(tmp_path / "a.mdb")
    with lmdb.open(file, subdir=False, map_size=1 << 26, max_dbs=2) as environment:
        inside = environment.open_db(b"inside", dupsort=True, dupfixed=True)
        with environment.begin(write=True) as transaction:
            for number in range(900):
                transaction.put(b"%d" % (number % 3), b"%05d" % number, db=inside)
                transaction.put(b"key %d" % number, b"x")
    check_pages(file)


def test_what_is_no_database_is_left_to_lmdb(tmp_path: Path) -> None:
    for content in (b"", b"nonsense" * 2000, bytes(3 * PAGE)):
        (tmp_path / "a.mdb").write_bytes(content)
        check_pages(str(tmp_path / "a.mdb"))


@pytest.mark.parametrize("kind", [BRANCH, LEAF])
@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param(0, b"\xee", id="another number"),
        pytest.param(10, b"\x04", id="another kind"),
        pytest.param(12, b"\xff\xff", id="a table of pointers beyond the page"),
        pytest.param(14, b"\x00\x00", id="no end of the table"),
        pytest.param(16, b"\xfe\xff", id="a pointer beyond the page"),
        pytest.param(16, b"\x04\x00", id="a pointer into the table"),
        pytest.param(18, b"\xff\x0f", id="a pointer to an odd place"),
    ],
)
def test_pages_that_are_damaged(path: Path, kind: int, place: int, value: bytes) -> None:
    data = path.read_bytes()
    begin = pages(data, kind)[-1]
    path.write_bytes(data[: begin + place] + value + data[begin + place + len(value) :])
    with pytest.raises(CorruptSource, match=rf"a\.mdb is damaged: page {begin // PAGE} .*Write or copy it again"):
        check_pages(str(path))


@pytest.mark.parametrize(("kind", "place"), [(BRANCH, 2), (BRANCH, 4), (BRANCH, 7), (LEAF, 2), (LEAF, 7)])
def test_nodes_that_are_damaged(path: Path, kind: int, place: int) -> None:
    """Halves of sizes, of numbers of pages."""
    data = path.read_bytes()
    begin = pages(data, kind)[-1]
    node = begin + struct.unpack_from("<H", data, begin + 18)[0] + place
    path.write_bytes(data[:node] + b"\x77" + data[node + 1 :])
    with pytest.raises(CorruptSource, match=f"page {begin // PAGE} "):
        check_pages(str(path))


def test_pages_that_a_writer_has_used_again_are_not_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as database:
        before = database.info()["last_txnid"]

    def look(*given: Any) -> int:
        with lmdb.open(str(path), subdir=False, map_size=1 << 26) as database, database.begin(write=True) as writing:
            writing.put(b"more", b"")
        return 7  # which does not belong to the tree any more

    monkeypatch.setattr("feedline.datasets.lmdb.environment._first_damaged", look)
    assert check_pages(str(path)) == before


def test_pages_are_read_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 small values: one by one, the check took longer than all else that is done to open a database."""
    path = write(tmp_path / "a.mdb", 10_000, 300)
    looks: list[int] = []
    look = pages_module._look

    def counted(found: NDArray[np.uint8], *given: Any, **more: Any) -> Any:
        looks.append(len(found))
        return look(found, *given, **more)

    monkeypatch.setattr(pages_module, "_look", counted)
    check_pages(str(path))
    assert sum(looks) > 700
    assert len(looks) < 20


def test_large_values_that_lie_beyond_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mdb", 40, 9000)
    data = path.read_bytes()
    begin = pages(data, LEAF)[-1]
    node = begin + struct.unpack_from("<H", data, begin + 16)[0]
    far = node + 8 + len("key00000")
    for place, value in ((far + 2, b"\x01"), (far + 7, b"\xff"), (node + 2, b"\xff")):
        path.write_bytes(data[:place] + value + data[place + 1 :])
        with pytest.raises(CorruptSource, match=f"page {begin // PAGE} "):
            check_pages(str(path))


def test_only_so_many_pages_are_looked_at(path: Path) -> None:
    data = path.read_bytes()
    begin = pages(data, LEAF)[-1]
    path.write_bytes(data[:begin] + bytes(PAGE) + data[begin + PAGE :])
    with pytest.raises(CorruptSource):
        check_pages(str(path))
    check_pages(str(path), 2)


def test_a_dataset_looks_before_lmdb_does(path: Path) -> None:
    """In a process of its own: LMDB ends it."""
    data = path.read_bytes()
    begin = pages(data, LEAF)[-1]
    path.write_bytes(data[:begin] + bytes(PAGE) + data[begin + PAGE :])

    def read_all() -> int:
        try:
            list(LMDBDataset(path))
        except CorruptSource:
            return REFUSED
        return RIGHT

    assert in_child(read_all) == REFUSED


def test_keys_that_are_missing(path: Path) -> None:
    """A table of pointers that ends early is a sound one, with fewer keys."""
    data = path.read_bytes()
    begin = pages(data, LEAF)[-1]
    (lower,) = struct.unpack_from("<H", data, begin + 12)
    path.write_bytes(data[: begin + 12] + struct.pack("<H", lower - 4) + data[begin + 14 :])
    with pytest.raises(CorruptSource, match=r"a\.mdb is damaged: 598 keys are found, and there should be 600"):
        len(LMDBDataset(path, cache=False))
