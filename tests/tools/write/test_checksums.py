"""`pack` writes checksums in every format, and readers verify them; files without checksums can still be read."""

from __future__ import annotations

import mmap
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
from feedline.errors import CorruptSource

COUNT = 40
FIELDS = {"x": "x.npy", "text": "text.txt", "label": "cls"}
SAMPLES: list[dict[str, Any]] = [
    {"x": np.random.default_rng(index).random(30), "text": f"the text of sample {index}", "label": index}
    for index in range(COUNT)
]
VALUE = SAMPLES[37]["x"].tobytes()


def packed(folder: Path, name: str) -> Path:
    options = {"format": "npy"} if name == "npy" else {"compression": "none"} if name == "a.parquet" else {}
    path: Path = feedline.pack(SAMPLES, folder / name, workers=0, **options).path  # type: ignore[arg-type]
    return path


OPENED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "lmdb": ("a.lmdb", LMDBDataset),
    "hdf5": ("a.h5", HDF5Dataset),
    "tar": ("a.tar", lambda path: TarDataset(path, FIELDS, cache=False)),
    "stream": ("a.tar", lambda path: TarDataset(path, FIELDS, cache=False).stream()),
    "parquet": ("a.parquet", ParquetDataset),
    "npy": ("npy", ArrayDataset),
}
NAMED = {
    "lmdb": r"Sample 37 \(key b'000000000037'\) of .*a\.lmdb is damaged",
    "hdf5": r"'(x|text)' in .*a\.h5, in row(s \d+ to \d+| 37), is damaged",
    "tar": r"a\.tar: field '(x|text)\.\w+' of sample '000000037' is damaged",
    "stream": r"a\.tar: the file '000000037\.(x|text)\.\w+' at byte \d+ is damaged",
    "parquet": r"a\.parquet",
    "npy": r"npy/x\.npy, in rows \d+ to \d+, is damaged",
}


def all_of(dataset: Any) -> list[Any]:
    try:
        return list(dataset) if not hasattr(dataset, "__getitem__") else [dataset[place] for place in range(COUNT)]
    finally:
        dataset.close()


def flip(path: Path, value: bytes) -> None:
    """Change a bit of a value in a file, or in one of the files of a folder."""
    for file in [path] if path.is_file() else path.glob("*.npy"):
        data = file.read_bytes()
        if value in data:  # LMDB also leaves unused pages behind
            file.write_bytes(data.replace(value, value[:-1] + bytes([value[-1] ^ 4])))
            return
    raise AssertionError("the value is not in the file")


@pytest.mark.parametrize(
    ("format_", "changed"),
    [
        *((format_, "x") for format_ in OPENED),
        ("hdf5", "text"),
        ("npy", "text"),
        ("lmdb", "metadata"),
        ("tar", "metadata"),
        ("npy", "metadata"),
    ],
)
def test_one_changed_bit_is_an_error_that_names_the_sample(tmp_path: Path, format_: str, changed: str) -> None:
    name, opened = OPENED[format_]
    path = packed(tmp_path, name)
    if changed == "metadata":
        file = path / "feedline.json" if path.is_dir() else path
        flip(file, b'"skipped": 0')
        message = f"{name}.*(damaged|cannot be)"
    else:
        text = SAMPLES[37]["text"]
        flip(path, VALUE if changed == "x" else text.encode("utf-32-le" if format_ == "npy" else "utf-8"))
        message = NAMED[format_] if (format_, changed) != ("npy", "text") else r"npy/text\.npy, in rows"
    with pytest.raises(CorruptSource, match=message):
        all_of(opened(path))
    if changed == "x" and format_ != "stream":
        dataset = opened(path)
        with pytest.raises(CorruptSource, match=r"damaged|checksum|CRC"):
            list(feedline.Loader(dataset, 8))
        dataset.close()


def test_raw_values_of_listed_keys_are_verified_and_come_without_their_checksum(tmp_path: Path) -> None:
    """With `keys=` and `decode=`, the reader does not look at the metadata of the database."""
    path = packed(tmp_path, "a.lmdb")
    keys = [b"%012d" % place for place in (36, 37)]
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as database, database.begin() as transaction:
        stored = transaction.get(keys[0]) or b""
    flip(path, VALUE)
    dataset = LMDBDataset(path, keys=keys, decode="bytes")
    assert bytes(dataset[0]) == stored[:-4]
    with pytest.raises(CorruptSource, match=r"Sample 1 \(key b'000000000037'\) of .* is damaged"):
        dataset[1]
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


def test_workers_of_the_next_epoch_do_not_verify_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers forked for each epoch share what earlier workers have verified."""
    compares = "feedline.datasets.formats.array_file.RowCheck._read"
    dataset = ArrayDataset(packed(tmp_path, "npy"))
    compared = mmap.mmap(-1, 1)
    own = pkgutil.resolve_name(compares)

    def counted(*arguments: Any) -> Any:
        compared[0] += 1
        return own(*arguments)

    monkeypatch.setattr(compares, counted)
    loader = feedline.DataLoader(dataset, 8, num_workers=1, multiprocessing_context="fork")
    list(loader)
    once = compared[0]
    assert once >= 3
    list(loader)
    assert compared[0] == once
    loader.close()
    dataset.close()


def test_missing_checksums_and_damaged_headers_are_detected(tmp_path: Path) -> None:
    path = packed(tmp_path, "a.h5")
    with h5py.File(path, "r+") as file:
        del file["x"].attrs["feedline_crc32"]
    with pytest.raises(CorruptSource, match=r"The checksums of 'x' in .*a\.h5 are missing or damaged"):
        HDF5Dataset(path)[0]
    path = packed(tmp_path, "npy")
    (path / "x.npy").write_bytes((path / "x.npy").read_bytes().replace(b"'<f8'", b"'<i8'"))
    with pytest.raises(CorruptSource, match=r"The header of .*x\.npy is damaged"):
        ArrayDataset(path)
