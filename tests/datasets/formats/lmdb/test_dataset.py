"""LMDB databases as datasets: the contract, every way to decode, and everything that can be wrong with a database."""

from __future__ import annotations

import functools
import gc
import io
import itertools
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedline
from feedline.datasets import LMDBDataset, TarDataset
from feedline.datasets.formats.lmdb import environment
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.memory.sharing import records
from feedline.testing.asserting import apart, assert_same
from tests.datasets.contract import SourceContract

lmdb = pytest.importorskip("lmdb")

COUNT = 30
SHAPE = (2, 5, 3)
ARRAYS = [np.random.default_rng(number).random(SHAPE, np.float32) for number in range(COUNT)]
SAMPLES: list[dict[str, Any]] = [
    {
        "image": array,
        "label": number,
        "name": f"näme {number}",
        "data": bytes([number]),
        "weight": number / 2,
        "is_odd": bool(number % 2),
    }
    for number, array in enumerate(ARRAYS)
]
RAW = {"dtype": "float32", "shape": SHAPE}


def write(path: Path, items: Iterable[tuple[bytes, bytes]], *, subdir: bool = True) -> Path:
    with lmdb.open(str(path), subdir=subdir, map_size=1 << 24) as database, database.begin(write=True) as transaction:
        for key, value in items:
            transaction.put(key, value)
    return path


def write_raw(path: Path, *, subdir: bool = True) -> Path:
    return write(path, ((b"k%05d" % number, array.tobytes()) for number, array in enumerate(ARRAYS)), subdir=subdir)


def write_records(path: Path, samples: list[Any] | None = None, *, subdir: bool = False) -> Path:
    samples = SAMPLES if samples is None else samples
    fields = [{"name": name, "kind": "array"} for name in samples[0]]
    meta = {"feedline": 1, "count": len(samples), "encoding": "record", "fields": fields}
    items = [(b"%012d" % number, records.encode(sample)) for number, sample in enumerate(samples)]
    return write(path, [*items, (b"__feedline__", json.dumps(meta).encode())], subdir=subdir)


class TestRawArrays(SourceContract):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = write_raw(tmp_path / "raw.mdb", subdir=False)

    def make_source(self, **options: Any) -> LMDBDataset:
        return LMDBDataset(self.path, decode=RAW, **options)

    def samples(self) -> list[Any]:
        return ARRAYS

    def files(self) -> list[Path]:
        return [self.path]

    def rewrite(self) -> list[Any]:
        arrays = [array + 1 for array in ARRAYS]
        write(self.path, ((b"k%05d" % number, array.tobytes()) for number, array in enumerate(arrays)), subdir=False)
        return arrays


def test_feedline_records_are_decoded_by_default(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.lmdb")
    dataset = LMDBDataset(path)
    dataset[3]["image"][:] = 0  # it is a copy
    assert_same(dataset[3], SAMPLES[3])
    dataset.close()
    assert LMDBDataset(path, decode="bytes")[0] == records.encode(SAMPLES[0])
    gc.collect()
    assert not environment._open


def test_a_database_without_feedline_metadata_gives_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [(b"b", b"2"), (b"a", b"1"), (b"c", b"")])
    dataset = LMDBDataset(path)
    assert list(dataset) == [b"1", b"2", b""]
    assert dataset.read_columns(np.array([1, 0])) == [b"2", b"1"]
    dataset.close()
    with pytest.raises(BadOption, match="not written by feedline"):
        len(LMDBDataset(path, fields="image"))
    gc.collect()
    assert not environment._open


def test_keys_may_be_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [(b"b", b"2"), (b"a", b"1"), (b"c", b"3")])
    for keys in (
        [b"c", b"a", b"a"],
        ["c", "a", "a"],
        np.array([b"c", b"a", b"a"]),
        (key for key in (b"c", b"a", b"a")),
    ):
        dataset = LMDBDataset(path, keys=keys)
        assert list(dataset) == [b"3", b"1", b"1"]
        dataset.close()
    dataset = LMDBDataset(path, keys=["a", "x"])
    with pytest.raises(SourceError, match="no key b'x' for sample 1"):
        dataset.__getitems__([0, 1])
    dataset.close()


