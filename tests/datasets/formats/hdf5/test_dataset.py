"""HDF5 files as one dataset."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import feedline
from feedline.datasets import HDF5Dataset
from feedline.errors import BadOption, CorruptSource, MissingExtra, SourceChanged, SourceError
from feedline.samplers import BlockSampler
from feedline.tools.packing.inspection import inspect
from feedline.types import EngineName
from tests.datasets.contract import SourceContract

pytestmark = pytest.mark.sample(4)

COUNT = 31


def images(count: int = COUNT, first: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(first * 12, (first + count) * 12, dtype=np.float32).reshape(count, 3, 4)


def write(path: Path, count: int = COUNT, first: int = 0) -> Path:
    numbers = np.arange(first, first + count)
    with h5py.File(path, "w") as file:
        file["image"] = images(count, first)
        file.create_dataset("meta/label", data=numbers, chunks=(4,), maxshape=(None,))
        pairs = numbers[:, None] * [1, 2]
        file.create_dataset("packed", data=pairs, chunks=(4, 2), maxshape=(None, 2), compression="gzip", shuffle=True)
        file.create_dataset("name", data=[f"näme {number}" for number in numbers], dtype=h5py.string_dtype())
        file["size"] = 3  # a single value is not a field
    return path


def sample(number: int) -> dict[str, Any]:
    return {
        "image": images(1, number)[0],
        "meta/label": np.int64(number),
        "name": f"näme {number}",
        "packed": np.array([number, 2 * number]),
    }


class TestOneFile(SourceContract):
    takes_fields = True

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        self.path: Any = write(tmp_path / "data.h5")

    def make_source(self, **options: Any) -> HDF5Dataset:
        return HDF5Dataset(self.path, **options)

    def samples(self) -> list[Any]:
        return list(map(sample, range(COUNT)))

    def files(self) -> list[Path]:
        return [self.path]

    def rewrite(self) -> list[Any]:
        write(self.path, COUNT, 500)
        return list(map(sample, range(500, 500 + COUNT)))


@pytest.mark.slow
class TestSeveralFiles(TestOneFile):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        for number, (first, count) in enumerate([(0, 10), (10, 0), (10, 1), (11, 20)]):
            write(tmp_path / f"part-{number + 8}.h5", count, first)
        self.path = tmp_path / "part-*.h5"

    def files(self) -> list[Path]:
        return [self.path.parent / f"part-{number}.h5" for number in range(8, 12)]

    def rewrite(self) -> list[Any]:
        for path, (first, count) in zip(self.files(), [(0, 10), (10, 0), (10, 1), (11, 20)], strict=True):
            write(path, count, 500 + first)
        return list(map(sample, range(500, 500 + COUNT)))


@pytest.mark.slow
class TestRagged(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        self.path = tmp_path / "data.h5"
        with h5py.File(self.path, "w") as file:
            ragged = file.create_dataset("ragged", (COUNT,), h5py.vlen_dtype(np.dtype(">i2")), chunks=(4,))
            blob = file.create_dataset("blob", (COUNT,), h5py.vlen_dtype(np.uint8))
            blob.attrs["feedline"] = "bytes"
            for number in range(COUNT):
                ragged[number] = np.arange(number)
                blob[number] = np.frombuffer(bytes(range(number)), np.uint8)

    def make_source(self, **options: Any) -> HDF5Dataset:
        return HDF5Dataset(self.path, ("ragged", "blob"), **options)

    def samples(self) -> list[Any]:
        return [(np.arange(number, dtype=np.int16), bytes(range(number))) for number in range(COUNT)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "data.h5")


def test_samples_have_the_form_of_fields(path: Path) -> None:
    def first(fields: Any) -> Any:
        source = HDF5Dataset(path, fields)
        found = source[5]
        source.close()
        return found

    assert first("meta/label") == 5
    assert first("/meta/label") == 5
    assert first(("name", "meta/label")) == ("näme 5", 5)
    assert first(["name"]) == {"name": "näme 5"}
    assert first({"y": "meta/label"}) == {"y": 5}


def test_repr_names_fields_and_files(path: Path, tmp_path: Path) -> None:
    assert repr(HDF5Dataset(path)) == (
        "HDF5Dataset(31 samples of {'image': float32[3, 4], 'meta/label': int64[], 'name': str, 'packed': int64[2]})"
    )
    write(tmp_path / "more.h5")
    both = HDF5Dataset(tmp_path / "*.h5", "name")
    assert repr(both) == "HDF5Dataset(62 samples of str, in 2 files)"
    assert [Path(file).name for file in both.files] == ["data.h5", "more.h5"]
    assert both.fields == ("name",)


def test_construction_leaves_nothing_open_and_pickles_are_small(path: Path) -> None:
    source = HDF5Dataset(path)
    assert not source._files._opened
    assert len(pickle.dumps(source)) < 2000
    assert len(h5py.h5f.get_obj_ids(types=h5py.h5f.OBJ_FILE)) == 0


@pytest.mark.parametrize("engine", ["inline", "thread", "process"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_columns_in_both_loaders(path: Path, engine: EngineName, shuffle: bool) -> None:
    source = HDF5Dataset(path)
    workers = 0 if engine == "inline" else 2
    options: dict[str, Any] = {"shuffle": shuffle, "engine": engine}
    kinds: list[tuple[Any, str]] = [(feedline.Loader, "workers"), (feedline.DataLoader, "num_workers")]
    for kind, name in kinds:
        loader = kind(source, 4, **{name: workers}, **options)
        seen = []
        for batch in loader:
            labels = [int(label) for label in batch["meta/label"]]
            seen += labels
            assert np.array_equal(np.asarray(batch["image"]), images()[labels])
            assert np.array_equal(np.asarray(batch["packed"]), np.outer(labels, [1, 2]))
            assert list(batch["name"]) == [f"näme {label}" for label in labels]
        assert sorted(seen) == list(range(COUNT))
        loader.close()
    source.close()


def test_batches_equal_those_of_torch_s_loader(path: Path) -> None:
    source: Any = HDF5Dataset(path, ["image", "meta/label", "name", "packed"])
    parts = feedline.split(source, [0.7, 0.3], seed=1)
    several: list[Any] = [source, parts[1], torch.utils.data.Subset(source, [3, 1, 2])]
    whole: Any = torch.utils.data.ConcatDataset(several)
    for dataset in (source, *parts, whole):
        theirs = torch.utils.data.DataLoader(dataset, batch_size=5)
        ours = feedline.DataLoader(dataset, batch_size=5)
        for found, expected in zip(ours, theirs, strict=True):
            assert list(found) == list(expected)
            for name, value in expected.items():
                if isinstance(value, torch.Tensor):
                    assert found[name].dtype == value.dtype
                    assert torch.equal(found[name], value)
                else:
                    assert found[name] == value
    source.close()


def test_files_are_sorted_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        write(tmp_path / f"{number}.h5", 1, number)
    found = HDF5Dataset(tmp_path / "*.h5", "meta/label")
    assert [int(label) for label in found] == [1, 9, 10]
    found.close()
    listed = HDF5Dataset([str(tmp_path / "9.h5"), tmp_path / "1.h5"], "meta/label")
    assert [int(label) for label in listed] == [9, 1]
    listed.close()


@pytest.mark.slow
def test_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from feedline.datasets.formats.hdf5 import files

    monkeypatch.setattr(files, "_OPEN_AT_ONCE", 3)
    for number in range(8):
        write(tmp_path / f"{number}.h5", 2, 2 * number)
    source = HDF5Dataset(tmp_path / "*.h5")
    before = len(os.listdir("/proc/self/fd"))
    order = np.random.default_rng(0).permutation(16)
    for _ in range(2):
        assert [int(one["meta/label"]) for one in source.__getitems__(order)] == order.tolist()
        assert len(os.listdir("/proc/self/fd")) - before <= 9
    with ThreadPoolExecutor(4) as threads:
        asked = [np.random.default_rng(seed).permutation(16) for seed in range(40)]
        for found, expected in zip(threads.map(source.__getitems__, asked), asked, strict=True):
            assert [one["name"] for one in found] == [f"näme {number}" for number in expected]
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_closing_while_threads_read(path: Path) -> None:
    source = HDF5Dataset(path)
    done = threading.Event()

    def close() -> None:
        while not done.is_set():
            source.close()

    closer = threading.Thread(target=close)
    closer.start()
    try:
        for _ in range(60):
            assert source[7]["name"] == "näme 7"
            assert source.read_columns(np.array([3, 4]))["packed"].tolist() == [[3, 6], [4, 8]]
    finally:
        done.set()
        closer.join()
    source.close()


@pytest.mark.slow
def test_forks_while_threads_read(path: Path) -> None:
    source = HDF5Dataset(path)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            assert source[5]["name"] == "näme 5"

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = 0 if source[9]["name"] == "näme 9" else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.set()
        for reader in readers:
            reader.join()
    source.close()


def test_chunk_sizes_serve_as_blocks_of_a_sampler(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(50 * 8).reshape(50, 8), chunks=(8, 8), compression="lzf")
        file["y"] = np.arange(50)
    source = HDF5Dataset([path, path], ("x", "y"))
    assert source.chunk_sizes.tolist() == [8, 8, 8, 8, 8, 8, 2] * 2
    loader = feedline.Loader(source, 8, sampler=BlockSampler(source.chunk_sizes, window=2, seed=1))
    labels = [label for _, label in loader]
    assert sorted(np.concatenate(labels).tolist()) == sorted([*range(50), *range(50)])
    loader.close()
    source.close()
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"] = np.zeros((100, 1 << 15))
    assert HDF5Dataset(tmp_path / "plain.h5", "x").chunk_sizes.tolist() == [4] * 25


class TestInvalidArguments:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("none-*.h5", "No file matches"),
            ([], "empty"),
            (3, "not a path"),
            ([b"x"], "not a path"),
            (".", "has no files"),
        ],
    )
    def test_files(self, given: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises((BadOption, SourceError), match=message):
            HDF5Dataset(given)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"There is no file .*nothing\.h5"):
            HDF5Dataset(tmp_path / "nothing.h5")

    @pytest.mark.parametrize("fields", ["nothing", ("image", "nothing"), {"x": "nothing"}, "meta", "image/x", [3]])
    def test_missing_fields(self, path: Path, fields: Any) -> None:
        with pytest.raises(BadOption, match=r"has 'image', 'meta/label'"):
            HDF5Dataset(path, fields)

    def test_options(self, path: Path) -> None:
        with pytest.raises(BadOption, match="cache_bytes=-1"):
            HDF5Dataset(path, cache_bytes=-1)
        with pytest.raises(BadOption, match="names no field"):
            HDF5Dataset(path, [])
        with pytest.raises(BadOption, match="single value"):
            HDF5Dataset(path, "size")

    def test_fields_of_different_lengths(self, path: Path) -> None:
        with h5py.File(path, "a") as file:
            file["short"] = np.zeros(7)
        with pytest.raises(BadOption, match="'image' has 31 and 'short' has 7 rows"):
            HDF5Dataset(path)
        assert len(HDF5Dataset(path, "short")) == 7

    def test_no_fields_at_all(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "empty.h5", "w") as file:
            file["single"] = 3
            file["nothing"] = h5py.Empty("f")
        with pytest.raises(BadOption, match="no dataset with an axis"):
            HDF5Dataset(tmp_path / "empty.h5")

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (np.zeros((COUNT, 3, 5), np.float32), r"float32\[3, 4\] in .*float32\[3, 5\] in .*b\.h5"),
            (np.zeros((COUNT, 3, 4)), r"float32\[3, 4\] in .*float64\[3, 4\] in .*b\.h5"),
            (["x"] * COUNT, r"float32\[3, 4\] in .*str in .*b\.h5"),
        ],
    )
    def test_files_of_different_kinds(self, tmp_path: Path, data: Any, message: str) -> None:
        first = write(tmp_path / "a.h5")
        with h5py.File(tmp_path / "b.h5", "w") as file:
            file["image"] = data
        with pytest.raises(BadOption, match=message):
            HDF5Dataset([first, tmp_path / "b.h5"], "image")
        with pytest.raises(BadOption, match=r"b\.h5 has 'image'"):
            HDF5Dataset([first, tmp_path / "b.h5"], ("image", "name"))

    def test_a_file_that_is_not_hdf5(self, tmp_path: Path) -> None:
        for name, data in (("text", b"hello" * 100), ("nothing", b"")):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(CorruptSource, match="not an HDF5 file"):
                HDF5Dataset(tmp_path / name)

    def test_without_h5py(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(MissingExtra, match=r"pip install 'feedline\[hdf5\]'"):
            HDF5Dataset(path)


class TestDamage:
    @pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.999])
    def test_a_truncated_file(self, path: Path, share: float) -> None:
        size = path.stat().st_size
        os.truncate(path, int(size * share))
        with pytest.raises(CorruptSource, match=r"truncated|not an HDF5 file|cannot be"):
            HDF5Dataset(path)

    def test_a_file_that_is_truncated_while_it_is_read(self, path: Path) -> None:
        source = HDF5Dataset(path)
        assert source[0]["name"] == "näme 0"
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(SourceError):
            source[1]
        source.close()

    def test_a_compressed_chunk_that_cannot_be_decompressed(self, path: Path) -> None:
        with h5py.File(path) as file:
            place = file["packed"].id.get_chunk_info(2).byte_offset
        with path.open("r+b") as raw:
            raw.seek(place + 2)
            raw.write(b"\xff" * 8)
        source = HDF5Dataset(path, "packed")
        assert source[0].tolist() == [0, 0]
        with pytest.raises(CorruptSource, match="Chunk 2 of /packed"):
            source[8]
        loader = feedline.Loader(source, 4, on_error="skip", workers=2)
        assert sorted(int(row[0]) for batch in loader for row in batch) == [*range(8), *range(12, 31)]
        loader.close()
        source.close()

    def test_bytes_that_are_not_text(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["name"] = np.array([b"ok", b"\xff\xfe"])
        source = HDF5Dataset(tmp_path / "x.h5", "name")
        assert source[0] == "ok"
        with pytest.raises(CorruptSource, match="'name' in row 1"):
            source[1]
        source.close()

    @pytest.mark.slow
    def test_damaged_files_never_crash_the_process(self, path: Path) -> None:
        """Only for data that feedline reads itself: some damage to values of variable length crashes HDF5."""
        whole = path.read_bytes()
        script = (
            "import random, sys\nfrom feedline.datasets import HDF5Dataset\nfrom feedline.errors import FeedlineError\n"
            "path = sys.argv[1]\nwhole = open(path, 'rb').read()\nbad = 0\n"
            "for seed in range(80):\n"
            "    dice = random.Random(seed)\n"
            "    data = bytearray(whole)\n"
            "    for _ in range(20): data[dice.randrange(len(data))] = dice.randrange(256)\n"
            "    other = path + '.bad'\n"
            "    open(other, 'wb').write(data)\n"
            "    try:\n"
            "        source = HDF5Dataset(other, ('image', 'meta/label', 'packed'))\n"
            "        source.__getitems__(range(len(source)))\n"
            "        source.close()\n"
            "    except (FeedlineError, MemoryError) as exc: bad += 1\n"
            "print(bad)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert int(done.stdout) > 10
        assert path.read_bytes() == whole


WRITER = """
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "w", libver="latest") as file:
    x = file.create_dataset("x", (4, 2), "f4", maxshape=(None, 2), chunks=(3, 2))
    y = file.create_dataset("y", (4,), "i8", maxshape=(None,), chunks=(3,), compression="gzip")
    x[:] = np.arange(4)[:, None]; y[:] = np.arange(4)
    file.swmr_mode = True
    for line in sys.stdin:
        print("ready", flush=True)
        count = int(line)
        before = len(y)
        x.resize(count, axis=0); x[before:] = np.arange(before, count)[:, None]; x.flush()
        y.resize(count, axis=0); y[before:] = np.arange(before, count); y.flush()
        print("done", flush=True)
