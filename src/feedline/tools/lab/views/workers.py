"""Workers and prefetching: a timeline of workers and training, with feedline's loader and with torch's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import Dataset, get_worker_info

import feedline
from feedline.insight.recording import Recording
from feedline.tools.advise.what_if import RecordedRun
from feedline.tools.lab.apart import apart
from feedline.tools.lab.controls import Choice, Number, Switch, Values
from feedline.tools.lab.pictures import Event, Shade, bars, doing, figures, lanes, lines, say, table
from feedline.tools.lab.view import Actions, View, loader_code
from feedline.types import EngineName

_SECONDS = 1.6
"""About how long each loader runs."""
_BATCH = 4
_MOST_BATCHES = 120
_MOMENTS = 120
_LITTLE = 0.05
"""The share of waiting below which more workers gain nothing worth having."""

Span = tuple[int, float, float, Shade, str]


@dataclass(frozen=True)
class Made:
    """A batch as the training loop got it: its worker, and times in seconds on a clock that all processes share."""

    worker: int
    began: float
    ended: float
    asked: float
    got: float


class Sleeping(Dataset[torch.Tensor]):
    """Samples that take some time, as storage or a decoder does.

    Args:
        samples: number of samples.
        load_s: mean time of a sample, apart from stragglers.
        spread: how much the times differ; 0 for not at all.
        stragglers: the share of samples that take 20 times as long.
    """

    def __init__(self, samples: int, load_s: float, spread: float = 0.0, stragglers: float = 0.0) -> None:
        dice = np.random.default_rng(11)
        times = load_s * dice.lognormal(-(spread**2) / 2, spread, samples) if spread else np.full(samples, load_s)
        self.times = np.where(dice.random(samples) < stragglers, 20 * load_s, times)

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        began = time.monotonic()
        time.sleep(float(self.times[index]))
        return torch.tensor([-1.0 if info is None else info.id, began, time.monotonic()], dtype=torch.float64)


def made_of(batch: torch.Tensor, asked: float, got: float) -> Made:
    """Read from a batch which worker made it, and when."""
    return Made(int(batch[0, 0]), float(batch[:, 1].min()), float(batch[:, 2].max()), asked, got)


def spans_of(made: list[Made], workers: int, origin: float) -> list[Span]:
    """Return the spans of the training loop, on the first lane, and of the workers."""
    spans: list[Span] = []
    for number, batch in enumerate(made):
        if number:
            spans.append((0, made[number - 1].got - origin, batch.asked - origin, "compute", f"step {number - 1}"))
        if batch.got - batch.asked > 1e-4:
            spans.append((0, batch.asked - origin, batch.got - origin, "order", f"waited for batch {number}"))
        if workers:
            lane = 1 + batch.worker
            spans.append((lane, batch.began - origin, batch.ended - origin, "fetch", f"batch {number}"))
    return spans


def _run(values: Values, _: Actions) -> Iterator[Event]:
    dataset, count = _dataset(values)
    yield doing(f"feedline's loader delivers {count} batches of {_BATCH} samples.", _SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        loader = feedline.DataLoader(dataset, **_arguments(values), engine=_engine(values), seed=0)
        with feedline.record(loader, path):
            ours = _train(loader, values["step_ms"] / 1000)
        loader.close()
        recording = Recording.load(path)
    yield _timeline("feedline", "feedline's loader", ours, values["workers"])
    yield doing(f"torch's loader delivers the same {count} batches.", _SECONDS)
    theirs = _train(torch.utils.data.DataLoader(dataset, **_arguments(values)), values["step_ms"] / 1000)
    yield _timeline("torch", "torch's loader, the same settings (processes)", theirs, values["workers"])
    yield _slots({"feedline": ours, "torch": theirs})
    rate, waited = _rate(ours), _waited(ours)
    yield figures(
        {
            "samples/s": rate,
            "training waited": f"{waited:.0%}",
            "device busy": f"{1 - waited:.0%}",
            "torch: samples/s": _rate(theirs),
            "torch: training waited": f"{_waited(theirs):.0%}",
        }
    )
    yield bars(
        "rates",
        "Samples per second",
        [("feedline", rate, f"{rate:.0f}", "accent"), ("torch", _rate(theirs), f"{_rate(theirs):.0f}", "compute")],
    )
    yield _curve(recording, values, rate)
    yield table("verdict", "The loader's own verdict", ["loader.stats().verdict"], [[recording.stats().verdict]])
    yield say(_result(waited))


def _result(waited: float) -> str:
    if waited < _LITTLE:
        return "Training hardly waited: it has all the samples that it can use."
    return f"Training waited {waited:.0%} of the time: samples come too slowly."


def _dataset(values: Values) -> tuple[Sleeping, int]:
    """Return a dataset that a loader reads in about `_SECONDS`, and its number of batches."""
    load_s, workers = values["load_ms"] / 1000, max(1, values["workers"])
    mean = load_s * (1 + 19 * values["stragglers"] / 100) * _BATCH
    each = max(mean / workers, values["step_ms"] / 1000, 2e-3)
    count = int(min(_MOST_BATCHES, max(12, _SECONDS / each)))
    return Sleeping(count * _BATCH, load_s, values["spread"], values["stragglers"] / 100), count


# Any: a loader's arguments.
def _arguments(values: Values) -> dict[str, Any]:
    given: dict[str, object] = {"batch_size": _BATCH, "num_workers": values["workers"]}
    if values["workers"]:
        given |= {"prefetch_factor": values["prefetch"], "in_order": values["in_order"]}
    return given


def _engine(values: Values) -> EngineName:
    chosen: EngineName = values["engine"]
    return chosen if values["workers"] else "inline"


def _train(loader: Iterable[torch.Tensor], step_s: float) -> list[Made]:
    """Run an epoch with training steps that sleep, as the CPU may while a GPU computes."""
    made: list[Made] = []
    batches = iter(loader)
    while True:
        asked = time.monotonic()
        try:
            batch = next(batches)
        except StopIteration:
            return made
        made.append(made_of(batch, asked, time.monotonic()))
        time.sleep(step_s)


def _steady(made: list[Made]) -> list[Made]:
    """Leave out the first batches, which came while workers were starting."""
    return made[min(8, len(made) // 3) :]


def _rate(made: list[Made]) -> float:
    steady = _steady(made)
    return (len(steady) - 1) * _BATCH / max(1e-9, steady[-1].got - steady[0].got)


def _waited(made: list[Made]) -> float:
    steady = _steady(made)
    waits = sum(batch.got - batch.asked for batch in steady[1:])
    return waits / max(1e-9, steady[-1].got - steady[0].got)


def _timeline(name: str, title: str, made: list[Made], workers: int) -> Event:
    origin = min([made[0].asked, *(batch.began for batch in made)])
    names = ["training", *(f"worker {worker}" for worker in range(workers))]
    return lanes(name, title, names, spans_of(made, workers, origin))


def _slots(runs: dict[str, list[Made]]) -> Event:
    """Count the batches in memory: from when a worker starts one until training takes the next."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for name, made in runs.items():
        origin = min(batch.began for batch in made)
        freed = [batch.got for batch in made[1:]]
        moments = [origin + (freed[-1] - origin) * part / _MOMENTS for part in range(_MOMENTS)]
        counts = [
            float(sum(batch.began <= moment < free for batch, free in zip(made, freed, strict=False)))
            for moment in moments
        ]
        series[name] = ([moment - origin for moment in moments], counts)
    return lines("slots", "Slots in use: batches being made, waiting, or in training", "s", "batches", series)