def test_datasets_of_one_database_share_it_in_a_folder_or_a_file(tmp_path: Path) -> None:
    for subdir in (True, False):
        path, link = write_raw(tmp_path / f"{subdir}", subdir=subdir), tmp_path / f"link to {subdir}"
        link.symlink_to(path)
        one, other = LMDBDataset(path, decode=RAW), LMDBDataset(link, decode=RAW, keys=["k00003"])
        assert not environment._open  # before it is needed
        assert_same(one[3], other[0])
        assert len(environment._open) == 1
        apart(functools.partial(_read_both, one, other))
        one.close()
        assert_same(other[0], ARRAYS[3])
        del other  # which closes it
        gc.collect()
        assert not environment._open


def _read_both(one: LMDBDataset, other: LMDBDataset) -> None:
    assert_same(one[0], ARRAYS[0])
    assert_same(other[0], ARRAYS[3])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"keys": []}, "keys="),
        ({"keys": "abc"}, "keys='abc'"),
        ({"keys": lambda index: b"a"}, "keys="),
        ({"keys": [1, 2]}, "keys="),
        ({"decode": "jpeg"}, "decode='jpeg'"),
        ({"decode": {"dtype": "float32", "form": 3}}, "form"),
        ({"decode": {"dtype": "nonsense"}}, "nonsense"),
        ({"decode": {"dtype": object, "shape": (2,)}}, "decode="),
        ({"decode": {"dtype": "f4", "shape": (2, 0)}}, "decode="),
        ({"decode": "bytes", "fields": "x"}, "fields='x'"),
    ],
)
def test_bad_options_are_rejected(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadOption, match=named):
        LMDBDataset(write(tmp_path / "x", [(b"a", b"1")]), **options)


def test_the_error_names_a_value_of_the_wrong_size(tmp_path: Path) -> None:
    dataset = LMDBDataset(
        write(tmp_path / "x", [(b"a", bytes(8)), (b"b", bytes(7))]), decode={"dtype": "f4", "shape": 2}
    )
    assert dataset[0].tolist() == [0, 0]
    with pytest.raises(CorruptSource, match=r"key b'b' .* 7 bytes, but float32\[2\] has 8"):
        dataset[1]
    with pytest.raises(CorruptSource, match="key b'b'"):
        list(feedline.Loader(dataset, 2))
    dataset.close()
    dataset = LMDBDataset(write(tmp_path / "y", [(b"a", bytes(4)), (b"b", b"\1\0\0\0")]), decode={"dtype": "<i4"})
    assert_same(dataset[1], np.int32(1))
    assert_same(dataset.read_columns(np.array([1, 0])), np.array([1, 0], np.int32))
    dataset.close()


def test_the_error_names_a_damaged_record(tmp_path: Path) -> None:
    meta = {"feedline": 1, "count": 1, "encoding": "record", "fields": [{"name": "x"}]}
    good = records.encode({"x": np.arange(9)})
    for number, value in enumerate((b"garbage", good[:-8], records.encode({"y": 1}), records.encode([1]))):
        path = write(tmp_path / f"{number}", [(b"%012d" % 0, value), (b"__feedline__", json.dumps(meta).encode())])
        dataset = LMDBDataset(path)
        with pytest.raises(CorruptSource, match="key b'000000000000'"):
            dataset[0]
        dataset.close()


def test_fewer_samples_than_were_packed_are_detected(tmp_path: Path) -> None:
    meta = {"feedline": 1, "count": 3, "encoding": "record", "fields": [{"name": "x"}]}
    items = [(b"%012d" % number, records.encode({"x": number})) for number in range(4)]
    metadata = (b"__feedline__", json.dumps(meta).encode())
    with pytest.raises(CorruptSource, match=r"few has 2 samples, but 3 were packed"):
        len(LMDBDataset(write(tmp_path / "few", [*items[:2], metadata])))
    more = LMDBDataset(write(tmp_path / "more", [*items, metadata]))  # one was added later
    assert len(more) == 4
    more.close()


@pytest.mark.parametrize(
    "meta", [b"{", b"[]", b'{"feedline": 1}', b'{"feedline": 9, "encoding": "record", "count": 1, "fields": []}']
)
def test_metadata_that_is_damaged_or_of_a_later_version(tmp_path: Path, meta: bytes) -> None:
    dataset = LMDBDataset(write(tmp_path / "x", [(b"__feedline__", meta)]))
    with pytest.raises(CorruptSource, match=r"damaged|later version"):
        len(dataset)
    dataset.close()


