"""What a brief look at a dataset finds out, without side effects in this process."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.delivery.driver import auto as module
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.global_states import GlobalStates
from feedline.types import DatasetKind


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the result however busy the machine is."""
    monkeypatch.setattr(module, "_PATIENCE_S", 100.0)


@dataclass
class Numbers:
    """Samples that are numbers and take `seconds` each."""

    seconds: float = 0.0
    seen: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.seen.append(index)
        time.sleep(self.seconds)
        return index


class Fails(Numbers):
    def __getitem__(self, index: int) -> int:
        raise OSError("no such sample")


def look(dataset: Any, batch_size: int = 4, **options: Any) -> module.Load | None:
    spec = WorkerSpec(
        dataset=dataset,
        kind=DatasetKind.MAP,
        collate=options.pop("collate", default),
        framework=NumpyFramework(),
        worker_count=2,
        base_seed=0,
        **options,
    )
    return module.probe(spec, batch_size, None)


def test_a_probe_has_no_side_effects_in_this_process() -> None:
    dataset = Numbers(0.001)
    before = GlobalStates.now()
    thread_count = threading.active_count()
    load = look(dataset)
    assert load is not None
    assert load.make_s >= 0.004
    assert load.cpu_s < load.make_s
    assert dataset.seen == []
    assert GlobalStates.now().differing(before) == []
    assert threading.active_count() == thread_count


def test_the_init_function_runs_before_a_probe() -> None:
    def init(number: int) -> None:
        raise ValueError(number)

    assert look(Numbers(), init=init) is None


def test_a_failing_or_empty_dataset_has_no_probe() -> None:
    assert look(Fails()) is None
    assert look({}) is None


class Blocks(Numbers):
    def __getitem__(self, index: int) -> int:
        threading.Event().wait()
        return index


def test_a_probe_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    assert look(Blocks()) is None
