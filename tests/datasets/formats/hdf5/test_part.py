"""The values of a field, by its type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import feedline
from feedline.datasets import HDF5Dataset
from feedline.errors import BadOption
from feedline.testing.source import assert_same


def written(path: Path, data: Any, dtype: Any = None, **attributes: Any) -> HDF5Dataset:
    with h5py.File(path / "x.h5", "w") as file:
        found = file.create_dataset("x", data=data, dtype=dtype)
        found.attrs.update(attributes)
    return HDF5Dataset(path / "x.h5", "x")


def ragged(path: Path, values: list[Any], dtype: Any, shape: tuple[int, ...] | None = None, **more: Any) -> HDF5Dataset:
    with h5py.File(path / "x.h5", "w") as file:
        found = file.create_dataset("x", shape or (len(values),), h5py.vlen_dtype(dtype))
        found.attrs.update(more)
        places = np.ndindex(*found.shape)
        for place, value in zip(places, values, strict=True):
            found[place] = value
    return HDF5Dataset(path / "x.h5", "x")


def check(source: HDF5Dataset, form: str, expected: list[Any]) -> None:
    assert source._form() == form
    found = source.__getitems__([*range(len(expected)), 0])
    for one, other in zip(found, [*expected, expected[0]], strict=True):
        assert_same(one, other)
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
    check(written(tmp_path, data, dtype), form, expected)


def test_values_of_odd_precision_are_converted_by_hdf5(tmp_path: Path) -> None:
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(12)
    kind.set_offset(4)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((3,)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, -2, 300], "i4"))
    source = HDF5Dataset(tmp_path / "x.h5", "x")
    assert [int(value) for value in source] == [1, -2, 300]
    source.close()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i2", ">i2", "u1", ">c8", "?"])
def test_arrays_of_any_length(tmp_path: Path, dtype: str) -> None:
    values = [np.arange(number).astype(dtype) for number in (3, 0, 1, 7)]
    native = np.dtype(dtype).newbyteorder("=")
    check(ragged(tmp_path, values, np.dtype(dtype)), f"{native}[*]", [value.astype(native) for value in values])


def test_lists_of_arrays_of_any_length(tmp_path: Path) -> None:
    values = [np.arange(number, dtype=np.int32) for number in (3, 0, 1, 7)]
    source = ragged(tmp_path, values, np.int32, (2, 2))
    check(source, "int32[*][2]", [values[:2], values[2:]])


def test_bytes(tmp_path: Path) -> None:
    values = [b"", b"\0\xff", bytes(range(256)) * 10]
    arrays = [np.frombuffer(value, np.uint8) for value in values]
    check(ragged(tmp_path, arrays, np.uint8, feedline="bytes"), "bytes", values)
    check(ragged(tmp_path, arrays, np.uint8), "uint8[*]", arrays)


def test_a_row_requested_twice_gives_two_arrays(tmp_path: Path) -> None:
    source = ragged(tmp_path, [np.arange(3), np.arange(2)], np.int64)
    one, other = source.__getitems__([0, 0])
    one += 5
    assert other.tolist() == [0, 1, 2]
    assert source[0].tolist() == [0, 1, 2]
    source.close()


def test_batches_of_arrays_of_any_length(tmp_path: Path) -> None:
    ragged(tmp_path, [np.arange(number) for number in range(6)], np.int64)
    source = HDF5Dataset(tmp_path / "x.h5", ["x"])
    loader = feedline.Loader(source, 3, collate_fn=feedline.collate.pad({"x": 0}))
    assert [batch["x"].tolist() for batch in loader] == [
        [[0, 0], [0, 0], [0, 1]],
        [[0, 1, 2, 0, 0], [0, 1, 2, 3, 0], [0, 1, 2, 3, 4]],
    ]
    assert source.read_columns(np.array([0, 1])) is None
    loader.close()
    source.close()


def test_dates(tmp_path: Path) -> None:
    dates = np.array(["2020-01-01", "2021-02-03"], "M8[s]")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = dates.astype(h5py.opaque_dtype(dates.dtype))
    source = HDF5Dataset(tmp_path / "x.h5", "x")
    assert source[1] == dates[1]
    assert source.read_columns(np.array([0])) is None
    source.close()


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        (np.zeros(3, [("a", "i4"), ("b", "f4")]), None, "compound, with the members a, b"),
        (np.zeros(3, "V5"), None, "is opaque"),
        (None, h5py.ref_dtype, "is of references"),
        (None, h5py.vlen_dtype(h5py.string_dtype()), "holds sequences of object"),
    ],
)
def test_types_that_cannot_be_samples_are_rejected(tmp_path: Path, data: Any, dtype: Any, message: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if data is None:
            file.create_dataset("x", (3,), dtype)
        else:
            file["x"] = data
        file["y"] = np.arange(3)
    with pytest.raises(BadOption, match=f"'x' of .*{message}.*fields="):
        HDF5Dataset(tmp_path / "x.h5")
    assert len(HDF5Dataset(tmp_path / "x.h5", "y")) == 3


def test_field_names_of_any_kind(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["größe/中 文"] = np.arange(4)
    source = HDF5Dataset(tmp_path / "x.h5")
    assert source[2] == {"größe/中 文": 2}
    source.close()


def test_huge_rows_and_no_rows(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["large"] = np.arange(3 << 20, dtype=np.int32).reshape(1, -1)
        file["none"] = np.zeros((0, 3))
    source = HDF5Dataset(tmp_path / "x.h5", "large")
    assert source[0].sum(dtype=np.int64) == (3 << 20) * ((3 << 20) - 1) // 2
    source.close()
    empty = HDF5Dataset(tmp_path / "x.h5", "none")
    assert (len(empty), list(empty), empty.chunk_sizes.tolist()) == (0, [], [])
    with pytest.raises(IndexError):
        empty[0]
    empty.close()