def test_missing_databases(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or folder"):
        LMDBDataset(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match=r"data\.mdb"):
        len(LMDBDataset(tmp_path / "folder"))


def write_elsewhere(path: Path, key: bytes, more_bytes: int = 0) -> None:
    """Write to a database from another process, since one process cannot open it twice."""
    code = f"""
import lmdb
with lmdb.open({str(path)!r}, map_size=1 << 24) as database, database.begin(write=True) as transaction:
    transaction.put({key!r}, b"new" + bytes({more_bytes}))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_a_database_that_is_written_to_while_open(tmp_path: Path) -> None:
    dataset = LMDBDataset(write(tmp_path / "x", [(b"a", b"1"), (b"c", b"2")]))
    assert list(dataset) == [b"1", b"2"]
    write_elsewhere(tmp_path / "x", b"b")
    with pytest.raises(SourceChanged, match="written to while it was open"):
        dataset[1]
    dataset.close()
    with pytest.raises(SourceChanged, match="changed since this dataset first read it"):
        dataset[1]
    with pytest.raises(SourceChanged, match="changed since this dataset first read it"):
        pickle.loads(pickle.dumps(dataset))[1]
    dataset.close()
    other = LMDBDataset(tmp_path / "x")
    assert list(other) == [b"1", b"new", b"2"]
    other.close()
    gc.collect()
    assert not environment._open


def test_a_database_that_is_written_to_while_its_keys_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB would continue through pages that were reused, and crash the process."""
    path = write(tmp_path / "x", ((b"%05d" % number, b"1") for number in range(2000)))
    check, looks = environment.Environment.check_unchanged, itertools.count()

    def write_first(self: environment.Environment) -> None:
        if next(looks) == 2:  # after the check of the metadata, and one check among the keys
            write_elsewhere(path, b"b")
        check(self)

    monkeypatch.setattr(environment.Environment, "check_unchanged", write_first)
    with pytest.raises(SourceChanged, match="written to while it was open"):
        len(LMDBDataset(path))
    monkeypatch.undo()
    assert next(looks) == 3  # not all keys were read


def test_missing_keys_are_detected_as_damage(tmp_path: Path) -> None:
    """A leaf page whose pointer table ends early looks intact, but has fewer keys."""
    path = write(tmp_path / "a.mdb", ((b"key%05d" % number, b"value") for number in range(50)), subdir=False)
    data = bytearray(path.read_bytes())
    leaf = next(place for place in range(2 * 4096, len(data), 4096) if data[place + 10 : place + 12] == b"\2\0")
    (lower,) = struct.unpack_from("<H", data, leaf + 12)
    struct.pack_into("<H", data, leaf + 12, lower - 4)
    path.write_bytes(data)
    with pytest.raises(CorruptSource, match=r"a\.mdb is damaged: 48 keys were found, but it should have 50"):
        len(LMDBDataset(path, cache=False))


def test_a_database_that_other_code_in_this_process_has_open(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x")
    with lmdb.open(str(path), readonly=True), pytest.raises(SourceError, match="already open in this process"):
        len(LMDBDataset(path))
    dataset = LMDBDataset(path)
    assert len(dataset) == COUNT
    dataset.close()


def picture(number: int, kind: str = "PNG") -> bytes:
    image = Image.fromarray(np.full((4, 3, 3), number, np.uint8))
    image.save(file := io.BytesIO(), kind)
    return file.getvalue()


@pytest.mark.parametrize("way", ["rgb8", "torchrgb", "pil"])
def test_packed_images_are_decoded_as_from_tar(tmp_path: Path, way: str) -> None:
    samples = [{"image": picture(number), "label": number, "raw": b"no picture"} for number in range(6)]
    feedline.pack(samples, tmp_path / "a.lmdb", workers=0)
    feedline.pack(samples, tmp_path / "a.tar", workers=0)
    fields = {"image": "png", "label": "cls", "raw": "raw.bin"}
    dataset = LMDBDataset(tmp_path / "a.lmdb", decode=way)
    table = TarDataset(tmp_path / "a.tar", fields=fields, decode=way, cache=False)
    for index, (found, expected) in enumerate(zip(dataset, table, strict=True)):
        assert np.array_equal(np.asarray(found["image"]), np.asarray(expected["image"]))
        assert type(found["image"]) is type(expected["image"])
        assert (found["label"], found["raw"]) == (index, b"no picture")
    assert "'image': picture" in repr(dataset)
    table.close()
    dataset.close()
    plain = LMDBDataset(write(tmp_path / "x", [(b"a", picture(1)), (b"b", b"no picture")]), decode=way)
    assert np.asarray(plain[0]).size == 4 * 3 * 3
    with pytest.raises(CorruptSource, match="b'b'"):
        plain[1]
    plain.close()
