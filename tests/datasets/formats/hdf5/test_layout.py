"""Every storage layout gives the same values, and is read in the way meant for it."""

from __future__ import annotations

import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets import HDF5Dataset
from feedline.datasets.formats.hdf5 import layout
from feedline.datasets.formats.hdf5.rows import ChunkedRows, MappedRows, PackedRows, SelectedRows, runs
from feedline.errors import CorruptSource, SourceChanged
from tests.sampling import examples

COUNT = 37
DATA = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)

Write = Callable[[h5py.File], Any]


def plain(**options: Any) -> Write:
    return lambda file: file.create_dataset("x", data=DATA, **options)


def compact(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(DATA.shape)
    found = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(DATA.dtype), space, properties)
    found.write(h5py.h5s.ALL, h5py.h5s.ALL, DATA)


def external(file: h5py.File) -> None:
    name = f"{file.filename}.raw"
    file.create_dataset("x", DATA.shape, DATA.dtype, external=[(name, 0, h5py.h5f.UNLIMITED)])[...] = DATA


def virtual(file: h5py.File) -> None:
    name = f"{file.filename}.other"
    with h5py.File(name, "w") as other:
        other["part"] = DATA
    table = h5py.VirtualLayout(DATA.shape, DATA.dtype)
    table[...] = h5py.VirtualSource(name, "part", DATA.shape)
    file.create_virtual_dataset("x", table)


def skipped_filter(file: h5py.File) -> None:
    """Store one chunk uncompressed, although the others are compressed."""
    found = file.create_dataset("x", data=DATA, chunks=(5, 2, 3), compression="gzip")
    found.id.write_direct_chunk((5, 0, 0), DATA[5:10].tobytes(), filter_mask=1)


def sparse(**options: Any) -> Write:
    def write(file: h5py.File) -> None:
        file.create_dataset("x", DATA.shape, DATA.dtype, chunks=(5, 2, 3), fillvalue=-1, **options)[10:] = DATA[10:]

    return write


def linked(file: h5py.File) -> None:
    file["deep/y"] = DATA
    file["x"] = h5py.SoftLink("/deep/y")


SPARSE = np.where(np.arange(COUNT)[:, None, None] < 10, np.float32(-1), DATA)

LAYOUTS: dict[str, tuple[Write, type, Any]] = {
    "contiguous": (plain(), MappedRows, DATA),
    "other byte order": (plain(dtype=">f4"), MappedRows, DATA),
    "compact": (compact, PackedRows, DATA),
    "chunked": (plain(chunks=(5, 2, 3)), ChunkedRows, DATA),
    "chunked, other byte order": (plain(chunks=(5, 2, 3), dtype=">f4"), ChunkedRows, DATA),
    "one row per chunk": (plain(chunks=(1, 2, 3)), ChunkedRows, DATA),
    "one chunk": (plain(chunks=(COUNT, 2, 3)), ChunkedRows, DATA),
    "parts of rows in chunks": (plain(chunks=(5, 1, 2)), SelectedRows, DATA),
    "resizable": (plain(chunks=(5, 2, 3), maxshape=(None, 2, 3)), ChunkedRows, DATA),
    "chunks larger than rows": (plain(chunks=(5, 4, 4), maxshape=(None, None, None)), SelectedRows, DATA),
    "gzip": (plain(chunks=(5, 2, 3), compression="gzip"), PackedRows, DATA),
    "gzip, one row per chunk": (plain(chunks=(1, 2, 3), compression="gzip"), PackedRows, DATA),
    "gzip and shuffle": (plain(chunks=(5, 2, 3), compression="gzip", shuffle=True), PackedRows, DATA),
    "gzip and shuffle, other byte order": (
        plain(chunks=(5, 2, 3), compression="gzip", shuffle=True, dtype=">f4"),
        PackedRows,
        DATA,
    ),
    "gzip and checksum": (plain(chunks=(5, 2, 3), compression="gzip", fletcher32=True), PackedRows, DATA),
    "gzip, parts of rows": (plain(chunks=(5, 1, 3), compression="gzip"), PackedRows, DATA),
    "gzip, some chunks as they are": (skipped_filter, PackedRows, DATA),
    "lzf": (plain(chunks=(5, 2, 3), compression="lzf"), PackedRows, DATA),
    "scale and offset": (plain(chunks=(5, 2, 3), scaleoffset=3), PackedRows, DATA),
    "external": (external, SelectedRows, DATA),
    "virtual": (virtual, SelectedRows, DATA),
    "never written": (lambda file: file.create_dataset("x", (COUNT, 4), "i2", fillvalue=7), SelectedRows, None),
    "chunks that are not there": (sparse(), SelectedRows, SPARSE),
    "packed chunks that are not there": (sparse(compression="gzip"), PackedRows, SPARSE),
    "linked": (linked, MappedRows, DATA),
    "no numbers in a row": (lambda file: file.create_dataset("x", (COUNT, 0), "f4"), SelectedRows, None),
    "array type": (lambda file: file.create_dataset("x", data=DATA, dtype="(2,3)>f4"), SelectedRows, None),
}


