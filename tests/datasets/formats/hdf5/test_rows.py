"""Every storage layout gives the same values, and is read in the way meant for it; the values of each type."""

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
from feedline.datasets.formats.hdf5 import rows as rows_module
from feedline.datasets.formats.hdf5.rows import ChunkedRows, MappedRows, PackedRows, SelectedRows
from feedline.errors import BadOption, CorruptSource
from feedline.testing.asserting import assert_same
from tests.sampling import examples

COUNT = 37
DATA = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)
WHOLE = (5, 2, 3)

Write = Callable[[h5py.File], Any]


def plain(**options: Any) -> Write:
    return lambda file: file.create_dataset("x", **{"data": DATA, **options})


def compact(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(DATA.shape)
    found = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(DATA.dtype), space, properties)
    found.write(h5py.h5s.ALL, h5py.h5s.ALL, DATA)


def skipped_filter(file: h5py.File) -> None:
    """Store one chunk uncompressed, although the others are compressed."""
    found = file.create_dataset("x", data=DATA, chunks=WHOLE, compression="gzip")
    found.id.write_direct_chunk((5, 0, 0), DATA[5:10].tobytes(), filter_mask=1)


def sparse(**options: Any) -> Write:
    def write(file: h5py.File) -> None:
        file.create_dataset("x", DATA.shape, DATA.dtype, chunks=WHOLE, fillvalue=-1, **options)[10:] = DATA[10:]

    return write


def linked(file: h5py.File) -> None:
    file["deep/y"] = DATA
    file["x"] = h5py.SoftLink("/deep/y")


def array_type(file: h5py.File) -> None:
    file.create_dataset("x", (COUNT,), "(2,3)>f4")[...] = DATA


LAYOUTS: dict[str, tuple[Write, type]] = {
    "contiguous": (plain(), MappedRows),
    "other byte order": (plain(dtype=">f4"), MappedRows),
    "compact": (compact, SelectedRows),
    "chunked": (plain(chunks=WHOLE), ChunkedRows),
    "chunked, other byte order": (plain(chunks=WHOLE, dtype=">f4"), ChunkedRows),
    "one row per chunk": (plain(chunks=(1, 2, 3)), ChunkedRows),
    "one chunk": (plain(chunks=(COUNT, 2, 3)), ChunkedRows),
    "large rows": (plain(data=np.arange(COUNT * 600.0).reshape(COUNT, 600), chunks=(5, 600)), ChunkedRows),
    "parts of rows in chunks": (plain(chunks=(5, 1, 2)), SelectedRows),
    "resizable": (plain(chunks=WHOLE, maxshape=(None, 2, 3)), ChunkedRows),
    "chunks larger than rows": (plain(chunks=(5, 4, 4), maxshape=(None, None, None)), SelectedRows),
    "gzip": (plain(chunks=WHOLE, compression="gzip"), PackedRows),
    "gzip, one row per chunk": (plain(chunks=(1, 2, 3), compression="gzip"), PackedRows),
    "gzip and shuffle": (plain(chunks=WHOLE, compression="gzip", shuffle=True), PackedRows),
    "gzip and shuffle, other byte order": (
        plain(chunks=WHOLE, compression="gzip", shuffle=True, dtype=">f4"),
        PackedRows,
    ),
    "gzip and checksum": (plain(chunks=WHOLE, compression="gzip", fletcher32=True), PackedRows),
    "gzip, parts of rows": (plain(chunks=(5, 1, 3), compression="gzip"), PackedRows),
    "gzip, some chunks as they are": (skipped_filter, PackedRows),
    "lzf": (plain(chunks=WHOLE, compression="lzf"), PackedRows),
    "scale and offset": (plain(chunks=WHOLE, scaleoffset=3), PackedRows),
    "never written": (lambda file: file.create_dataset("x", (COUNT, 4), "i2", fillvalue=7), SelectedRows),
    "chunks that are not there": (sparse(), SelectedRows),
    "packed chunks that are not there": (sparse(compression="gzip"), PackedRows),
    "linked": (linked, MappedRows),
    "no numbers in a row": (lambda file: file.create_dataset("x", (COUNT, 0), "f4"), SelectedRows),
    "array type": (array_type, SelectedRows),
}


def made(path: Path, name: str, **options: Any) -> tuple[HDF5Dataset, Any]:
    with h5py.File(path, "w", **options) as file:
        LAYOUTS[name][0](file)
    with h5py.File(path) as file:
        return HDF5Dataset(path, "x"), file["x"][...]


