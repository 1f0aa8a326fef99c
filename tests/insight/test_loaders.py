"""What loaders measure, on every engine: each cause of waiting is attributed correctly."""

from __future__ import annotations

import copy
import json
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.insight.recording import Recording
from feedline.loader.base import session_of
from feedline.randomness import scope

SHORT_S = 0.001
"""Long enough for samples to be timed one by one."""


class Slow:
    """Samples that are slow in one stage."""

    def __init__(self, count: int = 24, *, fetch_s: float = 0.0, transform_s: float = 0.0) -> None:
        self.count, self.fetch_s = count, fetch_s
        self.transform = None if not transform_s else Sleep(transform_s)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.fetch_s:
            time.sleep(self.fetch_s)
        sample = np.full(4, index, np.float32)
        if self.transform is None:
            return sample
        with feedline.stage("transform"):
            return self.transform(sample)


class Sleep:
    """A transform that sleeps."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, sample: Any) -> Any:
        time.sleep(self.seconds)
        return sample


@pytest.fixture(
    params=["inline", "process", *(pytest.param(name, marks=pytest.mark.slow) for name in ("thread", "portable"))]
)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "portable":
        monkeypatch.setattr("feedline.workers.abilities.can_share_arenas", lambda: False)
    return name


def loader_of(dataset: Any, engine: str, **options: Any) -> Any:
    if engine == "inline":
        return feedline.Loader(dataset, 4, **options)
    workers = options.pop("workers", 2)
    name: Any = "process" if engine == "portable" else engine
    return feedline.Loader(dataset, 4, workers=workers, engine=name, **options)


def test_the_cpu_time_of_every_batch_is_known(engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("workers.runner", "loader.resources"):
        monkeypatch.setattr(f"feedline.{module}.TaskCpu", KnownCpu)
    loader = loader_of(Slow(), engine)
    with feedline.record(loader, tmp_path / "run.json"):
        assert len(list(loader)) == 6
    rows = Recording.load(tmp_path / "run.json").rows
    threads = engine in ("inline", "thread")
    assert rows["computed"].tolist() == [2000 if threads else 3000] * 6, (
        "for threads, that of the thread; else that of the whole worker"
    )
    assert rows["queued"].tolist() == [500] * 6
    period = loader.stats().epoch
    assert (period.cpu_s, period.queued_s) == (2e-6 if threads else 3e-6, 5e-7)


class KnownCpu:
    """A clock that always returns the same times."""

    def __init__(self, *, of_process: bool = False) -> None:
        self.computed = 3000 if of_process else 2000

    def begin(self) -> None:
        pass

    def spent(self, busy_ns: int) -> tuple[int, int]:
        return self.computed, 500


class Named(Slow):
    def __getitem__(self, index: int) -> Any:
        with feedline.stage("decode"):
            sum(range(100))
        return super().__getitem__(index)


def test_each_epoch_has_its_own_statistics(engine: str) -> None:
    loader = loader_of(Slow(), engine)
    assert loader.stats().total.batches == 0
    for _ in range(3):
        assert len(list(loader)) == 6
    batches = iter(loader)
    next(batches)
    stats = loader.stats()
    assert stats.last_epoch is not None
    assert (stats.epoch.batches, stats.last_epoch.batches, stats.total.batches, stats["batches"]) == (1, 6, 19, 19)
    assert stats.total.samples == 76
    assert stats.total.seconds >= stats.epoch.seconds + stats.last_epoch.seconds
    json.dumps(stats.as_dict())


def test_stats_can_be_read_while_another_thread_iterates() -> None:
    loader = loader_of(Slow(400), "thread")
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(len(batch) for batch in loader))
    thread.start()
    while thread.is_alive():
        stats = loader.stats()
        assert stats.total.batches <= 100
    thread.join()
    assert (sum(seen), loader.stats().total.batches) == (400, 100)


def test_a_recording_has_the_same_statistics_as_the_run(engine: str, tmp_path: Path) -> None:
    loader = loader_of(Named(), engine)
    with feedline.record(loader, tmp_path / "run.json.gz"):
        for _ in range(2):
            assert len(list(loader)) == 6
    live = loader.stats()
    recording = Recording.load(tmp_path / "run.json.gz")
    recorded = recording.stats()
    assert recorded.epoch == live.epoch
    assert recorded.last_epoch == live.last_epoch
    assert recorded.total == live.total
    assert recorded.slowest_samples == live.slowest_samples
    assert dict(recorded) == dict(live)
    assert recorded.verdict == live.verdict
    assert recording.rows["ordinal"].tolist() == 2 * list(range(6))
    assert recording.environment["feedline"] == feedline.__version__
    assert len(recording.system["at"]) >= 2
    json.dumps(recording.chrome_trace())


@pytest.mark.parametrize("how", ["error", "interrupt"])
def test_the_recording_of_an_interrupted_run_can_be_read(how: str, tmp_path: Path) -> None:
    loader = loader_of(Slow(), "process")

    def run() -> None:
        with feedline.record(loader, tmp_path / "run.json"):
            for number, _ in enumerate(loader):
                if number == 3:
                    if how == "interrupt":
                        signal.raise_signal(signal.SIGINT)
                    raise RuntimeError("training failed")

    with pytest.raises(KeyboardInterrupt if how == "interrupt" else RuntimeError):
        run()
    recording = Recording.load(tmp_path / "run.json")
    assert recording.stats().epoch.batches == 4
    assert "feedline-recording" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_every_engine_fills_every_column(engine: str, start: str, tmp_path: Path) -> None:
    if engine in ("inline", "thread") and start == "spawn":
        pytest.skip("there are no processes")
    options = {"start_method": start} if engine in ("process", "portable") else {}
    dataset = Slow(40, transform_s=SHORT_S)
    loader = loader_of(dataset, engine, collate_fn=short_collate, **options)
    with feedline.record(loader, tmp_path / "run.json"):
        assert sum(len(batch) for batch in loader) == 40
    rows = Recording.load(tmp_path / "run.json").rows
    assert rows["ordinal"].tolist() == list(range(10))
    assert rows["samples"].tolist() == [4] * 10
    chain = [rows[name] for name in ("given", "began", "finished", "came", "got")]
    assert (np.diff(np.stack(chain), axis=0) >= -1_000_000).all(), "in this order, apart from the precision of clocks"
    assert (rows["began"] > 0).all()
    assert (rows["fetch"] > 0).all()
    assert (rows["collate"] > 0).all()
    assert (rows["write"] >= 0).all()
    assert (rows["computed"] > 0).all()
    assert (rows["queued"] >= 0).all()
    made = rows["fetch"] + rows["collate"] + rows["write"]
    assert (made == rows["finished"] - rows["began"])[rows["worker"] >= 0].all()
    assert (rows["transform"] > 0).all()
    assert set(rows["worker"]) == ({-1} if engine == "inline" else {0, 1})


def short_collate(samples: list[Any]) -> Any:
    return np.stack(samples)


def test_on_stats_calls_a_function_at_intervals(engine: str) -> None:
    loader, calls = loader_of(Slow(), engine), list[tuple[int, bool]]()
    main = threading.current_thread()
    loader.on_stats(lambda stats: calls.append((stats["batches"], threading.current_thread() is main)), every_s=0)
    assert len(list(loader)) == 6
    assert calls == [(number, True) for number in range(7)]
    for twin in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
        assert session_of(twin).listener is None, "a copy has no listener"
    loader.on_stats(calls.append, every_s=1000)
    assert len(list(loader)) == 6
    assert len(calls) == 8
    loader.on_stats(None)
    assert len(list(loader)) == 6
    assert len(calls) == 8


@pytest.fixture(scope="module")
def torch() -> Any:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass  # the first use opens files that stay open
    return torch


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["inline", "thread", "process"])
def test_stages_are_ranges_in_torchs_profiler(workers: Any, torch: Any) -> None:
    options = {} if workers == "inline" else {"num_workers": 2, "engine": workers}
    loader = feedline.DataLoader(Slow(8), 2, **options)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert len(list(loader)) == 4
    counts = {event.key: event.count for event in profile.key_averages()}
    assert any(name.startswith("enumerate(DataLoader)") for name in counts)
    if workers == "inline":
        assert (counts["feedline: fetch"], counts["feedline: collate"]) == (4, 4)
    else:
        assert counts["feedline: wait for workers"] >= 1
    assert len(list(loader)) == 4
    assert scope.ranges is None, "no ranges after the profiler has ended"
