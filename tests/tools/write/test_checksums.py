"""`pack` writes checksums in every format, and readers verify them; files without checksums can still be read."""

from __future__ import annotations

import mmap
import pickle
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

import feedline
from feedline.datasets import ArrayDataset, HDF5Dataset, LMDBDataset, ParquetDataset, TarDataset
from feedline.datasets.framework.checksums import Checked
from feedline.errors import CorruptSource

COUNT = 40
FIELDS = {"x": "x.npy", "text": "text.txt", "label": "cls"}


def samples() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.standard_normal(30).astype(np.float32), "text": f"the text of sample {index}", "label": index}
        for index in range(COUNT)
    ]


def packed(folder: Path, name: str) -> Path:
    options = {"format": "npy"} if name == "npy" else {"compression": "none"} if name == "a.parquet" else {}
    path: Path = feedline.pack(samples(), folder / name, workers=0, **options).path  # type: ignore[arg-type]
    return path


OPENED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "lmdb": ("a.lmdb", LMDBDataset),
    "hdf5": ("a.h5", HDF5Dataset),
    "tar": ("a.tar", lambda path: TarDataset(path, FIELDS, cache=False)),
    "stream": ("a.tar", lambda path: TarDataset(path, FIELDS, cache=False).stream()),
    "parquet": ("a.parquet", ParquetDataset),
    "npy": ("npy", ArrayDataset),
}


def all_of(dataset: Any) -> list[Any]:
    try:
        return list(dataset) if not hasattr(dataset, "__getitem__") else [dataset[place] for place in range(COUNT)]
    finally:
        dataset.close()


def flip(path: Path, value: bytes, place: int = -1) -> None:
    """Change a bit of a value in a file, or in one of the files of a folder."""
    for file in [path] if path.is_file() else path.glob("*.npy"):
        data = bytearray(file.read_bytes())
        at = data.find(value)
        is_there = at >= 0
        while at >= 0:  # LMDB also leaves unused pages behind
            data[at + len(value) + place] ^= 4
            at = data.find(value, at + 1)
        if is_there:
            file.write_bytes(data)
            return
    raise AssertionError("the value is not in the file")


@pytest.mark.parametrize(
    ("format_", "field"),
    [
        (one, field) for one in OPENED for field in ("x", "text") if (one, field) != ("npy", "text")
    ],  # four bytes a character
)
def test_one_changed_bit_is_an_error_that_names_the_sample(tmp_path: Path, format_: str, field: str) -> None:
    name, opened = OPENED[format_]
    path = packed(tmp_path, name)
    flip(path, samples()[37][field].encode() if field == "text" else samples()[37][field].tobytes())
    named = {
        "lmdb": r"Sample 37 \(key b'000000000037'\) of .*a\.lmdb is damaged",
        "hdf5": rf"'{field}' in .*a\.h5, in row(s 0 to 39| 37), is damaged",
        "tar": rf"a\.tar: field '{field}\.\w+' of sample '000000037' is damaged",
        "stream": rf"a\.tar: the file '000000037\.{field}\.\w+' at byte \d+ is damaged",
        "parquet": r"a\.parquet",
        "npy": r"npy/x\.npy, in rows 0 to 39, is damaged",
    }
    with pytest.raises(CorruptSource, match=named[format_]):
        all_of(opened(path))


@pytest.mark.parametrize("decode", ["bytes", bytes, {"dtype": "uint8", "shape": (-1,)}])
def test_raw_values_of_listed_keys_are_verified_and_come_without_their_checksum(
    tmp_path: Path,
    decode: Any,
) -> None:
    """With `keys=` and `decode=`, the reader does not look at the metadata of the database."""
    path = packed(tmp_path, "a.lmdb")
    keys = [b"%012d" % place for place in (36, 37)]
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as database, database.begin() as transaction:
        stored = transaction.get(keys[0]) or b""
    if isinstance(decode, dict):
        decode = {**decode, "shape": (len(stored) - 4,)}
    options = {"keys": keys, "decode": decode}
    dataset = LMDBDataset(path, **options)
    assert bytes(dataset[0]) == stored[:-4]
    dataset.close()
    flip(path, samples()[37]["x"].tobytes())
    dataset = LMDBDataset(path, **options)
    with pytest.raises(CorruptSource, match=r"Sample 1 \(key b'000000000037'\) of .* is damaged"):
        dataset[1]
    dataset.close()


@pytest.mark.parametrize("format_", [name for name in OPENED if name != "stream"])
def test_loaders_do_not_deliver_damaged_samples(tmp_path: Path, format_: str) -> None:
    name, opened = OPENED[format_]
    path = packed(tmp_path, name)
    flip(path, samples()[37]["x"].tobytes())
    dataset = opened(path)
    with pytest.raises(CorruptSource, match=r"damaged|checksum|CRC"):
        list(feedline.Loader(dataset, 8))
    dataset.close()