def made(path: Path, name: str, **options: Any) -> tuple[HDF5Dataset, Any, type]:
    write, kind, expected = LAYOUTS[name]
    if name == "array type":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (COUNT,), "(2,3)>f4")[...] = DATA
        expected = DATA
    else:
        with h5py.File(path, "w", **options) as file:
            write(file)
    with h5py.File(path) as file:
        read = file["x"][...]
    expected = read if expected is None else expected
    assert np.array_equal(read, expected)  # h5py agrees
    return HDF5Dataset(path, "x", external=name in ("external", "virtual")), expected, kind


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_and_how_they_are_read(tmp_path: Path, name: str, libver: str) -> None:
    source, expected, kind = made(tmp_path / "x.h5", name, libver=libver)
    for indices in ([0], [36, 0, 36, 5, 6, 7], list(range(COUNT)), [20, 19, 4, 5, -1]):
        found = source.read_columns(np.array(indices))
        assert found.dtype == expected.dtype.newbyteorder("=")
        assert np.array_equal(found, expected[indices])
        assert np.array_equal(np.stack(source.__getitems__(indices)), expected[indices])
    file = source._files.get().get(0)
    assert type(file.fields[0]) is kind
    assert (file._file is None) == (kind in (MappedRows, ChunkedRows) or is_inflated(file.fields[0]))
    source.close()


def is_inflated(rows: Any) -> bool:
    return isinstance(getattr(rows, "_unpack", None), layout.ByInflating)


@pytest.mark.parametrize(
    "name", ["contiguous", "chunked", "gzip and shuffle, other byte order", "lzf", "virtual", "other byte order"]
)
def test_several_files(tmp_path: Path, name: str) -> None:
    for number in range(3):
        made(tmp_path / f"{number}.h5", name)
    source = HDF5Dataset(tmp_path / "?.h5", "x", external=name == "virtual")
    indices = np.random.default_rng(0).integers(0, 3 * COUNT, 50)
    assert np.array_equal(source.read_columns(indices), DATA[indices % COUNT])
    source.close()


def test_files_that_cannot_be_mapped_and_user_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file["x"] = DATA
    source = HDF5Dataset(tmp_path / "x.h5", "x")
    assert np.array_equal(source.read_columns(np.arange(COUNT)), DATA)
    source.close()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no mapping here")

    monkeypatch.setattr("mmap.mmap", refuse)
    assert np.array_equal(source.read_columns(np.arange(COUNT)), DATA)
    source.close()


def test_without_libdeflate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, expected, _ = made(tmp_path / "x.h5", "gzip and shuffle")
    monkeypatch.setitem(sys.modules, "deflate", None)
    assert np.array_equal(source.read_columns(np.arange(COUNT)), expected)
    source.close()


