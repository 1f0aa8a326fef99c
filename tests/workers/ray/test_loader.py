"""Loaders with Ray actors deliver the same batches as every other engine, whatever happens to the actors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from feedline import DataLoader, Loader, RayOptions
from feedline.datasets import RayRows
from feedline.errors import WorkerWarning
from feedline.loader.base import session_of
from feedline.workers.ray import engine as engine_module
from feedline.workers.ray.engine import Store
from tests.holding import Hold, Whereabouts

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"),  # a busy machine starts processes slowly
]


class Noise(torch.utils.data.Dataset[Any]):
    """Sample i is its number, and 40,000 random ones."""

    def __init__(self) -> None:
        self.numbers = torch.arange(64)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.numbers[index], torch.rand(40_000)


def test_actor_i_makes_batch_i_mod_n(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actor 0 is held at its second batch while actor 1 is idle."""
    hold = Hold(tmp_path, monkeypatch)
    loader = DataLoader(Whereabouts(hold.gate, 12, held=2), batch_size=None, num_workers=2, engine="ray")
    where = [int(one) for one in loader]
    assert [where.index(one) for one in where] == [place % 2 for place in range(12)]
    assert hold.moved == 0


class Doomed(Noise):
    """The first time it is requested, sample 13 kills its worker and sample 20 hangs."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index in (13, 20) and not os.path.exists(f"{self.folder}/{index}"):
            open(f"{self.folder}/{index}", "w").close()
            if index == 13:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        return super().__getitem__(index)


class Faulty(Noise):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index % 10 == 3:
            raise ValueError(f"sample {index} is torn")
        return super().__getitem__(index)


class Counting(torch.utils.data.IterableDataset[Any]):
    """A stream that is split by `get_worker_info`."""

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        return iter(range(worker.id, 24, worker.num_workers))


class Wide:
    """Sample i is 4 MB of i."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return np.full(1 << 20, float(index), np.float32)


class Slow(Noise):
    """Sample i is its number, and waits for something."""

    def __init__(self, length: int = 200, seconds: float = 0.1) -> None:
        self.numbers, self.seconds = torch.arange(length), seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return self.numbers[index]


def batches_of(dataset: Any = None, *, epochs: int = 1, **options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    with_seed = {"batch_size": 4, "shuffle": True, "seed": 5, **options}
    loader: Any = DataLoader(dataset or Noise(), **with_seed)
    return [(batch[0].clone(), batch[1].clone()) for _ in range(epochs) for batch in loader]


def assert_same(some: list[Any], others: list[Any]) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_dying_and_hanging_workers_do_not_change_the_batches(tmp_path: Any) -> None:
    options: dict[str, Any] = {"num_workers": 2, "engine": "ray", "timeout": 30, "restarts": 20, "shuffle": False}
    with pytest.warns(WorkerWarning) as warned:
        found = batches_of(Doomed(str(tmp_path)), **options)
    assert_same(found, batches_of(num_workers=0, shuffle=False))
    assert any("Ray actor" in str(warning.message) for warning in warned)
    assert len(warned) >= 2


def test_failing_samples_are_skipped_or_raised() -> None:
    found = batches_of(Faulty(), num_workers=2, engine="ray", on_error="skip")
    assert_same(found, batches_of(Faulty(), num_workers=0, on_error="skip"))
    with pytest.raises(ValueError, match="sample 3 is torn") as caught:
        batches_of(Faulty(), num_workers=1, engine="ray", shuffle=False)
    assert "__getitem__" in str(caught.value.__cause__)


def test_a_stream_resumes_from_a_saved_state() -> None:
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 2, "engine": RayOptions(num_cpus=0.5)}
    expected = [batch.tolist() for batch in DataLoader(Counting(), **{**options, "engine": "process"})]
    loader: Any = DataLoader(Counting(), **options)
    batches = iter(loader)
    begun = [next(batches).tolist() for _ in range(3)]
    state = loader.state_dict()
    del batches
    again: Any = DataLoader(Counting(), **options)
    again.load_state_dict(state)
    assert begun + [batch.tolist() for batch in again] == expected


def test_memory_in_the_object_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[Store] = []

    def kept(budget: int) -> Store:
        stores.append(Store(budget))
        return stores[-1]

    monkeypatch.setattr(engine_module, "Store", kept)
    loader = Loader(Wide(), batch_size=1, workers=2, prefetch=8, engine="ray", memory_budget="24MB")
    most = 0
    for number, batch in enumerate(loader):
        assert batch[0, 0] == number
        time.sleep(0.05)  # a slow training loop
        most = max(most, stores[-1].held)
    assert 0 < most <= 24 << 20


_SHUT_DOWN = """
import sys
import ray
from feedline import DataLoader
from feedline.errors import WorkerStartError
from tests.workers.ray.test_loader import Noise

loader = DataLoader(Noise(), batch_size=4, num_workers=1, prefetch_factor=1, engine="ray")
batches = iter(loader)
numbers, pixels = next(batches)
before = pixels.clone()
ray.shutdown()
if sys.argv[1] == "again":
    ray.init(address="local", num_cpus=1, include_dashboard=False)
assert pixels.equal(before), "a batch is there as long as somebody has it"
try:
    rest = list(batches)
except WorkerStartError as exc:
    assert "ray.shutdown()" in str(exc), exc
    print("told")
loader.close()
"""


@pytest.mark.parametrize("then", ["nothing", "again"])
def test_shutting_ray_down_mid_epoch_raises_and_keeps_delivered_batches(then: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", _SHUT_DOWN, then],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["told"], done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray uses features that it has deprecated itself
def test_ray_data_rows_are_a_dataset(cluster: Any) -> None:
    data = pytest.importorskip("ray.data")
    loader: Any = DataLoader(RayRows(data.range(10)), batch_size=4)
    assert sorted(number for batch in loader for number in batch["id"].tolist()) == list(range(10))


def test_auto_workers_start_no_more_actors_than_the_cluster_has_free(cluster: Any) -> None:
    class Other:
        """Another program."""

        def is_there(self) -> bool:
            return True

    other = cluster.remote(num_cpus=5)(Other).remote()
    assert cluster.get(other.is_there.remote())
    while cluster.available_resources().get("CPU") != 3:
        time.sleep(0.05)  # Ray takes a moment to count
    loader: Any = DataLoader(Slow(), batch_size=1, num_workers="auto", engine="ray")
    assert max(len(session_of(loader).resources.worker_pids) for _ in loader) == 3, loader.tuning.log
    cluster.kill(other)
