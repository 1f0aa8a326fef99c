"""What a probe of a dataset finds out, without side effects in this process."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.delivery.driver import probe as module
from feedline.delivery.driver.probe import probe
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.global_states import GlobalStates
from feedline.system.timing import OnThreads
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


def measured(
    monkeypatch: pytest.MonkeyPatch, batch_s: float, cpu_share: float, thread_rate: float | None = None
) -> None:
    """Fake the measurements: time per batch, its CPU share, and the batches per second of threads if given.

    The worker process is forked, so it inherits the fakes.
    """

    def timed(make: Callable[[], None], seconds: float) -> tuple[float, float]:
        make()
        return batch_s, cpu_share

    monkeypatch.setattr(module, "_timed", timed)
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    if thread_rate is not None:
        monkeypatch.setattr(module, "on_threads", lambda *_, **__: OnThreads(thread_rate, 0.1))


def test_a_dataset_that_sleeps_is_tried_on_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured(monkeypatch, 0.02, 0.25, thread_rate=390.0)
    found = look(Numbers())
    assert found is not None
    assert (found.batch_s, found.cpu_s, found.threads) == (0.02, 0.005, 8)
    assert found.thread_gain == pytest.approx(7.8), "390 a second, where one thread makes 50"


class NotForThreads(Numbers):
    """Raises on any thread but the main one."""

    def __getitem__(self, index: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("recursive use of a cursor")
        return index


def test_threads_whose_batches_fail_gain_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, 0.02, 1.0)
    found = look(NotForThreads())
    assert found is not None
    assert (found.threads, found.thread_gain) == (2, 0.0)
    assert "recursive use" not in capfd.readouterr().err


def test_a_probe_has_no_side_effects_in_this_process() -> None:
    dataset = Numbers()
    before = GlobalStates.now()
    thread_count = threading.active_count()
    assert look(dataset) is not None
    assert dataset.seen == []
    assert GlobalStates.now().differing(before) == []
    assert threading.active_count() == thread_count


def test_threads_are_not_tried_with_global_generators_and_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, 0.02, 0.25, thread_rate=390.0)
    (tmp_path / "file").write_bytes(b"x")
    for dataset in (Draws(0.0), Reads(path=tmp_path / "file")):
        found = look(dataset)
        assert found is not None
        assert found.threads == 0


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
