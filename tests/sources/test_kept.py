"""What sources keep about a file is used again, and made again if it is damaged or the file has changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import pytest

from feedline.datasets import CSVDataset, JSONLines, LMDBDataset, TarDataset, TFRecordDataset
from feedline.datasets.formats.csv import parsing
from feedline.datasets.formats.lines import index as line_index
from feedline.datasets.formats.tar import index as tar_index
from feedline.datasets.formats.tfrecord import framing
from feedline.errors import DataWarning
from feedline.memory.sharing.packed import Packed
from tests.datasets.formats.tar.writing import numbered, tar_bytes
from tests.datasets.formats.tfrecord.records import file_of

NUMBERS = list(range(30))


def write_database(path: Path) -> None:
    with lmdb.open(str(path), subdir=False, map_size=1 << 20) as database, database.begin(write=True) as transaction:
        for number in NUMBERS:
            transaction.put(b"%03d" % number, b"%d" % number)


class Case(NamedTuple):
    """A kind of file, what opens it with a folder for what is kept, what makes that, and how it ends."""

    write: Callable[[Path], object]
    # Any, twice: a source, and a module or class.
    opened: Callable[[Path, Path], Any]
    maker: tuple[Any, str]
    ending: str


CASES = {
    "lines": Case(
        lambda path: path.write_text("".join(f"{number}\n" for number in NUMBERS)),
        lambda path, cache: JSONLines(path, cache=cache),
        (line_index, "scan"),
        ".line-index",
    ),
    "tar": Case(
        lambda path: path.write_bytes(tar_bytes(numbered(len(NUMBERS)))),
        lambda path, cache: TarDataset(path, "cls", cache=cache),
        (tar_index, "scan"),
        ".tar-index",
    ),
    "tfrecord": Case(
        lambda path: path.write_bytes(file_of(b"%d" % number for number in NUMBERS)),
        lambda path, cache: TFRecordDataset(path, parse=int, cache=cache),
        (framing, "scan"),
        ".tfrecord",
    ),
    "csv": Case(
        lambda path: path.write_text("x\n" + "".join(f"{number}\n" for number in NUMBERS)),
        lambda path, cache: CSVDataset(path, "x", cache=cache),
        (parsing.Parser, "batches"),
        ".csv",
    ),
    "lmdb": Case(
        write_database,
        lambda path, cache: LMDBDataset(path, decode=int, cache=cache),
        (Packed, "__init__"),
        ".keys",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_kept_is_used_and_made_again(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_KEPT", 10)
    path, cache, calls = tmp_path / "data", tmp_path / "cache", list[str]()
    case.write(path)
    make = getattr(*case.maker)

    def noted(*given: Any, **options: Any) -> Any:
        calls.append("made")
        return make(*given, **options)

    monkeypatch.setattr(*case.maker, noted)

    def check(*, is_made: bool) -> Path:
        calls.clear()
        with contextlib.closing(case.opened(path, cache)) as dataset:
            assert [int(number) for number in dataset] == NUMBERS
        assert bool(calls) == is_made
        (kept,) = cache.glob(f"*{case.ending}")
        return kept

    check(is_made=True)
    kept = check(is_made=False)
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(DataWarning, match="made again"):
        check(is_made=True)
    check(is_made=False)
    os.utime(path, ns=(1, 1))
    check(is_made=True)
