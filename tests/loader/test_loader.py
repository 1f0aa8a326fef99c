"""The loader for NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedline
from feedline import Loader, collate
from feedline.abc import Columnar, Scheduler, WorkerView
from feedline.errors import CollateError, EmptyBatch, WorkerTimeout
from feedline.schedulers import InOrder, LeastLoaded
from feedline.types import EngineName
from tests.sampling import examples

pytestmark = pytest.mark.sample(5)

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


class Stream:
    """An iterable dataset."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.count


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


class Broken(Squares):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise KeyError("seven")
        return super().__getitem__(index)


class NeverDone(Squares):
    """Blocks until its process ends, or the test's file is deleted."""

    def __init__(self, fifo: Path) -> None:
        super().__init__()
        self.fifo = fifo

    def __getitem__(self, index: int) -> Any:
        return self.fifo.read_bytes()


def who(samples: Sequence[Any]) -> int:
    return os.getpid()


def random_numbers(samples: Sequence[Any]) -> list[int]:
    return [int(np.random.randint(1 << 30))]


def torch_is_loaded(samples: Sequence[Any]) -> bool:
    return "torch" in sys.modules


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
    ("dataset", "unpack"),
    [
        ((X, Y), lambda batch: batch),
        ({"x": X, "y": Y}, lambda batch: (batch["x"], batch["y"])),
        ((torch.from_numpy(X), torch.from_numpy(Y)), lambda batch: batch),
        (OnlyColumns(), lambda batch: (batch["x"], batch["y"])),
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


def test_a_single_array_and_a_list_of_arrays() -> None:
    assert np.array_equal(np.concatenate(list(Loader(X, 7))), X)
    batches = list(Loader([X[0], X[1], X[2]], 2))  # a list is a list of samples
    assert [batch.tolist() for batch in batches] == [X[:2].tolist(), X[2:3].tolist()]


def test_batch_size_none_delivers_single_samples(engine: EngineName) -> None:
    samples = list(Loader(Squares(5), None, **options(engine)))
    assert [sample["index"] for sample in samples] == [0, 1, 2, 3, 4]
    assert samples[3]["square"].shape == (2,)
    assert list(Loader(range(3), None, collate_fn=str, **options(engine))) == ["0", "1", "2"]
    assert sorted(Loader(range(5), None, shuffle=True, **options(engine))) == [0, 1, 2, 3, 4]


def test_a_sampler_may_yield_lists_without_a_batch_size() -> None:
    (first, second) = Loader((X, Y), None, sampler=[[3, 1], [2]])
    assert first[1].tolist() == [3, 1]
    assert second[0].tolist() == X[[2]].tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20), deadline=None)
@given(
    count=st.integers(0, 40),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    engine_name=st.sampled_from(["inline", "thread"]),
)
def test_every_sample_comes_once(
    count: int, batch_size: int, drop_last: bool, shuffle: bool, engine_name: EngineName
) -> None:
    loader = Loader(Squares(count), batch_size, drop_last=drop_last, shuffle=shuffle, **options(engine_name))
    batches = values(loader)
    assert len(batches) == len(loader)
    seen = [index for batch in batches for index in batch]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(count))
    assert len(seen) == (count // batch_size * batch_size if drop_last else count)
    assert shuffle or seen == list(range(len(seen)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"sampler": [4, 2, 0, 1]}, [[4, 2, 0], [1]]),
        ({"sampler": np.array([4, 2, 0, 1])}, [[4, 2, 0], [1]]),
        ({"sampler": range(4), "drop_last": True}, [[0, 1, 2]]),
        ({"batch_size": 1, "batch_sampler": [[1], [2, 3], np.array([0])]}, [[1], [2, 3], [0]]),
    ],
)
def test_samplers_decide_the_order(arguments: dict[str, Any], expected: list[list[int]], engine: EngineName) -> None:
    for dataset, name in ((Squares(), "index"), ({"x": X, "y": Y}, "y")):
        loader = Loader(dataset, **{"batch_size": 3, **arguments}, **options(engine))
        assert values(loader, name) == expected
        assert values(loader, name) == expected, "a second epoch"
        assert len(loader) == len(expected)


# Iterable datasets