def reader_of(source: HDF5Dataset) -> Any:
    source[0]
    return source._files.get().get(0).fields[0]  # type: ignore[union-attr]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_and_how_they_are_read(tmp_path: Path, name: str, libver: str) -> None:
    source, expected = made(tmp_path / "x.h5", name, libver=libver)
    for indices in ([0], [36, 0, 36, 5, 6, 7], list(range(COUNT)), [20, 19, 4, 5, -1]):
        found = source.read_columns(np.array(indices))
        assert_same(found, expected[indices].astype(found.dtype.newbyteorder("=")))
        assert np.array_equal(np.stack(source.__getitems__(indices)), expected[indices])
    assert type(reader_of(source)) is LAYOUTS[name][1]
    source.close()


def test_files_that_cannot_be_mapped_and_user_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, expected = made(tmp_path / "x.h5", "contiguous", userblock_size=512)
    assert np.array_equal(source.read_columns(np.arange(COUNT)), expected)
    source.close()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no mapping here")

    monkeypatch.setattr("mmap.mmap", refuse)
    assert np.array_equal(source.read_columns(np.arange(COUNT)), expected)
    source.close()


@pytest.mark.parametrize("with_libdeflate", [True, False])
@pytest.mark.parametrize("size", [999, 1000, 1001, 64 << 20])
def test_decompression_stops_at_the_size_of_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_libdeflate: bool, size: int
) -> None:
    if not with_libdeflate:
        monkeypatch.setitem(sys.modules, "deflate", None)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", (1, 1000), np.uint8, chunks=(1, 1000), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), zlib.compress(bytes(size), 9))
    source = HDF5Dataset(tmp_path / "x.h5", "x")
    if size == 1000:
        assert source[0].tobytes() == bytes(1000)
    else:
        tracemalloc.start()
        with pytest.raises(CorruptSource, match=r"Chunk 0 of /x in .*x\.h5"):
            source[0]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
    source.close()


@pytest.mark.parametrize("name", ["gzip", "lzf"])
@pytest.mark.parametrize("cache_bytes", [0, 64 << 20])
def test_a_chunk_is_decompressed_once_per_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cache_bytes: int
) -> None:
    made(tmp_path / "x.h5", name)
    source = HDF5Dataset(tmp_path / "x.h5", "x", cache_bytes=cache_bytes)
    unpacked: list[int] = []
    for kind in (rows_module.ByHDF5, rows_module.ByInflating):
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
    monkeypatch.setattr(rows_module, "_LARGEST_CHUNK", 5 * 24 - 1)
    for name in ("gzip", "lzf"):
        source, expected = made(tmp_path / f"{name}.h5", name)
        assert np.array_equal(source.read_columns(np.array([9, 2, 2])), expected[[9, 2, 2]])
        assert type(reader_of(source)) is SelectedRows
        source.close()


def test_rejects_addresses_beyond_the_end_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows_module._mapped_rows
    monkeypatch.setattr(rows_module, "_mapped_rows", lambda x, size, mapped, *more: whole(x, size, mapped[:100], *more))
    for name in ("contiguous", "chunked"):
        source, _ = made(tmp_path / f"{name}.h5", name)
        with pytest.raises(CorruptSource, match=rf"{name}\.h5 with '/x' in it declares \d+ bytes, but only 100"):
            source[0]
        source.close()


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
    assert_same(source.read_columns(np.array(indices)), values[indices].astype(values.dtype.newbyteorder("=")))
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
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (3, 1 << 40), np.int8, chunks=(1, 1024))
    with pytest.raises(CorruptSource, match=r"a\.h5: a row of 'x'.*FEEDLINE_MAX_SAMPLE_BYTES"):
        HDF5Dataset(tmp_path / "a.h5", "x")


def ragged(path: Path, values: list[Any], dtype: Any, shape: tuple[int, ...] | None = None, **more: Any) -> HDF5Dataset:
    with h5py.File(path / "x.h5", "w") as file:
        found = file.create_dataset("x", shape or (len(values),), h5py.vlen_dtype(dtype))
        found.attrs.update(more)
        for place, value in zip(np.ndindex(*found.shape), values, strict=True):
            found[place] = value
    return HDF5Dataset(path / "x.h5", "x")


def check(source: HDF5Dataset, form: str, expected: list[Any]) -> None:
    assert f"samples of {form})" in repr(source)
    assert_same(source.__getitems__([*range(len(expected)), 0]), [*expected, expected[0]])
    source.close()