"""


class Writer:
    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def write(self, count: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "ready\n"
        assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        self._process.communicate()


class TestFilesThatAreBeingWritten:
    @pytest.fixture
    def writer(self, tmp_path: Path) -> Any:
        writer = Writer(tmp_path / "growing.h5")
        writer.write(4)
        yield writer
        writer.close()

    @pytest.mark.slow
    def test_reading_needs_swmr(self, tmp_path: Path, writer: Writer) -> None:
        with pytest.raises(SourceError, match="swmr=True"):
            HDF5Dataset(tmp_path / "growing.h5")

    @pytest.mark.slow
    def test_refresh_finds_added_samples(self, tmp_path: Path, writer: Writer) -> None:
        source = HDF5Dataset(tmp_path / "growing.h5", ("x", "y"), swmr=True)
        assert len(source) == 4
        assert [int(y) for _, y in source] == [0, 1, 2, 3]
        writer.write(8)
        assert len(source) == 4
        assert source.refresh() == len(source) == 8
        assert [int(y) for _, y in source] == list(range(8))
        assert [float(x[1]) for x, _ in source] == list(range(8))
        with pytest.raises(IndexError):
            source[8]
        source.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("engine", ["thread", "process"])
    def test_workers_see_added_samples(self, tmp_path: Path, writer: Writer, engine: EngineName) -> None:
        source = HDF5Dataset(tmp_path / "growing.h5", ("x", "y"), swmr=True)
        loader = feedline.Loader(source, 3, workers=2, engine=engine, persistent=True)
        assert [int(label) for _, labels in loader for label in labels] == list(range(4))
        writer.write(11)
        source.refresh()
        assert [int(label) for _, labels in loader for label in labels] == list(range(11))
        loader.close()
        source.close()

    @pytest.mark.slow
    def test_threads_read_during_a_refresh(self, tmp_path: Path, writer: Writer) -> None:
        source = HDF5Dataset(tmp_path / "growing.h5", ("x", "y"), swmr=True)
        done = threading.Event()
        wrong: list[Any] = []

        def read() -> None:
            try:
                while not done.is_set():
                    indices = np.arange(len(source))
                    x, y = source.read_columns(indices)
                    if x[:, 1].tolist() != indices.tolist() or y.tolist() != indices.tolist():
                        wrong.append((indices, x, y))
            except BaseException as exc:
                wrong.append(exc)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for count in range(5, 40):
            writer.write(count)
            assert source.refresh() == count
        done.set()
        for reader in readers:
            reader.join()
        assert not wrong
        source.close()

    def test_rejects_fewer_samples_than_before(self, tmp_path: Path, path: Path) -> None:
        source = HDF5Dataset(path, "name", swmr=False)
        write(path, 5)
        with pytest.raises(SourceChanged, match="it had 31 samples of str and now has 5"):
            source.refresh()


class TestDataInOtherFiles:
    """Data in other files is rejected by default."""

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

    @pytest.mark.parametrize("name", ["link", "soft", "round", "stored", "virtual", "group/other/x", "/link"])
    def test_fields_with_data_in_other_files_are_rejected(self, path: Path, name: str) -> None:
        with pytest.raises(BadOption, match=f"{name!r} in .*main.h5 has its data in another file.*external=True"):
            HDF5Dataset(path, name)

    def test_rejected_if_all_fields_are_read(self, path: Path) -> None:
        with pytest.raises(BadOption, match=r"'stored' in .* has its data in another file"):
            HDF5Dataset(path)

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

    def test_inspect_reads_no_other_file(self, path: Path) -> None:
        with pytest.raises(BadOption, match="has its data in another file"):
            inspect(str(path))
        assert inspect(str(path), fields=["own"])["samples"] == 5