def test_iterable_datasets_are_batched(engine: EngineName) -> None:
    loader = Loader(Stream(7), 3, **options(engine, workers=1))
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    loader = Loader(Stream(7), 3, drop_last=True, **options(engine, workers=1))
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
    assert list(Loader(Stream(3), None, **options(engine, workers=1))) == [0, 1, 2]


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_workers_share_the_samples_of_a_stream(engine_name: EngineName) -> None:
    loader = Loader(Stream(3), 2, workers=2, engine=engine_name)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2]]


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_each_worker_iterates_over_a_copy_without_sharding(engine_name: EngineName) -> None:
    loader = Loader(Stream(3), 2, workers=2, engine=engine_name, shard=False)
    assert [batch.tolist() for batch in loader] == [[0, 1], [0, 1], [2], [2]]


def test_torchs_iterable_datasets_are_accepted() -> None:
    class Numbers(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    assert [batch.tolist() for batch in Loader(Numbers(), 2)] == [[0, 1], [2]]


def test_the_length_counts_batches_if_it_is_known() -> None:
    assert len(Loader(SizedStream(7), 3)) == 3
    assert len(Loader(SizedStream(7), 3, drop_last=True)) == 2
    assert len(Loader(Squares(5), None)) == 5
    with pytest.raises(TypeError, match="Stream has no __len__"):
        len(Loader(Stream(7), 3))


def test_the_length_follows_the_dataset() -> None:
    dataset = Squares(5)
    loader = Loader(dataset, 2)
    dataset.count = 8
    assert len(loader) == 4
    assert indices(loader) == list(range(8))


# Seeds


def test_the_order_depends_only_on_seed_and_epoch(engine: EngineName) -> None:
    expected = Loader(Squares(), 4, shuffle=True, seed=5)
    epochs = [values(expected) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    for workers in (1, 3):
        loader = Loader(Squares(), 4, shuffle=True, seed=5, **options(engine, workers))
        assert [values(loader) for _ in range(3)] == epochs
        loader.set_epoch(1)
        assert values(loader) == epochs[1]
        assert values(loader) == epochs[2], "counting continues from there"


def test_without_a_seed_every_order_is_new() -> None:
    orders = [indices(Loader(Squares(100), 10, shuffle=True)) for _ in range(2)]
    assert orders[0] != orders[1]


def test_workers_draw_different_numbers_determined_by_the_seed() -> None:
    def draw(seed: int | None) -> list[list[int]]:
        return list(Loader(range(2), 1, workers=2, seed=seed, collate_fn=random_numbers))

    first = draw(1)
    assert first[0] != first[1]
    assert draw(1) == first
    assert draw(2) != first
    assert draw(None) != draw(None)


def test_numpys_generator_in_the_training_process_is_left_alone(engine: EngineName) -> None:
    np.random.seed(3)
    state = str(np.random.get_state())
    list(Loader(Squares(), 4, shuffle=True, **options(engine)))
    assert str(np.random.get_state()) == state


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


def test_the_same_collate_functions_give_tensors_in_data_loader(engine: EngineName) -> None:
    both: dict[str, Any] = {"engine": engine, "num_workers": 0 if engine == "inline" else 2}
    padding = collate.drop_none(collate.pad(-1, sort=True))
    ragged: Any = Ragged()  # torch's annotations require a subclass of its own dataset
    batches = list(feedline.DataLoader(ragged, 5, collate_fn=padding, **both))
    assert all(isinstance(value, torch.Tensor) for batch in batches for value in batch.values())
    assert batches[1]["ids_lengths"].tolist() == [9, 8, 7, 6]
    torch.nn.utils.rnn.pack_padded_sequence(batches[1]["ids"], batches[1]["ids_lengths"], batch_first=True)
    detections: Any = Detections()
    images = [images for images, _ in feedline.DataLoader(detections, 3, collate_fn=collate.detection(), **both)]
    assert [type(item) for item in images] == [torch.Tensor, list, torch.Tensor]
    squares: Any = Squares()
    plain = list(feedline.DataLoader(squares, 5, collate_fn=collate.default, **both))
    assert all(isinstance(batch["square"], torch.Tensor) for batch in plain)


def test_collate_functions_work_in_torchs_own_loader() -> None:
    samples: Any = [torch.arange(n) for n in (1, 3, 2)]
    (batch,) = torch.utils.data.DataLoader(samples, 3, collate_fn=collate.pad())
    assert batch[0].tolist() == [[0, 0, 0], [0, 1, 2], [0, 1, 0]]


def test_samples_of_different_shapes_are_an_error_on_every_engine(engine: EngineName) -> None:
    with pytest.raises(CollateError, match=r"Samples 0 and 1 of the batch have shapes .* in field 'ids'"):
        next(iter(Loader(Ragged(), 2, **options(engine))))


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


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_every_start_method_delivers_the_same_batches(start_method: str) -> None:
    loader = Loader((X, Y), 32, shuffle=True, seed=1, workers=2, start_method=start_method)
    batches = list(loader)
    expected = list(Loader((X, Y), 32, shuffle=True, seed=1))
    assert [batch[1].tolist() for batch in batches] == [batch[1].tolist() for batch in expected]
    assert all(np.array_equal(batch[0], X[batch[1]]) for batch in batches)


def test_batches_are_made_where_the_engine_says(engine: EngineName) -> None:
    pids = set(Loader(range(8), 1, collate_fn=who, **options(engine)))
    assert len(pids) == (2 if engine == "process" else 1)
    assert (os.getpid() in pids) == (engine != "process")


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


def test_workers_of_an_abandoned_epoch_end(engine: EngineName) -> None:
    loader = Loader(Squares(1000), 1, **options(engine))
    for batch in loader:
        assert batch["index"].tolist() == [0]
        break
    assert next(iter(loader))["index"].tolist() == [0]


def test_worker_init_runs_in_every_worker(tmp_path: Path) -> None:
    class Sign:
        def __call__(self, number: int) -> None:
            (tmp_path / str(number)).touch()

    list(Loader(range(8), 1, workers=2, worker_init=Sign()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_errors_keep_their_type_and_iteration_continues(engine: EngineName) -> None:
    batches = iter(Loader(Broken(10), 1, **options(engine)))
    for _ in range(7):
        next(batches)
    with pytest.raises(KeyError, match="seven"):
        next(batches)
    assert [batch["index"].tolist() for batch in batches] == [[8], [9]]


def test_a_late_batch_raises_a_timeout(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    loader = Loader(NeverDone(fifo), 1, workers=1, timeout_s=0.2)
    with pytest.raises(WorkerTimeout, match=r"timed out after 0\.2 seconds"):
        next(iter(loader))


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_unordered_delivery_delivers_every_sample(engine_name: EngineName) -> None:
    loader = Loader(Squares(), 2, workers=3, engine=engine_name, in_order=False)
    assert sorted(indices(loader)) == list(range(25))


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_a_custom_scheduler_is_used(engine_name: EngineName) -> None:
    class Last(InOrder):
        asked = 0

        def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
            Last.asked += 1
            return super().assign(ordinal, indices, workers[-1:])

    scheduler: Scheduler = Last()
    loader = Loader(Squares(), 2, workers=2, engine=engine_name, scheduler=scheduler)
    assert indices(loader) == list(range(25))
    assert Last.asked


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_least_loaded_scheduler_keeps_the_order(engine_name: EngineName) -> None:
    loader = Loader(Squares(), 2, workers=3, engine=engine_name, prefetch=4, scheduler=LeastLoaded())
    assert indices(loader) == indices(loader) == list(range(25))


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


@pytest.mark.parametrize("engine_name", ["inline", "thread", "process"])
def test_batches_are_delivered_without_memory_for_slots(engine_name: EngineName) -> None:
    data = np.arange(40 * 50_000, dtype=np.float32).reshape(40, 50_000)
    loader = Loader(data, 4, memory_budget=0, **options(engine_name))
    assert np.array_equal(np.concatenate(list(loader)), data)


def test_stats_contain_engine_and_batches(engine: EngineName) -> None:
    loader = Loader(Squares(), 5, **options(engine))
    list(loader)
    stats = loader.stats()
    assert (stats["engine"], stats["batches"]) == (engine, 5)


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


def test_repr() -> None:
    loader = Loader((X, Y), 32, shuffle=True, seed=1, workers=2)
    assert repr(loader) == (
        "Loader(ArrayDataset(100 samples of (float32[3], int64[])), batch_size=32, shuffle=True, seed=1, workers=2, "
        "engine='process')"
    )
    assert repr(Loader(range(3), sampler=np.array([1]))) == (
        "Loader(range, batch_size=1, sampler=array([1]), workers=0, engine='inline')"
    )
