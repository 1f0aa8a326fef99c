"""What a look at a dataset finds out, without this process noticing."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.collate import default
from feedline.driver import probe as module
from feedline.driver.probe import probe
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.global_states import GlobalStates
from feedline.types import DatasetKind, WorkerSpec


@dataclass
class Numbers:
    """Samples that are numbers, and take so long."""

    seconds: float = 0.0
    seen: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.seen.append(index)
        time.sleep(self.seconds)
        return index


class Loops(Numbers):
    def __getitem__(self, index: int) -> int:
        return sum(range(20_000)) * 0 + index


class Draws(Numbers):
    def __getitem__(self, index: int) -> float:  # type: ignore[override]  # another kind of sample
        return random.random()


class Fails(Numbers):
    def __getitem__(self, index: int) -> int:
        raise OSError("no such sample")


@dataclass
class Reads(Numbers):
    path: Path = Path()
    file: Any = None

    def __getitem__(self, index: int) -> int:
        self.file = self.file or self.path.open("rb")
        self.file.seek(0)
        time.sleep(0.002)
        return len(self.file.read(1))


def look(dataset: Any, batch_size: int = 4, **options: Any) -> module.Probe | None:
    spec = WorkerSpec(
        dataset=dataset,
        kind=DatasetKind.MAP,
        collate=options.pop("collate", default),
        framework=NumpyFramework(),
        worker_count=2,
        base_seed=0,
        **options,
    )
    return probe(spec, batch_size, None)


def test_a_dataset_in_memory_takes_no_time() -> None:
    found = look(Numbers())
    assert found is not None
    assert found.batch_s < 0.01
    assert found.threads == found.thread_gain == 0
    assert not found.is_unsafe


def test_a_dataset_that_sleeps_is_as_fast_on_threads() -> None:
    found = look(Numbers(0.005))
    assert found is not None
    assert 0.02 <= found.batch_s < 0.2
    assert found.cpu_share < 0.5
    assert found.threads >= 4  # not only as many as there are cores: they wait
    assert found.thread_gain > 0.6 * found.threads


def test_a_dataset_that_computes_in_python_gains_nothing_from_threads() -> None:
    found = look(Loops(), 16)
    assert found is not None
    assert found.cpu_share > 0.5
    assert found.thread_gain < 0.9 * found.threads


class NotForThreads(Numbers):
    """Raises if two threads are in it at the same time, and takes long enough that they are."""

    inside = 0

    def __getitem__(self, index: int) -> int:
        self.inside += 1
        time.sleep(0.002)
        self.inside -= 1
        if self.inside > 0:
            raise RuntimeError("recursive use of a cursor")
        return index


def test_threads_whose_batches_fail_count_for_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    found = look(NotForThreads())
    assert found is not None
    assert found.thread_gain < 0.9 * found.threads
    assert "recursive use" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("cores", "ranks", "cpu_share", "count"),
    [
        (16, 1, 0.99, 8),
        (16, 4, 0.99, 4),
        (4, 1, 1.0, 4),
        (2, 1, 1.0, 2),
        (1, 1, 1.0, 2),
        (2, 1, 0.5, 4),
        (2, 1, 0.0, 8),
    ],
)
def test_as_many_threads_are_tried_as_cores_have_room_for(
    cores: int, ranks: int, cpu_share: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert module.thread_count(cpu_share) == count


def test_this_process_does_not_notice() -> None:
    dataset = Numbers()
    before = GlobalStates.now()
    thread_count = threading.active_count()
    assert look(dataset) is not None
    assert dataset.seen == []
    assert GlobalStates.now().differing(before) == []
    assert threading.active_count() == thread_count


def test_what_threads_must_not_share_is_unsafe(tmp_path: Path) -> None:
    found = look(Draws(0.0))
    assert found is not None
    assert found.is_unsafe
    (tmp_path / "file").write_bytes(b"x")
    found = look(Reads(path=tmp_path / "file"))
    assert found is not None
    assert found.is_unsafe


def test_samples_one_by_one_and_by_keys() -> None:
    found = look({"a": np.zeros(3), "b": np.ones(3)}, 2)
    assert found is not None
    found = look(Numbers(), 1, batched=False, collate=np.asarray)
    assert found is not None


def test_a_worker_is_got_ready_as_ever() -> None:
    def init(number: int) -> None:
        raise ValueError(number)

    assert look(Numbers(), init=init) is None


def test_a_dataset_that_fails_or_is_empty_tells_nothing() -> None:
    assert look(Fails()) is None
    assert look({}) is None


def test_one_that_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    begun_s = time.monotonic()
    assert look(Numbers(30.0)) is None
    assert time.monotonic() - begun_s < 10