def bomb(path: Path, unpacked: bytes) -> None:
    """Write a file with one chunk of 1,000 bytes, and compress other bytes in its place."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (1, 1000), np.uint8, chunks=(1, 1000), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), zlib.compress(unpacked, 9))


@pytest.mark.slow
@pytest.mark.parametrize("with_libdeflate", [True, False])
def test_decompression_stops_at_the_size_of_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_libdeflate: bool
) -> None:
    if not with_libdeflate:
        monkeypatch.setitem(sys.modules, "deflate", None)
    bomb(tmp_path / "x.h5", bytes(64 << 20))
    dataset = HDF5Dataset(tmp_path / "x.h5", "x")
    tracemalloc.start()
    with pytest.raises(CorruptSource, match=r"Chunk 0 of /x in .*x\.h5 cannot be decompressed") as caught:
        dataset[0]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    dataset.close()
    if not with_libdeflate:
        assert "it decompresses to more than 1,000 bytes" in str(caught.value)


@pytest.mark.parametrize("unpacked", [999, 1000, 1001])
def test_zlib_detects_chunks_of_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unpacked: int) -> None:
    monkeypatch.setitem(sys.modules, "deflate", None)
    data = np.random.default_rng(0).integers(0, 256, unpacked, np.uint8).tobytes()
    bomb(tmp_path / "x.h5", data)
    dataset = HDF5Dataset(tmp_path / "x.h5", "x")
    if unpacked == 1000:
        assert dataset[0].tobytes() == data
    else:
        with pytest.raises(CorruptSource, match=r"Chunk 0 of /x in .*x\.h5"):
            dataset[0]
    dataset.close()


@pytest.mark.parametrize("name", ["gzip", "lzf"])
@pytest.mark.parametrize("cache_bytes", [0, 64 << 20])
def test_a_chunk_is_decompressed_once_per_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cache_bytes: int
) -> None:
    made(tmp_path / "x.h5", name)
    source = HDF5Dataset(tmp_path / "x.h5", "x", cache_bytes=cache_bytes)
    unpacked: list[int] = []
    for kind in (layout.ByHDF5, layout.ByInflating):
        own: Any = kind.__call__

        def counted(self: Any, number: int, own: Any = own) -> Any:
            unpacked.append(number)
            return own(self, number)

        monkeypatch.setattr(kind, "__call__", counted)
    source.read_columns(np.array([1, 12, 3, 0, 11, 1]))
    assert sorted(unpacked) == [0, 2]
    source.read_columns(np.array([2, 14]))
    assert sorted(unpacked) == ([0, 2] if cache_bytes else [0, 0, 2, 2])
    source.close()


def test_large_chunks_are_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_LARGEST_CHUNK", 5 * 24 - 1)
    for name in ("gzip", "lzf"):
        source, expected, _ = made(tmp_path / f"{name}.h5", name)
        assert np.array_equal(source.read_columns(np.array([9, 2, 2])), expected[[9, 2, 2]])
        assert type(source._files.get().get(0).fields[0]) is SelectedRows
        source.close()


def test_rejects_addresses_beyond_the_end_of_the_file(tmp_path: Path) -> None:
    for name in ("contiguous", "chunked"):
        path = tmp_path / f"{name}.h5"
        made(path, name)
        with (
            h5py.File(path) as file,
            pytest.raises(CorruptSource, match=r"with '/x' in it declares \d+ bytes, but only 100"),
        ):
            layout._mapped_rows(file["x"], DATA.dtype, 24, b"\0" * 100, None, 0)  # type: ignore[arg-type]


@settings(max_examples=examples(60))
@given(numbers=st.lists(st.integers(0, 30), min_size=1, max_size=40, unique=True).map(sorted))
def test_runs_cover_everything(numbers: list[int]) -> None:
    array = np.array(numbers)
    found = list(runs(array, step=1))
    assert [place for start, stop in found for place in range(start, stop)] == list(range(len(numbers)))
    for start, stop in found:
        assert array[start:stop].tolist() == list(range(array[start], array[start] + stop - start))
    assert all(array[stop] > array[stop - 1] + 1 for _, stop in found[:-1])


@settings(max_examples=examples(25), deadline=None)
@given(
    rows=st.integers(1, 12),
    chunk=st.integers(1, 5),
    dtype=st.sampled_from(["u1", "<i2", ">i4", "<f8", ">f8", "?", "<c8", "<f2"]),
    options=st.sampled_from([{}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {"shuffle": True}]),
    data=st.data(),
)
def test_any_rows_of_any_type(
    tmp_path_factory: pytest.TempPathFactory, rows: int, chunk: int, dtype: str, options: Any, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.h5"
    values = (np.arange(rows * 3).reshape(rows, 3) % 7).astype(dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(min(chunk, rows), 3), **options)
    indices = data.draw(st.lists(st.integers(-rows, rows - 1), min_size=1, max_size=20))
    source = HDF5Dataset(path, "x")
    found = source.read_columns(np.array(indices))
    assert found.dtype == values.dtype.newbyteorder("=")
    assert found.tobytes() == values[indices].astype(found.dtype).tobytes()
    source.close()


class TestLinksToOtherFiles:
    """Only the file with the links is mapped, never the file they point to."""

    @staticmethod
    def write(path: Path, first: int = 0, count: int = 10, **options: Any) -> None:
        with h5py.File(path, "w") as file:
            file["pad"] = np.full(50_000, 7)
            file.create_dataset("x", data=np.arange(first, first + count), **options)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        self.write(tmp_path / "other.h5")
        with h5py.File(tmp_path / "main.h5", "w") as file:
            file["x"] = h5py.ExternalLink("other.h5", "/x")
            file["y"] = np.arange(10)
        return tmp_path

    @pytest.mark.parametrize("filler", [0, 100_000])
    @pytest.mark.parametrize("options", [{}, {"chunks": (4,)}, {"chunks": (4,), "compression": "gzip"}])
    def test_values(self, folder: Path, options: dict[str, Any], filler: int) -> None:
        self.write(folder / "other.h5", 1000, **options)
        with h5py.File(folder / "main.h5", "a") as file:
            file["filler"] = np.full(filler, -5)
        source = HDF5Dataset(folder / "main.h5", ("x", "y"), external=True)
        assert [(int(x), int(y)) for x, y in source.__getitems__(range(10))] == [(1000 + y, y) for y in range(10)]
        source.close()

    def test_changes_of_the_linked_file_are_detected(self, folder: Path) -> None:
        source = HDF5Dataset(folder / "main.h5", "x", external=True)
        assert int(source[3]) == 3
        self.write(folder / "new.h5", 500)
        (folder / "new.h5").replace(folder / "other.h5")
        assert int(source[3]) == 503
        self.write(folder / "new.h5", 500, 7)
        (folder / "new.h5").replace(folder / "other.h5")
        with pytest.raises(SourceChanged, match=r"other\.h5 has changed .*it had 10 samples and now has 7"):
            source[3]
        self.write(folder / "new.h5", 500, dtype="i2")
        (folder / "new.h5").replace(folder / "other.h5")
        with pytest.raises(SourceChanged, match=r"other\.h5 has changed .*'x' was int64\[\] and is now int16\[\]"):
            source[3]
        (folder / "other.h5").unlink()
        with pytest.raises(CorruptSource, match="main"):
            source[3]
        source.close()


def test_chunk_tables_are_not_larger_than_the_file(tmp_path: Path) -> None:
    """2 KB declare 50 million chunks that do not exist: all rows have the fill value."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (50_000_000, 2), np.int8, chunks=(1, 2), fillvalue=3)
    dataset = HDF5Dataset(path, "x")
    tracemalloc.start()
    assert dataset[49_999_999].tolist() == [3, 3]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    dataset.close()


def test_rejects_rows_larger_than_a_sample_may_be(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (3, 1 << 40), np.int8, chunks=(1, 1024))
    with pytest.raises(
        CorruptSource, match=r"a\.h5: a row of 'x' takes 1099511627776 bytes.*FEEDLINE_MAX_SAMPLE_BYTES"
    ):
        HDF5Dataset(path, "x")
