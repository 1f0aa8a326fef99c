"""The loader for NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline import Loader, collate
from feedline.abc import Columnar, Scheduler, WorkerView
from feedline.errors import EmptyBatch
from feedline.schedulers import InOrder
from feedline.types import EngineName

X = np.arange(300, dtype=np.float32).reshape(100, 3)
Y = np.arange(100)


class Squares:
    """A map-style dataset of dicts."""

    def __init__(self, count: int = 25) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "square": np.full((2,), index**2, np.float32), "name": str(index)}


class OnlyColumns(Columnar):
    """Raises if a sample is requested."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("a sample was asked for")

    def columns(self) -> Any:
        return {"x": X, "y": Y}


class Ragged:
    """Sequences of different lengths; every fifth is missing."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any] | None:
        return None if index % 5 == 4 else {"ids": np.full(index + 1, index), "label": index}


class Detections:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any]]:
        return np.full((3, 40 + index // 4, 100), index, np.float32), {"boxes": np.full((index, 4), index, np.float32)}


def who(samples: Sequence[Any]) -> int:
    return os.getpid()


def options(engine: EngineName, workers: int = 2) -> dict[str, Any]:
    return {"engine": engine, "workers": 0 if engine == "inline" else workers}


def values(loader: Loader, name: str = "index") -> list[list[int]]:
    return [batch[name].tolist() for batch in loader]


def indices(loader: Loader) -> list[int]:
    return [index for batch in values(loader) for index in batch]


# Batches


def test_samples_are_collated_into_batches(engine: EngineName) -> None:
    loader = Loader(Squares(), 10, **options(engine))
    batches = list(loader)
    assert [batch["index"].tolist() for batch in batches] == [[*range(10)], [*range(10, 20)], [*range(20, 25)]]
    assert all(isinstance(batch["square"], np.ndarray) and batch["square"].dtype == np.float32 for batch in batches)
    assert batches[2]["square"].tolist() == [[i**2] * 2 for i in range(20, 25)]
    assert batches[0]["name"] == [str(i) for i in range(10)]
    assert len(loader) == 3


@pytest.mark.parametrize(
    ("dataset", "unpack", "engine"),
    [
        ((X, Y), lambda batch: batch, "process"),
        ({"x": X, "y": Y}, lambda batch: (batch["x"], batch["y"]), "inline"),
        ((torch.from_numpy(X), torch.from_numpy(Y)), lambda batch: batch, "thread"),
        (OnlyColumns(), lambda batch: (batch["x"], batch["y"]), "process"),
    ],
    ids=["tuple", "dict", "tensors", "columnar"],
)
def test_arrays_can_be_a_dataset(dataset: Any, unpack: Any, engine: EngineName) -> None:
    loader = Loader(dataset, 32, shuffle=True, seed=0, **options(engine))
    seen = []
    for batch in loader:
        x, y = unpack(batch)
        assert isinstance(x, np.ndarray)
        assert np.array_equal(x, X[y])
        assert (x.dtype, y.dtype) == (X.dtype, Y.dtype)
        seen += y.tolist()
    assert sorted(seen) == list(range(100))
    assert seen != sorted(seen)


# Collate functions


def test_collate_functions_give_arrays(engine: EngineName) -> None:
    batches = list(Loader(Ragged(), 5, collate_fn=collate.drop_none(collate.pad(-1)), **options(engine)))
    assert [batch["ids"].shape for batch in batches] == [(4, 4), (4, 9), (4, 14), (4, 19)]
    assert batches[1]["ids"][0].tolist() == [5] * 6 + [-1] * 3
    assert batches[1]["ids_lengths"].tolist() == [6, 7, 8, 9]
    assert batches[1]["label"].tolist() == [5, 6, 7, 8]
    (first, _), (second, targets) = list(Loader(Detections(), 4, collate_fn=collate.detection(), **options(engine)))
    assert first.shape == (4, 3, 40, 100)
    assert [target["boxes"].shape for target in targets] == [(i, 4) for i in range(4, 8)]
    assert isinstance(second, np.ndarray)


def test_an_empty_batch_can_be_skipped(engine: EngineName) -> None:
    loader = Loader([1, None, None, 2], 1, collate_fn=collate.drop_none(), **options(engine))
    batches = iter(loader)
    seen = []
    for _ in range(4):
        try:
            seen.append(next(batches).tolist())
        except EmptyBatch:
            seen.append(None)
    assert seen == [[1], None, None, [2]]
    with pytest.raises(StopIteration):
        next(batches)


# Workers


@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("forkserver", "spawn"))]
)
def test_every_start_method_delivers_the_same_batches(start_method: str) -> None:
    loader = Loader((X, Y), 32, shuffle=True, seed=1, workers=2, start_method=start_method)
    batches = list(loader)
    expected = list(Loader((X, Y), 32, shuffle=True, seed=1))
    assert [batch[1].tolist() for batch in batches] == [batch[1].tolist() for batch in expected]
    assert all(np.array_equal(batch[0], X[batch[1]]) for batch in batches)


def test_persistent_workers_stay_until_closed() -> None:
    loader = Loader(range(8), 1, collate_fn=who, workers=2, persistent=True)
    first = set(loader)
    batches = iter(loader)
    next(batches)  # left early
    assert set(loader) == first
    loader.close()
    loader.close()
    assert not first & set(loader)
    loader.close()


def test_worker_init_runs_in_every_worker(tmp_path: Path) -> None:
    class Sign:
        def __call__(self, number: int) -> None:
            (tmp_path / str(number)).touch()

    list(Loader(range(8), 1, workers=2, worker_init=Sign()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_custom_scheduler_is_used() -> None:
    class Last(InOrder):
        asked = 0

        def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
            Last.asked += 1
            return super().assign(ordinal, indices, workers[-1:])

    scheduler: Scheduler = Last()
    loader = Loader(Squares(), 2, workers=2, engine="thread", scheduler=scheduler)
    assert indices(loader) == list(range(25))
    assert Last.asked


# Memory


def test_kept_batches_do_not_change(engine: EngineName) -> None:
    data = np.arange(200 * 20_000, dtype=np.float32).reshape(200, 20_000)
    loader = Loader(data, 10, **options(engine))
    batches = list(loader)
    assert np.array_equal(np.concatenate(batches), data)
    batches[0][:] = 0  # a batch belongs to its holder
    assert np.array_equal(np.concatenate(list(loader)), data)


@pytest.mark.parametrize("engine_name", ["inline", "thread", "process"])
def test_a_large_batch_occupies_a_slot_until_it_is_dropped(engine_name: EngineName) -> None:
    loader = Loader(np.zeros((8, 100_000), np.float32), 4, **options(engine_name, workers=1))
    batches = iter(loader)
    batch = next(batches)
    part = batch[1:2]
    del batch
    assert loader.stats()["leased_slots"] >= 1
    del part
    list(batches)
    del batches
    assert loader.stats()["leased_slots"] == 0


# No torch

NO_TORCH = """
import sys
import numpy as np
from feedline import Loader, collate
from feedline.datasets import ArrayDataset

class Squares:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return {"x": np.full(index + 1, index), "torch": "torch" in sys.modules}

if __name__ == "__main__":
    for method in ("fork", "forkserver", "spawn", None):
        how = {"start_method": method} if method else {"engine": "thread"}
        batches = list(Loader(Squares(), 2, workers=1, collate_fn=collate.drop_none(collate.pad()), **how))
        assert len(batches) == 4
        assert not any(batch["torch"].any() for batch in batches), f"{method}: a worker imported torch"
    arrays = list(Loader({"x": np.arange(8)}, 2, shuffle=True, seed=1, workers=2, start_method="fork"))
    assert sorted(np.concatenate([batch["x"] for batch in arrays]).tolist()) == list(range(8))
    assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_torch_is_not_imported_here_or_in_workers(tmp_path: Path) -> None:
    script = tmp_path / "no_torch.py"
    script.write_text(NO_TORCH)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