@pytest.mark.parametrize(
    ("data", "dtype", "form", "expected"),
    [
        (np.array([True, False]), None, "bool[]", [np.True_, np.False_]),
        (np.array([1, 2], ">u2"), None, "uint16[]", [np.uint16(1), np.uint16(2)]),
        (np.array([1, 2]), h5py.enum_dtype({"A": 1, "B": 2}, basetype="i1"), "int8[]", [np.int8(1), np.int8(2)]),
        (np.array([1.5], "f2"), None, "float16[]", [np.float16(1.5)]),
        (np.array([1 + 2j], ">c8"), None, "complex64[]", [np.complex64(1 + 2j)]),
        (["é", "", "x\u4e2d"], h5py.string_dtype(), "str", ["é", "", "x\u4e2d"]),
        (["abc", "d"], h5py.string_dtype("ascii"), "str", ["abc", "d"]),
        (np.array([b"ab", b"c"]), None, "str", ["ab", "c"]),
        (np.array(["é".encode(), b"x"], h5py.string_dtype("utf-8", 6)), None, "str", ["é", "x"]),
        ([["a", "b"], ["c", "d"]], h5py.string_dtype(), "str[2]", [["a", "b"], ["c", "d"]]),
        (np.array([[b"ab"], [b"c"]]), None, "str[1]", [["ab"], ["c"]]),
    ],
)
def test_values(tmp_path: Path, data: Any, dtype: Any, form: str, expected: list[Any]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("größe/中 文", data=data, dtype=dtype)
    check(HDF5Dataset(tmp_path / "x.h5", "größe/中 文"), form, expected)


def test_values_of_variable_length(tmp_path: Path) -> None:
    for dtype in (np.float32, np.int16, np.uint8, np.complex64, np.bool_):
        arrays = [np.arange(number).astype(dtype) for number in (3, 0, 1, 7)]
        check(ragged(tmp_path, arrays, np.dtype(dtype)), f"{np.dtype(dtype)}[*]", arrays)
    check(ragged(tmp_path, arrays, np.bool_, (2, 2)), "bool[*][2]", [arrays[:2], arrays[2:]])
    values = [b"", b"\0\xff", bytes(range(256)) * 10]
    arrays = [np.frombuffer(value, np.uint8) for value in values]
    check(ragged(tmp_path, arrays, np.uint8, feedline="bytes"), "bytes", values)


def test_a_row_requested_twice_gives_two_arrays(tmp_path: Path) -> None:
    source = ragged(tmp_path, [np.arange(3), np.arange(2)], np.int64)
    one, other = source.__getitems__([0, 0])
    one += 5
    assert other.tolist() == source[0].tolist() == [0, 1, 2]
    source.close()


def test_numbers_that_hdf5_converts(tmp_path: Path) -> None:
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(12)
    kind.set_offset(4)
    dates = np.array(["2020-01-01", "2021-02-03", "2022-03-04"], "M8[s]")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple((3,))
        h5py.h5d.create(file.id, b"odd", kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, -2, 300], "i4"))
        file["dates"] = dates.astype(h5py.opaque_dtype(dates.dtype))
    source = HDF5Dataset(tmp_path / "x.h5", ("odd", "dates"))
    assert [(int(number), date) for number, date in source] == list(zip([1, -2, 300], dates, strict=True))
    assert source.read_columns(np.array([0])) is None  # there are no tensors of dates
    source.close()


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["name"] = np.array([b"ok", b"\xff\xfe"])
    source = HDF5Dataset(tmp_path / "x.h5", "name")
    assert source[0] == "ok"
    with pytest.raises(CorruptSource, match=r"'name' in row 1 of .*x\.h5"):
        source[1]
    source.close()


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (np.zeros(3, [("a", "i4"), ("b", "f4")]), None),
        (np.zeros(3, "V5"), None),
        (None, h5py.ref_dtype),
        (None, h5py.vlen_dtype(h5py.string_dtype())),
        (None, h5py.vlen_dtype(np.dtype(">i4"))),
    ],
)
def test_types_that_cannot_be_samples_are_rejected(tmp_path: Path, data: Any, dtype: Any) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (3,), dtype, data)
        file["y"] = np.arange(3)
    with pytest.raises(BadOption, match=r"'x' of .*x\.h5 .*fields="):
        HDF5Dataset(tmp_path / "x.h5")
    assert len(HDF5Dataset(tmp_path / "x.h5", "y")) == 3


def test_no_rows(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["none"] = np.zeros((0, 3))
    empty = HDF5Dataset(tmp_path / "x.h5", "none")
    assert (len(empty), list(empty), empty.chunk_sizes.tolist()) == (0, [], [])
    with pytest.raises(IndexError):
        empty[0]
    empty.close()