def test_rows_are_verified_for_indices_of_all_kinds(tmp_path: Path) -> None:
    """Every kind of index that NumPy accepts."""
    rows = np.random.default_rng(0).integers(0, 256, (6, 70_000), np.uint8)
    path = feedline.pack({"x": rows}, tmp_path / "npy", format="npy", workers=0).path
    whole = (path / "x.npy").read_bytes()
    mask = np.arange(6) == 3
    tables = mask[:, None] & (np.arange(70_000) < 5)
    single: list[Any] = [3, -3, np.int64(3), np.array(3), (3, 5), (np.int64(3), slice(2, 4)), np.uint8(3)]
    several: list[Any] = [slice(2, 4), (slice(2, 4), 0), [3, 4], np.array([[3], [4]]), ([3, 4], 7), mask, tables]
    others: list[Any] = [..., None, True, (), (..., 2), slice(None, None, -1)]
    for index in single + several + others:
        (path / "x.npy").write_bytes(whole)
        assert np.array_equal(ArrayDataset(path)[index]["x"], rows[index])
        flip(path, rows[3].tobytes())
        with pytest.raises(CorruptSource, match=r"in rows 3 to 4, is damaged"):
            ArrayDataset(path)[index]
    (path / "x.npy").write_bytes(whole)
    dataset = ArrayDataset(path)
    assert np.array_equal(dataset[0:2, 0]["x"], rows[0:2, 0])
    assert dataset[[]]["x"].shape == (0, 70_000)
    for wrong in (6, [0, 6], "x", 0.5, np.ones(5, bool)):
        with pytest.raises(IndexError):
            dataset[wrong]
    dataset.close()


@pytest.mark.parametrize("format_", ["hdf5", "npy"])
def test_a_block_is_verified_once(tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, opened = OPENED[format_]
    dataset = opened(packed(tmp_path, name))
    compared: list[int] = []
    start = Checked.__init__

    def counting(self: Any, sums: Any, read: Callable[[int], Any], *others: Any) -> None:
        def counted(block: int) -> Any:
            compared.append(block)
            return read(block)

        start(self, sums, counted, *others)

    monkeypatch.setattr(Checked, "__init__", counting)
    for _ in range(3):
        dataset[7]
        dataset[8]
    assert len(compared) == (2 if format_ == "hdf5" else 3)  # x and label; x, label and text
    other = pickle.loads(pickle.dumps(dataset))
    other[7]
    assert len(compared) == (4 if format_ == "hdf5" else 6)
    other.close()
    dataset.close()


@pytest.mark.parametrize("format_", ["lmdb", "tar", "npy"])
def test_workers_of_the_next_epoch_do_not_verify_again(
    tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers forked for each epoch share what earlier workers have verified."""
    name, opened = OPENED[format_]
    dataset = opened(packed(tmp_path, name))
    module = {
        "lmdb": "feedline.datasets.formats.lmdb.dataset.sum_of",
        "tar": "feedline.datasets.formats.tar.dataset.sum_of",
        "npy": "feedline.datasets.formats.array_file.RowCheck._read",
    }[format_]
    compared = mmap.mmap(-1, 1)
    own = pkgutil.resolve_name(module)

    def counted(*arguments: Any) -> Any:
        compared[0] += 1
        return own(*arguments)

    monkeypatch.setattr(module, counted)
    loader = feedline.DataLoader(dataset, 8, num_workers=1, multiprocessing_context="fork")
    list(loader)
    once = compared[0]
    assert once >= 3
    list(loader)
    assert compared[0] == once
    loader.close()
    dataset.close()


# -- metadata of the whole store ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", OPENED)
def test_changed_metadata_is_detected(tmp_path: Path, format_: str) -> None:
    name, opened = OPENED[format_]
    path = packed(tmp_path, name)
    file = path / "feedline.json" if path.is_dir() else path
    data = file.read_bytes()
    changed = data.replace(b'"skipped": 0', b'"skipped": 1')
    assert changed != data
    file.write_bytes(changed)
    with pytest.raises(CorruptSource, match=f"{name}.*(damaged|cannot be)"):
        all_of(opened(path))


def test_missing_checksums_and_damaged_headers_are_detected(tmp_path: Path) -> None:
    path = packed(tmp_path, "a.h5")
    with h5py.File(path, "r+") as file:
        del file["x"].attrs["feedline_crc32"]
    with pytest.raises(CorruptSource, match=r"The checksums of 'x' in .*a\.h5 are missing or damaged"):
        HDF5Dataset(path)[0]
    path = packed(tmp_path, "npy")
    (path / "x.npy").write_bytes((path / "x.npy").read_bytes().replace(b"'<f4'", b"'<i4'"))
    with pytest.raises(CorruptSource, match=r"The header of .*x\.npy is damaged"):
        ArrayDataset(path)
