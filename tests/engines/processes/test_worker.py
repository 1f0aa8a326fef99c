"""The worker's side: what it does with memory that is not its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, default_collate

from feedline import DataLoader, Loader
from feedline.engines.processes.worker import ArenaView
from feedline.transport.arena import Arena


class Cached(Dataset[torch.Tensor]):
    """Collates on its own, and keeps what came out."""

    def __init__(self) -> None:
        self.cache: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return 80

    @staticmethod
    def number(index: int) -> int:
        return (index * 7 + index // 3) % 5

    def __getitem__(self, index: int) -> torch.Tensor:
        number = self.number(index)
        if number not in self.cache:
            self.cache[number] = default_collate([torch.full((1000,), float(number))] * 2)
        return self.cache[number]


def test_what_a_dataset_keeps_is_never_overwritten_by_other_batches() -> None:
    loader = DataLoader(Cached(), 2, num_workers=2)
    for place, batch in enumerate(loader):
        expected = [Cached.number(2 * place), Cached.number(2 * place + 1)]
        assert [sample.unique().tolist() for sample in batch] == [[number] for number in expected]


class MixWithTheLast:
    """A collate function that remembers the batch before: mixup, for one."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = default_collate(samples)
        last, self.last = self.last, batch
        return batch, torch.zeros_like(batch) if last is None else last.clone()


@pytest.mark.parametrize("memory_budget", [None, 0])
@pytest.mark.parametrize("keep", [False, True])
def test_what_a_collate_function_keeps_is_never_overwritten(memory_budget: int | None, keep: bool) -> None:
    dataset = torch.arange(800.0).reshape(400, 2)

    def batches(make: Callable[..., Any], **options: Any) -> list[Any]:
        kept, seen = [], []
        for batch in make(dataset, 2, num_workers=1, collate_fn=MixWithTheLast(), **options):
            seen.append([part.clone() for part in batch])
            if keep:
                kept.append(batch)
        return seen

    ours = batches(DataLoader, memory_budget=memory_budget)
    for mine, theirs in zip(ours, batches(TorchLoader), strict=True):
        assert all(map(torch.equal, mine, theirs))


class Scribbler:
    """Keeps the last batch and writes into it later; the training loop must not see that in other batches."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, samples: list[Any]) -> torch.Tensor:
        if self.last is not None:
            self.last.fill_(-1)
        self.last = default_collate(samples)
        result: torch.Tensor = self.last
        return result


def test_what_a_collate_function_writes_later_reaches_no_other_batch() -> None:
    numbers: Any = torch.arange(400.0).reshape(200, 2)
    loader = DataLoader(numbers, 2, num_workers=2, collate_fn=Scribbler())
    seen = [batch.clone() for batch in loader]
    assert torch.equal(torch.cat(seen), numbers)


class Kinds(Dataset[dict[str, Any]]):
    """Samples of all usual kinds."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "tensor": torch.full((3, 8), float(index)),
            "array": np.full((4,), index, np.float32),
            "number": index,
            "text": str(index),
            "pair": (index, torch.tensor(index)),
        }


def never_moves(*_: object) -> None:
    raise AssertionError("a usual batch was taken for one that somebody keeps")


@pytest.mark.parametrize("collate_fn", [None, list, lambda samples: [sample["tensor"] for sample in samples]])
def test_usual_batches_leave_nothing_behind_in_the_worker(collate_fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArenaView, "part_with", never_moves)
    assert len(list(DataLoader(Kinds(), 4, num_workers=2, collate_fn=collate_fn))) == 16


def test_usual_batches_of_numpy_leave_nothing_behind_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArenaView, "part_with", never_moves)
    dataset = {"x": np.arange(3000).reshape(1000, 3), "y": np.arange(1000)}
    assert len(list(Loader(dataset, 10, workers=2))) == 100


class Failing(Cached):
    def __getitem__(self, index: int) -> torch.Tensor:
        sample = super().__getitem__(index)
        if index % 3 == 2:
            raise ValueError(f"sample {index}")
        return sample


def test_what_a_dataset_keeps_survives_failures() -> None:
    batches = iter(DataLoader(Failing(), 1, num_workers=1))
    failures = 0
    for index in range(80):
        try:
            assert next(batches).unique().tolist() == [Cached.number(index)]
        except ValueError:
            failures += 1
    assert failures == 26


# -- without a slot ---


class Large(Dataset[torch.Tensor]):
    """Also reports which files of /dev/shm the worker has mapped or open."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((50_000,), float(index))


class ReportShm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, samples: list[Any]) -> Any:
        before = self.mapped()
        batch = default_collate(samples)
        if self.mapped() - before:
            self.path.write_text("\n".join(self.mapped() - before))
        return batch

    @staticmethod
    def mapped() -> set[str]:
        return {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line}


@pytest.mark.parametrize("memory_budget", [None, 0])
def test_no_batch_ever_uses_the_systems_shared_memory(
    tmp_path: Path, memory_budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is 64 MB in a container. Torch's default collate function makes a file there per tensor."""
    if memory_budget == 0:
        monkeypatch.setattr(Arena, "acquire", lambda *_: -1)
    report = tmp_path / "maps"
    loader = DataLoader(Large(tmp_path), 2, num_workers=2, collate_fn=ReportShm(report), memory_budget=memory_budget)
    seen = [batch[:, 0].tolist() for batch in loader]
    assert seen == [[float(2 * place), float(2 * place + 1)] for place in range(6)]
    assert not report.exists(), report.read_text()
    if memory_budget == 0:
        assert loader.stats()["overflowed_batches"] == 6


# -- the view of the arena ---


def test_a_slot_that_was_parted_with_is_written_where_the_training_process_looks() -> None:
    arena = Arena(3, shared=True, budget=1 << 20)
    view = ArenaView(arena)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kept = []
            for number in range(1, 4):
                room = view.writer(1)
                memory, offset = room.allocate(5000) or (None, 0)
                array = np.ndarray(5000, np.uint8, memory, offset)
                array[:] = number
                view.part_with(1, room.address, room.used)
                room = view.writer(1)
                room.view[:5000] = 10 * number
                kept.append(array)
            code = 0 if [int(array[0]) for array in kept] == [1, 2, 3] and kept[0].max() == 1 else 2
            os.write(write, b".")
        finally:
            os._exit(code)
    os.close(write)
    assert os.read(read, 1) == b"."
    os.close(read)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert set(arena.view(1, 5000).tolist()) == {30}
    assert not arena.view(0, 5000).any()
    assert not arena.view(2, 5000).any()


def test_a_writer_without_a_slot_has_no_room() -> None:
    arena = Arena(1, shared=True, budget=1 << 20)
    room = ArenaView(arena).writer(-1)
    assert room.allocate(1) is None


def read_slots(view: ArenaView, answers: Any) -> None:
    room = view.writer(1)
    answers.send(room.view[:3].tolist())
    room.view[:3] = (7, 8, 9)
    answers.send("written")


@pytest.mark.parametrize("start_method", ["spawn"])
def test_a_view_that_travels_is_of_the_same_memory(start_method: str) -> None:
    context: Any = multiprocessing.get_context(start_method)
    arena = Arena(2, shared=True, budget=1 << 20)
    arena.view(1)[:3] = (1, 2, 3)
    here, there = context.Pipe()
    process = context.Process(target=read_slots, args=(ArenaView(arena), there))
    process.start()
    try:
        assert here.recv() == [1, 2, 3]
        assert here.recv() == "written"
    finally:
        process.join()
        process.close()
        here.close()
        there.close()
    assert arena.view(1)[:3].tolist() == [7, 8, 9]
