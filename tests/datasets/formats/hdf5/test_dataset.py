"""HDF5 files as one dataset."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import feedline
from feedline.datasets import HDF5Dataset
from feedline.datasets.formats.hdf5 import dataset as dataset_module
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.samplers import BlockSampler
from feedline.tools.write.inspection import inspect
from tests.datasets.contract import SourceContract

COUNT = 31


def write(path: Path, count: int = COUNT, first: int = 0) -> Path:
    numbers = np.arange(first, first + count)
    with h5py.File(path, "w") as file:
        file["image"] = np.arange(first * 12, (first + count) * 12, dtype=np.float32).reshape(count, 3, 4)
        file.create_dataset("meta/label", data=numbers, chunks=(4,), maxshape=(None,))
        pairs = numbers[:, None] * [1, 2]
        file.create_dataset("packed", data=pairs, chunks=(4, 2), maxshape=(None, 2), compression="gzip", shuffle=True)
        file.create_dataset("name", data=[f"näme {number}" for number in numbers], dtype=h5py.string_dtype())
        file["size"] = 3  # a single value is not a field
    return path


def sample(number: int) -> dict[str, Any]:
    return {
        "image": np.arange(number * 12, number * 12 + 12, dtype=np.float32).reshape(3, 4),
        "meta/label": np.int64(number),
        "name": f"näme {number}",
        "packed": np.array([number, 2 * number]),
    }


class TestOneFile(SourceContract):
    takes_fields = True
    parts: tuple[tuple[int, int], ...] = ((0, COUNT),)

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.write(0)

    def write(self, first: int) -> None:
        for path, (start, count) in zip(self.files(), self.parts, strict=True):
            write(path, count, first + start)

    def files(self) -> list[Path]:
        return [self.folder / f"part-{number + 8}.h5" for number in range(len(self.parts))]

    def rewrite(self) -> list[Any]:
        self.write(500)
        return list(map(sample, range(500, 500 + COUNT)))

    def make_source(self, **options: Any) -> HDF5Dataset:
        return HDF5Dataset(self.folder / "part-*.h5" if len(self.parts) > 1 else self.files()[0], **options)

    def samples(self) -> list[Any]:
        return list(map(sample, range(COUNT)))


@pytest.mark.slow
class TestSeveralFiles(TestOneFile):
    parts = ((0, 10), (10, 0), (10, 1), (11, 20))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "data.h5")


def test_repr_files_and_fields(path: Path, tmp_path: Path) -> None:
    assert repr(HDF5Dataset(path)) == (
        "HDF5Dataset(31 samples of {'image': float32[3, 4], 'meta/label': int64[], 'name': str, 'packed': int64[2]})"
    )
    assert not h5py.h5f.get_obj_ids(types=h5py.h5f.OBJ_FILE)  # construction leaves nothing open
    write(tmp_path / "more.h5")
    both = HDF5Dataset(tmp_path / "*.h5", "name")
    assert repr(both) == "HDF5Dataset(62 samples of str, in 2 files)"
    assert [Path(file).name for file in both.files] == ["data.h5", "more.h5"]
    assert both.fields == ("name",)


def test_files_are_sorted_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        write(tmp_path / f"{number}.h5", 1, number)
    listed: list[tuple[Any, list[int]]] = [(tmp_path / "*.h5", [1, 9, 10]), (tmp_path, [1, 9, 10])]
    listed.append(([str(tmp_path / "9.h5"), tmp_path / "1.h5"], [9, 1]))
    for paths, expected in listed:
        found = HDF5Dataset(paths, "meta/label")
        assert [int(label) for label in found] == expected
        found.close()


@pytest.mark.slow
def test_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_module, "_OPEN_AT_ONCE", 3)
    for number in range(8):
        write(tmp_path / f"{number}.h5", 2, 2 * number)
    source = HDF5Dataset(tmp_path / "*.h5")
    before = len(os.listdir("/proc/self/fd"))
    order = np.random.default_rng(0).permutation(16)
    for _ in range(2):
        assert [int(one["meta/label"]) for one in source.__getitems__(order)] == order.tolist()
        assert len(os.listdir("/proc/self/fd")) - before <= 9
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_chunk_sizes_serve_as_blocks_of_a_sampler(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(50 * 8).reshape(50, 8), chunks=(8, 8), compression="lzf")
        file["y"] = np.arange(50)
        file["z"] = np.zeros((50, 1 << 15))
    source = HDF5Dataset([path, path], ("x", "y"))
    assert source.chunk_sizes.tolist() == [8, 8, 8, 8, 8, 8, 2] * 2
    loader = feedline.Loader(source, 8, sampler=BlockSampler(source.chunk_sizes, window=2, seed=1))
    assert sorted(int(label) for _, labels in loader for label in labels) == sorted([*range(50), *range(50)])
    source.close()
    assert HDF5Dataset(path, "z").chunk_sizes.tolist() == [4] * 12 + [2]


class TestInvalidArguments:
    @pytest.mark.parametrize("given", ["none-*.h5", [], 3, [b"x"], ".", "nothing.h5"])
    def test_files(self, given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises((BadOption, SourceError)):
            HDF5Dataset(given)

    @pytest.mark.parametrize("fields", ["meta", "image/x", "size", ("image", "short")])
    def test_fields(self, path: Path, fields: Any) -> None:
        with h5py.File(path, "a") as file:
            file["short"] = np.zeros(7)
        with pytest.raises(BadOption, match=r"data\.h5"):
            HDF5Dataset(path, fields)
        assert len(HDF5Dataset(path, "short")) == 7
        with pytest.raises(BadOption, match="cache_bytes=-1"):
            HDF5Dataset(path, "short", cache_bytes=-1)

    def test_no_fields_at_all(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "empty.h5", "w") as file:
            file["single"] = 3
            file["nothing"] = h5py.Empty("f")
        with pytest.raises(BadOption, match=r"empty\.h5"):
            HDF5Dataset(tmp_path / "empty.h5")

    @pytest.mark.parametrize("data", [np.zeros((COUNT, 3, 5), np.float32), np.zeros((COUNT, 3, 4)), ["x"] * COUNT])
    def test_files_of_different_kinds(self, tmp_path: Path, data: Any) -> None:
        first = write(tmp_path / "a.h5")
        with h5py.File(tmp_path / "b.h5", "w") as file:
            file["image"] = data
        for fields in ("image", ("image", "name")):
            with pytest.raises(BadOption, match=r"'image'.* in .*b\.h5|b\.h5 has 'image'"):
                HDF5Dataset([first, tmp_path / "b.h5"], fields)


class TestDamage:
    def test_a_compressed_chunk_that_cannot_be_decompressed(self, path: Path) -> None:
        with h5py.File(path) as file:
            place = file["packed"].id.get_chunk_info(2).byte_offset
        with path.open("r+b") as raw:
            raw.seek(place + 2)
            raw.write(b"\xff" * 8)
        source = HDF5Dataset(path, "packed")
        assert source[0].tolist() == [0, 0]
        with pytest.raises(CorruptSource, match=r"Chunk 2 of /packed in .*data\.h5"):
            source[8]
        loader = feedline.Loader(source, 4, on_error="skip", workers=2)
        assert sorted(int(row[0]) for batch in loader for row in batch) == [*range(8), *range(12, 31)]
        loader.close()
        source.close()

    @pytest.mark.slow
    def test_a_file_that_is_being_written(self, tmp_path: Path) -> None:
        """Also in SWMR mode, which other processes could read."""
        path = tmp_path / "growing.h5"
        writer = (
            "import h5py, sys\nfile = h5py.File(sys.argv[1], 'w', libver='latest')\nfile['x'] = [1, 2]\n"
            "file.swmr_mode = True\nprint('ready', flush=True)\nsys.stdin.read()\n"
        )
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", writer, str(path)], **pipes) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
            with pytest.raises(SourceError, match=r"growing\.h5 is open for writing"):
                HDF5Dataset(path)
            process.stdin.close()


class TestDataInOtherFiles:
    """It is rejected: the author of the file would decide which files are read."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        other = str(tmp_path / "other.h5")
        with h5py.File(other, "w") as file:
            file["x"] = np.arange(5)
        path = tmp_path / "main.h5"
        with h5py.File(path, "w") as file:
            file["own"] = np.arange(5)
            file["link"] = h5py.ExternalLink(other, "/x")
            file["soft"] = h5py.SoftLink("/group/other/x")
            file["round"] = h5py.SoftLink("/round")
            file["group/near"] = h5py.SoftLink("inner/x")
            file["group/inner/x"] = np.arange(5)
            file["group/other"] = h5py.ExternalLink(other, "/")
            file.create_dataset("stored", (5,), "i8", external=[(other, 0, 40)])
            layout = h5py.VirtualLayout((5,), "i8")
            layout[...] = h5py.VirtualSource(other, "x", (5,))
            file.create_virtual_dataset("virtual", layout)
        return path

    @pytest.mark.parametrize("name", ["link", "soft", "round", "stored", "virtual", "group/other/x", "/link", None])
    def test_fields_with_data_in_other_files_are_rejected(self, path: Path, name: str | None) -> None:
        with pytest.raises(BadOption, match=f"{name or 'stored'!r} in .*main.h5 has its data in another file"):
            HDF5Dataset(path, name)
        with pytest.raises(BadOption, match="has its data in another file"):
            inspect(str(path))

    @pytest.mark.parametrize("name", ["own", "group/near", "/group/inner/x"])
    def test_fields_with_data_in_the_same_file_are_read(self, path: Path, name: str) -> None:
        dataset = HDF5Dataset(path, name)
        assert [int(value) for value in dataset] == [0, 1, 2, 3, 4]
        dataset.close()

    def test_a_file_replaced_by_one_with_an_external_link(self, path: Path, tmp_path: Path) -> None:
        dataset = HDF5Dataset(path, "own")
        with h5py.File(tmp_path / "new.h5", "w") as file:
            file["own"] = h5py.ExternalLink("other.h5", "/x")
        (tmp_path / "new.h5").replace(path)
        with pytest.raises(SourceChanged):
            dataset[1]
        dataset.close()
