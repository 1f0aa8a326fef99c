"""Arrays in files."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import ArrayDataset, FileDataset
from feedline.datasets.formats.array_file import find_mapped
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.sampling import examples

COUNT = 30
IMAGES = np.arange(COUNT * 12, dtype=np.float32).reshape(COUNT, 3, 4)
LABELS = np.arange(COUNT)


class MappedContract(SourceContract):
    """The contract of sources, for files that contain images and labels."""

    table: Any
    takes_fields = True
    stays_mapped = True

    def make_source(self, **options: Any) -> ArrayDataset:
        return ArrayDataset(self.table, **options)

    def samples(self) -> list[Any]:
        return [{"image": image, "label": label} for image, label in zip(IMAGES, LABELS, strict=True)]

    # It takes columns from arrays; and arrays have their own messages about indices.
    test_columns_are_what_the_default_collate_function_makes_of_samples = None  # type: ignore[assignment]
    test_an_index_out_of_range = None
    test_an_index_that_is_no_number = None  # type: ignore[assignment]


class TestFolder(MappedContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        np.save(tmp_path / "image.npy", IMAGES)
        np.save(tmp_path / "label.npy", LABELS)
        self.table = tmp_path

    def files(self) -> list[Path]:
        return [self.table / "image.npy", self.table / "label.npy"]

    def rewrite(self) -> list[Any]:
        np.save(self.table / "image.npy", IMAGES + 1)
        np.save(self.table / "label.npy", LABELS + 1)
        return [{"image": image, "label": label} for image, label in zip(IMAGES + 1, LABELS + 1, strict=True)]


class TestZip(MappedContract):
    stays_mapped = False
    has_checksums = True

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "data.npz", image=IMAGES, label=LABELS)
        self.table = str(tmp_path / "data.npz")

    def files(self) -> list[Path]:
        return [Path(self.table)]

    def rewrite(self) -> list[Any]:
        np.savez(self.table, image=IMAGES + 1, label=LABELS + 1)
        return [{"image": image, "label": label} for image, label in zip(IMAGES + 1, LABELS + 1, strict=True)]


def test_forms(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", image=IMAGES, label=LABELS)
    np.save(tmp_path / "x.npy", LABELS)
    assert repr(ArrayDataset(tmp_path / "x.npy")) == "ArrayDataset(30 samples of int64[])"
    assert ArrayDataset(str(tmp_path / "x.npy"))[3] == 3
    assert ArrayDataset((tmp_path / "x.npy", IMAGES))[3][0] == 3
    assert repr(ArrayDataset(tmp_path / "data.npz", ("label", "image"))).endswith("(int64[], float32[3, 4]))")
    assert ArrayDataset(tmp_path / "data.npz", "label")[4] == 4
    assert ArrayDataset({"a": LABELS, "b": IMAGES}, {"y": "a"})[5] == {"y": 5}
    assert repr(ArrayDataset(tmp_path)) == "ArrayDataset(30 samples of {'x': int64[]})"


def test_pickled_by_path_and_opened_only_when_it_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1000, 100)))
    source = ArrayDataset(tmp_path / "x.npy")
    assert source.__dict__["_opened"] is None
    assert len(pickle.dumps(source)) < 800
    source[0]
    assert source._opened is not None
    assert len(pickle.dumps(source)) < 800
    mapped = ArrayDataset((np.load(tmp_path / "x.npy", mmap_mode="r")[10:, ::2], LABELS.repeat(33)))
    assert len(pickle.dumps(mapped)) < 800 + LABELS.nbytes * 33


def test_samples_of_files_are_writable(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    for table in (tmp_path / "x.npy", np.load(tmp_path / "x.npy", mmap_mode="r+")):
        source = ArrayDataset(table)
        sample = source[3]
        assert type(sample) is np.ndarray
        sample += 1
        assert (source[3] == IMAGES[3]).all()
    assert (np.load(tmp_path / "x.npy") == IMAGES).all()


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), mode=st.sampled_from(["r", "r+", "c"]))
def test_slices_of_mapped_arrays(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, mode: Any) -> None:
    path = tmp_path_factory.mktemp("mapped") / "x.npy"
    np.save(path, np.arange(24 * 5, dtype=data.draw(st.sampled_from(["i2", ">f8", "u1"]))).reshape(24, 5))
    array = np.load(path, mmap_mode=mode)
    slices = st.slices(24).filter(lambda one: len(range(*one.indices(24))) > 0)
    part = array[data.draw(slices)]
    if data.draw(st.booleans()):
        part = part[:, data.draw(st.slices(5).filter(lambda one: len(range(*one.indices(5))) > 0))]
    if data.draw(st.booleans()):
        part = part.T
    place = find_mapped(part)
    assert (place is None) == (mode == "c")
    other = pickle.loads(pickle.dumps(ArrayDataset(part)))
    if mode != "c":  # otherwise NumPy pickles it, in a byte order of its choice
        assert other.arrays.dtype == part.dtype
    assert np.array_equal(other.arrays, part)


def test_raw_numbers_mapped_with_numpy(tmp_path: Path) -> None:
    IMAGES.tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", np.float32, "r", 48, (COUNT - 1, 3, 4))
    text = pickle.dumps(ArrayDataset(mapped))
    assert len(text) < 800
    assert_same(pickle.loads(text)[5], IMAGES[6])
    os.truncate(tmp_path / "x.bin", 500)
    with pytest.raises(CorruptSource, match="truncated"):
        pickle.loads(text)[5]


def test_arrays_in_memory_are_pickled_by_value(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")
    changed[0] = 7
    assert (pickle.loads(pickle.dumps(ArrayDataset(changed)))[0] == 7).all()
    copied = np.array(
        np.load(tmp_path / "x.npy", mmap_mode="r"), subok=True
    )  # a memmap object that no longer maps a file
    os.remove(tmp_path / "x.npy")
    assert (pickle.loads(pickle.dumps(ArrayDataset(copied)))[1] == IMAGES[1]).all()


class TestOddArrays:
    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.array([{}, None], object), "Python objects, which are pickled"),
            (np.zeros(3, [("a", "i4"), ("b", "f4")]), "structured array, of a, b"),
            (np.zeros(3, ">f4"), "another byte order.*newbyteorder"),
            (np.array(3.0), "single number"),
        ],
    )
    def test_unsupported_types_are_rejected(self, tmp_path: Path, array: Any, message: str) -> None:
        np.save(tmp_path / "x.npy", array, allow_pickle=True)
        np.savez(tmp_path / "x.npz", x=array)
        with pytest.raises(BadOption, match=message):
            ArrayDataset(tmp_path / "x.npy")
        with pytest.raises(BadOption, match=message):
            ArrayDataset(tmp_path / "x.npz")

    def test_no_samples_and_one(self, tmp_path: Path) -> None:
        np.save(tmp_path / "none.npy", np.zeros((0, 3)))
        np.save(tmp_path / "one.npy", np.ones((1, 3)))
        assert list(feedline.Loader(ArrayDataset(tmp_path / "none.npy"), 2)) == []
        assert len(pickle.loads(pickle.dumps(ArrayDataset(tmp_path / "none.npy"))).arrays) == 0
        assert [batch.tolist() for batch in feedline.Loader(ArrayDataset(tmp_path / "one.npy"), 2)] == [[[1, 1, 1]]]

    @pytest.mark.parametrize("version", [(1, 0), (2, 0)])
    def test_versions(self, tmp_path: Path, version: tuple[int, int]) -> None:
        with (tmp_path / "x.npy").open("wb") as file:
            np.lib.format.write_array(file, IMAGES, version)
        assert_same(ArrayDataset(tmp_path / "x.npy")[2], IMAGES[2])

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_arrays_of_a_zip_are_read_if_they_are_wanted(
        self, tmp_path: Path, save: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for shift in range(4):  # their addresses in the file are not aligned
            name = "n" * (shift + 1)
            save(tmp_path / "x.npz", a=np.zeros(3, np.int8), none=np.zeros((0, 3)), **{name: np.asfortranarray(IMAGES)})
            source = ArrayDataset(tmp_path / "x.npz", name)
            (batch,) = feedline.Loader(source, COUNT)
            assert_same(batch, IMAGES)
            (tensors,) = feedline.DataLoader(source, COUNT)
            assert_same(tensors.numpy(), IMAGES)
        with pytest.raises(BadOption, match="'a' has 3 and array 'nnnn' has 30"):
            ArrayDataset(tmp_path / "x.npz", ("a", "nnnn"))
        monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "1000")
        if save is np.savez_compressed:
            with pytest.raises(CorruptSource, match=r"'nnnn' of .*x\.npz takes .*FEEDLINE_MAX_SAMPLE_BYTES"):
                ArrayDataset(tmp_path / "x.npz", "nnnn")
        assert len(ArrayDataset(tmp_path / "x.npz", "a")) == 3


class TestDamage:
    def test_rejects_files_that_are_not_arrays(self, tmp_path: Path) -> None:
        (tmp_path / "x.npy").write_bytes(b"hello" * 100)
        with pytest.raises(CorruptSource, match=r"not a \.npy file"):
            ArrayDataset(tmp_path / "x.npy")
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("readme.txt", "hello")
        with pytest.raises(BadOption, match=r"readme\.txt"):
            ArrayDataset(tmp_path / "x.npz")

    def test_bytes_after_the_array(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", IMAGES)
        with (tmp_path / "x.npy").open("ab") as file:
            np.save(file, LABELS)
        with pytest.raises(CorruptSource, match=r"x\.npy has \d+ bytes too many.*ends at byte \d+"):
            ArrayDataset(tmp_path / "x.npy")
        whole = np.load(tmp_path / "x.npy", mmap_mode="r")  # NumPy ignores them
        assert len(ArrayDataset(whole)) == COUNT

    def test_a_zip_with_a_damaged_directory(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npz"
        np.savez(path, label=LABELS, image=IMAGES)
        data = path.read_bytes()
        for wrong in (data[:100] + data[700:], data[:-1], data[:-22] + data[-21:], data + b"x" * 70_000):
            path.write_bytes(wrong)
            with pytest.raises(CorruptSource, match=r"x\.npz"):
                ArrayDataset(path)

    def test_fewer_samples_than_were_packed_are_detected(self, tmp_path: Path) -> None:
        path = feedline.pack([{"x": number} for number in range(9)], tmp_path / "a", format="npy", workers=0).path
        assert len(ArrayDataset(path)) == 9
        np.save(path / "x.npy", np.arange(5))
        with pytest.raises(CorruptSource, match=r"x\.npy has 5 samples, but 9 were packed"):
            ArrayDataset(path)

    def test_another_shape(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", IMAGES)
        source = ArrayDataset(tmp_path / "x.npy")
        np.save(tmp_path / "x.npy", IMAGES[:7])
        with pytest.raises(SourceChanged, match=r"was float32 of shape \(30, 3, 4\), and is now .*\(7, 3, 4\)"):
            source[0]

    @pytest.mark.parametrize(
        ("name", "fields", "kind", "named"),
        [
            ("none.npy", None, SourceError, r"none\.npy"),
            ("none.bin", None, SourceError, r"none\.bin"),
            ("", None, BadOption, "folder"),
            ("x.bin", None, BadOption, r"\.npy"),
            ("x.npz", "x", BadOption, r"'x'.*x\.npz.*'a'"),
        ],
    )
    def test_missing(self, tmp_path: Path, name: str, fields: Any, kind: type[Exception], named: str) -> None:
        (tmp_path / "x.bin").write_bytes(b"x")
        np.savez(tmp_path / "x.npz", a=IMAGES)
        with pytest.raises(kind, match=named):
            ArrayDataset(tmp_path / name, fields)

    def test_arrays_without_names_and_several_arrays_in_place_of_one(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", a=IMAGES)
        with pytest.raises(BadOption, match="several arrays"):
            ArrayDataset({"a": tmp_path / "x.npz"})
        with pytest.raises(BadOption, match="no names"):
            ArrayDataset(IMAGES, "x")


def test_large_arrays_that_are_not_contiguous_are_not_copied(tmp_path: Path) -> None:
    """The cost of a batch must depend on the size of the batch, not of the array."""
    column = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (1 << 34, 2), (0, 4))  # 128 GB, if copied
    kinds: list[Any] = [feedline.Loader, feedline.DataLoader]
    for kind in kinds:
        loader = kind(ArrayDataset(column), 4)
        assert tuple(next(iter(loader)).shape) == (4, 2)
        loader.close()


@pytest.mark.parametrize("shape", [(0, 1 << 62, 1 << 62), (1 << 62, 0, 1 << 62), (0, 1 << 70)])
def test_empty_arrays_of_impossible_shapes_are_rejected(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "a.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with pytest.raises(CorruptSource, match=r"a\.npy is not a \.npy file.* is larger than any memory"):
        ArrayDataset(path)
    with pytest.raises(CorruptSource, match=r"a\.npy does not contain an array.* is larger than any memory"):
        FileDataset(tmp_path, read="npy", cache=False)[0]
