"""Each sample is made once, by any worker, and all workers share it."""

import asyncio
import multiprocessing
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.datasets import ArrayDataset
from feedline.datasets.derived.cache import CachedDataset, PrecomputedDataset
from feedline.datasets.derived.cache.keepable import RandomWatch
from feedline.datasets.derived.cache.sample_store import FILE
from feedline.datasets.derived.cache.shared_bytes import SharedMemory
from feedline.errors import BadOption, PerformanceWarning, SourceError
from feedline.memory.sharing.records import NotARecord
from feedline.testing.asserting import assert_same
from feedline.types import EngineName
from tests.datasets.contract import SourceContract


class Count:
    """A counter that all workers add to. It does without torch, which spawned workers would have to import."""

    def __init__(self) -> None:
        self._memory = SharedMemory(4096)

    def __iadd__(self, count: int) -> "Count":
        with self._memory.locked():
            self._memory.write(0, (int(self) + count).to_bytes(8, "little"))
        return self

    def __int__(self) -> int:
        return int.from_bytes(self._memory.read(0, 8), "little")

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    __hash__ = None  # type: ignore[assignment]


class Numbers:
    """Counts how often its samples are made."""

    def __init__(self, count: int = 60, shift: int = 0) -> None:
        self.count = count
        self.shift = shift
        self.made = Count()

    def fingerprint(self) -> str:
        return f"{self.count} {self.shift}"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.made += 1
        return {"x": np.full(10, index + self.shift, np.float32), "index": index, "name": f"sample {index}"}