def _curve(recording: Recording, values: Values, rate: float) -> Event:
    """Predict other settings from the recording, by running the real core in virtual time."""
    alone, *others = RecordedRun(recording).grid()
    predicted: dict[str, tuple[list[float], list[float]]] = {}
    for one in others:
        counts, rates = predicted.setdefault(one.change, ([0], [alone.samples_per_s]))
        counts.append(one.workers)
        rates.append(one.samples_per_s)
    return lines(
        "curve",
        "Throughput by number of workers: this run, and predictions from it by the real core in virtual time",
        "workers",
        "samples/s",
        {**predicted, "this run": ([values["workers"]], [rate])},
    )


def _code(values: Values) -> str:
    engine = {"engine": values["engine"]} if values["workers"] else {}
    return loader_code(**_arguments(values), **engine, seed=0)


VIEW = View(
    name="workers",
    title="Workers",
    notice="See who does what when, in feedline's loader and in torch's.",
    more="Workers make batches ahead of the training loop. With too few, training waits; too many cost memory and gain "
    "nothing. Prefetching evens out samples that take longer. Batches are delivered in order, so a straggler delays "
    "those behind it: feedline lets other workers run ahead meanwhile, torch's loader does not. Everything was just "
    "measured on this machine, with samples and training steps that sleep for as long as you set.",
    controls=(
        Choice("engine", "Engine", ("process", "thread"), "process"),
        Number("workers", "Workers", 0, 8, 3),
        Number("prefetch", "Prefetch per worker", 1, 8, 2),
        Number("load_ms", "Time to load a sample", 0, 20, 5, step=0.5, unit="ms"),
        Number("spread", "Spread of that time", 0, 1.5, 0.3, step=0.1),
        Number("stragglers", "Stragglers (20 times slower)", 0, 10, 2, step=0.5, unit="%"),
        Number("step_ms", "Training step", 0, 50, 8, unit="ms"),
        Switch("in_order", "In order", default=True),
    ),
    code=_code,
    run=apart(_run),
    questions=(
        (
            "How many workers are enough?",
            "As many as make a batch in the time of one training step: the time to load a batch divided by the time of "
            "a step, rounded up. More of them only take memory.",
        ),
        (
            "Does prefetching more make a slow loader fast?",
            "No. It evens out samples that take longer than others. If workers are too slow on average, the queue "
            "stays empty however long it may be.",
        ),
    ),
    presets=(
        *({"workers": workers} for workers in (0, 1, 2, 3, 4, 6, 8)),
        *({"prefetch": prefetch} for prefetch in (1, 4, 8)),
        *({"stragglers": share, "in_order": in_order} for share in (0, 5) for in_order in (True, False)),
        {"step_ms": 25},
        {"engine": "thread"},
    ),
)