class Together(Numbers):
    """Makes several samples in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class TestMemory(SourceContract):
    def test_columns_are_what_the_default_collate_function_makes_of_samples(self) -> None:
        """Not run: a skipped test keeps its frame alive, and with it the memory."""

    @pytest.fixture(autouse=True)
    def room(self) -> None:
        self.options: dict[str, Any] = {"memory": "1MB"}

    def make_source(self, **options: Any) -> CachedDataset:
        return CachedDataset(Together(30), **self.options, **options)

    def samples(self) -> list[Any]:
        return [Numbers()[index] for index in range(30)]


class TestDisk(TestMemory):
    @pytest.fixture(autouse=True)
    def room(self, tmp_path: Path) -> None:
        self.options = {"disk": tmp_path / "ünïcode cache"}


def go_through(cached: CachedDataset, **options: Any) -> None:
    indices = []
    for batch in feedline.Loader(cached, 7, shuffle=True, **options):
        assert (batch["x"][:, 3] == batch["index"] + cached.dataset.shift).all()
        indices += batch["index"].tolist()
    assert sorted(indices) == list(range(len(cached)))


@pytest.mark.parametrize(
    ("where", "workers", "options"),
    [
        ("both", 0, {}),
        ("memory", 3, {"engine": "thread"}),
        ("both", 3, {"start_method": "fork"}),
        pytest.param("both", 2, {"start_method": "spawn"}, marks=pytest.mark.slow),
        ("disk", 2, {"start_method": "fork", "persistent": True}),
    ],
    ids=str,
)
def test_every_sample_is_made_once_for_all_workers(
    where: str, workers: int, options: dict[str, Any], tmp_path: Path
) -> None:
    room: dict[str, Any] = {"memory": "1MB"} if where != "disk" else {}
    if where != "memory":
        room["disk"] = tmp_path
    cached = CachedDataset(Numbers(), **room)
    loader = feedline.Loader(cached, 7, shuffle=True, workers=workers, **options)
    for _ in range(3):
        assert sorted(index for batch in loader for index in batch["index"].tolist()) == list(range(60))
    loader.close()
    assert cached.dataset.made == 60
    stats = cached.stats()
    assert (stats["hits"], stats["misses"], stats["damaged"], stats["random"]) == (120, 60, 0, 0)
    assert stats["disk_hits" if where == "disk" else "memory_hits"] == 120
    for place in ("memory", "disk") if where == "both" else (where,):
        assert stats[f"{place}_samples"] == 60
    cached.close()


def test_cached_samples_equal_the_originals() -> None:
    torch = pytest.importorskip("torch")
    values = [
        (np.float32(2.5), {"a": [1, "two", None, True]}, b"bytes"),
        (torch.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), 2**100, "ü\x00"),
        (np.array([], np.int16), np.array("text"), float("inf"), np.datetime64("2020-01-01")),
    ]
    cached = CachedDataset(values, memory="1MB")
    for index in range(3):
        first, second = cached[index], cached[index]
        for sample in (first, second):
            assert [type(value) for value in sample] == [type(value) for value in values[index]]
            for found, expected in zip(sample, values[index], strict=True):
                if isinstance(expected, torch.Tensor):
                    assert torch.equal(found, expected)
                else:
                    assert_same(found, expected)
    assert cached.stats()["hits"] == 3


def test_callers_get_arrays_of_their_own_or_read_only_views() -> None:
    cached = CachedDataset([np.zeros(3)], memory="1MB")
    for _ in range(3):
        array = cached[0]
        assert array.tolist() == [0, 0, 0]
        array[:] = 7
    cached = CachedDataset([np.zeros(3)], memory="1MB", copy=False)
    cached[0]
    array = cached[0]
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 7
    del cached
    assert array.tolist() == [0, 0, 0]  # it keeps the memory alive


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_full_cache_keeps_the_first_samples(where: str, tmp_path: Path) -> None:
    limit = 8192 + 30 * 1000
    room: dict[str, Any] = {"memory": limit} if where == "memory" else {"disk": tmp_path, "disk_limit": limit}
    cached = CachedDataset([np.full(100, index) for index in range(100)], **room)
    for _ in range(4):
        for index in random.Random(3).sample(range(100), 100):
            assert cached[index][50] == index
    stats = cached.stats()
    assert 25 <= stats[f"{where}_samples"] <= 40
    assert stats["hits"] == 3 * stats[f"{where}_samples"]  # with LRU and random order there would be far fewer
    assert stats[f"{where}_bytes"] <= stats[f"{where}_limit"] == limit
    cached.close()
    assert where == "memory" or (tmp_path / FILE).stat().st_size <= limit


def test_a_full_disk_counts_as_a_full_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = CachedDataset(Numbers(), disk=tmp_path)
    assert cached[0]["index"] == 0

    def refuse(fd: int, data: bytes, offset: int) -> int:
        if len(data) > 100:
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", refuse)
    for index in range(20):
        assert cached[index]["index"] == index
    monkeypatch.undo()
    assert cached[0]["index"] == 0
    assert cached.stats()["disk_hits"] == 2
    cached.close()


def test_samples_on_disk_move_to_memory(tmp_path: Path) -> None:
    first = CachedDataset(Numbers(), disk=tmp_path)
    go_through(first)
    first.close()
    cached = CachedDataset(Numbers(), disk=tmp_path, memory="1MB")
    go_through(cached)
    go_through(cached)
    stats = cached.stats()
    assert (stats["disk_hits"], stats["memory_hits"], stats["misses"]) == (60, 60, 0)
    cached.close()


def test_damaged_and_truncated_samples_are_made_again(tmp_path: Path) -> None:
    cached = CachedDataset(Numbers(), disk=tmp_path)
    go_through(cached)
    data = bytearray((tmp_path / FILE).read_bytes())
    data[10_000] ^= 1
    (tmp_path / FILE).write_bytes(data[:-300])
    go_through(cached)
    damaged = cached.stats()["damaged"]
    assert damaged >= 2
    assert cached.dataset.made == 60 + damaged
    go_through(cached)
    assert cached.dataset.made == 60 + damaged
    cached.close()


@pytest.mark.parametrize("change", ["transform", "length", "version", "damaged head"])
def test_another_dataset_drops_the_disk_cache(change: str, tmp_path: Path) -> None:
    old = CachedDataset(Numbers(), disk=tmp_path)
    go_through(old)
    other = Numbers(59 if change == "length" else 60, shift=int(change == "transform"))
    if change == "damaged head":
        os.replace(shutil.copy(tmp_path / FILE, tmp_path / f"{FILE}.copy"), tmp_path / FILE)
        with open(tmp_path / FILE, "r+b") as file:
            file.write(b"nonsense")
    cached = CachedDataset(other, disk=tmp_path, version=2 if change == "version" else None)
    with pytest.warns(PerformanceWarning, match="damaged, or belonged to another version, or to a dataset"):
        go_through(cached)
    assert cached.dataset.made == len(cached)
    go_through(old)  # continues with the file that it has open
    assert old.dataset.made == 60
    cached.close()
    old.close()
    again = CachedDataset(other, disk=tmp_path, version=2 if change == "version" else None)
    go_through(again)
    assert again.stats()["misses"] == 0
    again.close()


def test_two_datasets_that_share_a_folder_by_mistake_stay_apart(tmp_path: Path) -> None:
    one, other = CachedDataset(Numbers(20), disk=tmp_path), CachedDataset(Numbers(20, shift=100), disk=tmp_path)
    assert one[0]["x"][0] == 0
    with pytest.warns(PerformanceWarning, match="two datasets share"):
        assert [other[index]["x"][0] for index in range(3)] == [100, 101, 102]
    loader = feedline.Loader(one, 5, workers=1)
    for _ in range(2):
        assert [batch["x"][:, 0].tolist() for batch in loader] == [list(range(low, low + 5)) for low in (0, 5, 10, 15)]
    assert [other[index]["x"][0] for index in range(20)] == list(range(100, 120))
    one.close()
    other.close()


def test_a_dataset_that_changes_between_epochs_drops_the_cache(tmp_path: Path) -> None:
    cached = CachedDataset(Numbers(), memory="1MB", disk=tmp_path)
    loader = feedline.Loader(cached, 10, workers=2)
    assert [batch["x"][0, 0] for batch in loader] == [0, 10, 20, 30, 40, 50]
    cached.dataset.shift = 5
    with pytest.warns(PerformanceWarning, match="has changed"):
        assert [batch["x"][0, 0] for batch in loader] == [5, 15, 25, 35, 45, 55]
    assert [batch["x"][0, 0] for batch in loader] == [5, 15, 25, 35, 45, 55]
    assert cached.dataset.made == 120
    cached.close()


def test_a_persistent_worker_with_the_old_dataset_does_not_touch_the_new_cache(tmp_path: Path) -> None:
    cached = CachedDataset(Numbers(), memory="1MB", disk=tmp_path)
    loader = feedline.Loader(cached, 10, workers=2, persistent=True)
    list(loader)
    cached.dataset.shift = 5
    with pytest.warns(PerformanceWarning):
        list(loader)
    misses = cached.stats()["misses"]
    list(loader)
    assert cached.stats()["misses"] == misses + len(cached), "persistent workers make every sample and store none"
    assert cached[3]["x"][0] == 8
    loader.close()
    assert cached[4]["x"][0] == 9
    cached.close()


# -- random samples --------------------------------------------------------------------------------------------------


class Random:
    def __init__(self, source: str) -> None:
        self.source = source

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> float:
        if self.source == "rng":
            return float(feedline.rng().random())
        if self.source == "numpy":
            return float(np.random.normal())  # every other normal number comes from NumPy's buffer
        if self.source == "torch":
            return float(pytest.importorskip("torch").rand(()))
        return random.random() if self.source == "python" else random.Random().random()


@pytest.mark.parametrize("source", ["rng", "numpy", "torch", "python"])
def test_random_samples_are_not_cached_by_default(source: str) -> None:
    cached = CachedDataset(Random(source), memory="1MB")
    with pytest.warns(PerformanceWarning, match="draws random numbers") as caught:
        epochs = [[cached[index] for index in range(20)] for _ in range(2)]
    assert len(caught) == 1
    assert not set(epochs[0]) & set(epochs[1])
    assert cached.stats()["random"] == 40
    for freeze in (True, False):
        drawing = Random(source if freeze else "its own")  # a generator of its own is not watched
        cached = CachedDataset(drawing, memory="1MB", freeze_random=freeze)
        assert [cached[index] for index in range(20)] == [cached[index] for index in range(20)]


def test_random_samples_are_not_cached_in_workers() -> None:
    cached = CachedDataset(Random("rng"), memory="1MB")
    loader = feedline.Loader(cached, 5, workers=2, engine="thread", seed=3)
    with pytest.warns(PerformanceWarning):
        epochs = [np.concatenate(list(loader)).tolist() for _ in range(2)]
    assert not set(epochs[0]) & set(epochs[1])
    plain = feedline.Loader(Random("rng"), 5, seed=3)
    assert epochs == [np.concatenate(list(plain)).tolist() for _ in range(2)]


def _augment(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "x": sample["x"] + feedline.rng().random(dtype=np.float32)}


# -- crashes and bad options -----------------------------------------------------------------------------------------


def _fill(path: Path, first: int) -> None:
    cached = CachedDataset(Numbers(200), disk=path)
    for index in range(200):
        assert cached[(index + first) % 200]["index"] == (index + first) % 200
    cached.close()


def test_several_programs_share_one_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    programs = [context.Process(target=_fill, args=(tmp_path, first)) for first in (0, 50, 100)]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
        assert program.exitcode == 0
        program.close()
    cached = CachedDataset(Numbers(200), disk=tmp_path)
    go_through(cached)
    assert cached.dataset.made == 0
    cached.close()


def test_exceptions_are_not_cached() -> None:
    class Failing(Numbers):
        fails = True

        def __getitem__(self, index: int) -> dict[str, Any]:
            if self.fails:
                raise RuntimeError("no sample today")
            return super().__getitem__(index)

    dataset = Failing()
    cached = CachedDataset(dataset, memory="1MB")
    with pytest.raises(RuntimeError, match="no sample today"):
        cached[3]
    dataset.fails = False
    assert cached[3]["index"] == 3
    watch = RandomWatch()
    with pytest.raises(KeyError), watch.watching():
        raise KeyError
    feedline.rng()
    assert watch.generators == [], "an exception ends the watch"


def test_samples_that_are_not_records_need_pickle(tmp_path: Path) -> None:
    with pytest.raises(NotARecord, match="Or pass pickle=True"):
        CachedDataset([{1, 2}], memory="1MB")[0]
    for _ in range(2):
        cached = CachedDataset([{1, 2}], disk=tmp_path, pickle=True)
        assert cached[0] == {1, 2}
        cached.close()
    assert cached.stats()["disk_hits"] == 1
    cached.close()


class Epochs(Numbers):
    def set_epoch(self, epoch: int) -> None:
        self.shift = epoch


class Asynchronous(Numbers):
    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        await asyncio.sleep(0.001 * (index % 3))
        return super().__getitem__(index)


class Half(Numbers):
    async def __getitems__(self, indices: list[int]) -> Any:
        return indices


@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("process", 2)])
def test_asynchronous_datasets(engine: EngineName, workers: int, tmp_path: Path) -> None:
    cached = CachedDataset(Asynchronous(), memory="1MB", disk=tmp_path, transform=_augment)
    loader = feedline.Loader(cached, 7, workers=workers, engine=engine, seed=9)
    plain = feedline.Loader(CachedDataset(Numbers(), memory="1MB", transform=_augment), 7, seed=9)
    for _ in range(2):
        for found, expected in zip(loader, plain, strict=True):
            assert found["x"].tolist() == expected["x"].tolist()
    assert cached.dataset.made == 60
    assert cached.stats()["memory_hits"] == 60
    cached.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CachedDataset([1]), "needs memory or disk space"),
        (lambda: CachedDataset([1], memory="lots"), "not a number of bytes"),
        (lambda: CachedDataset([1], memory=0), "less than 1"),
        (lambda: CachedDataset([1], memory="99999TB"), "this machine has"),
        (lambda: CachedDataset([1], memory="1MB", disk_limit=5), "without disk="),
        (lambda: CachedDataset(range(10**7), memory="1MB")[0], "too little"),
        (lambda: CachedDataset(iter([1]), memory="1MB"), "once"),
        (lambda: CachedDataset(Epochs(), memory="1MB"), "depend on the epoch"),
        (lambda: CachedDataset(Half(), memory="1MB"), "Make both async"),
    ],
)
def test_bad_options_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()


def test_folders_that_are_not_for_a_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SourceError, match="file"):
        CachedDataset([1], disk=tmp_path / "file")[0]
    with pytest.raises(BadOption, match="'file'"):
        CachedDataset([1], disk=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_other_files_in_a_cache_folder_are_kept(tmp_path: Path) -> None:
    cached = CachedDataset([1, 2], disk=tmp_path)
    assert list(cached) == [1, 2]
    (tmp_path / "notes.txt").write_text("mine")
    cached.clear()
    cached.close()
    other = CachedDataset([3, 4], disk=tmp_path)
    with pytest.warns(PerformanceWarning):
        assert list(other) == [3, 4]
    other.close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_cache_does_not_drop_precomputed_samples(tmp_path: Path) -> None:
    feedline.precompute([1, 2], tmp_path, progress=False).close()
    cached = CachedDataset([1, 2], disk=tmp_path)  # of the same dataset: every sample is there
    assert list(cached) == [1, 2]
    assert cached.stats()["misses"] == 0
    with pytest.raises(BadOption, match=r"precompute stored"):
        cached.clear()
    cached.close()
    with pytest.raises(BadOption, match=r"precompute stored"):
        CachedDataset([3, 4], disk=tmp_path)[0]
    assert PrecomputedDataset(tmp_path)[1] == 2


def test_has_getitems_only_if_the_dataset_has_it() -> None:
    assert list(CachedDataset([], memory="1MB")) == []
    assert CachedDataset(Numbers(), memory="1MB").__getitems__ is None
    cached = CachedDataset(ArrayDataset(np.arange(50)), memory="1MB")
    several = cached.__getitems__
    assert several is not None
    assert several([3, 3, 4]) == [3, 3, 4]


def test_clear_drops_everything(tmp_path: Path) -> None:
    cached = CachedDataset(Numbers(), memory="1MB", disk=tmp_path)
    go_through(cached)
    cached.clear()
    assert cached.stats()["memory_samples"] == cached.stats()["disk_samples"] == 0
    go_through(cached)
    assert cached.dataset.made == 120
    cached.close()
