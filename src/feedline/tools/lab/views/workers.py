"""Workers and prefetching: a timeline of workers and training, with feedline's loader and with torch's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Annotated

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import Dataset, get_worker_info

from feedline.insight.recording import Recording
from feedline.tools.advise.what_if import RecordedRun
from feedline.tools.lab.loaders import loader_code, loader_of, record
from feedline.tools.lab.pictures import Event, Line, Span, code, doing, figures, lanes, lines, notes, say
from feedline.tools.lab.view import Control, View

_SECONDS = 1.6
"""About how long each loader runs."""
_BATCH = 4
_MOST_BATCHES = 120
_LITTLE = 0.05
"""The share of waiting below which more workers gain nothing worth having."""


class Sleeping(Dataset[torch.Tensor]):
    """Samples that take some time, as storage or a decoder does.

    Args:
        count: number of samples.
        load_s: mean time of a sample, apart from stragglers.
        spread: how much the times differ; 0 for not at all.
        stragglers: the share of samples that take 20 times as long.
    """

    def __init__(self, count: int, load_s: float, spread: float, stragglers: float) -> None:
        dice = np.random.default_rng(11)
        times = load_s * dice.lognormal(-(spread**2) / 2, spread, count)
        self.times = np.where(dice.random(count) < stragglers, 20 * load_s, times)

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the worker that makes the sample, and when it began and ended."""
        info, began = get_worker_info(), time.monotonic()
        time.sleep(float(self.times[index]))
        return torch.tensor([-1.0 if info is None else info.id, began, time.monotonic()], dtype=torch.float64)


def workers(
    engine: Annotated[str, Control("Engine", options=("process", "thread"))] = "process",
    workers: Annotated[int, Control("Workers", 0, 8)] = 3,
    prefetch: Annotated[int, Control("Prefetch per worker", 1, 8)] = 2,
    load_ms: Annotated[float, Control("Time to load a sample", 0, 20, 0.5, "ms")] = 5.0,
    spread: Annotated[float, Control("Spread of that time", 0, 1.5, 0.1)] = 0.3,
    stragglers: Annotated[float, Control("Stragglers (20 times slower)", 0, 10, 0.5, "%")] = 2.0,
    step_ms: Annotated[int, Control("Training step", 0, 50, unit="ms")] = 8,
    in_order: Annotated[bool, Control("In order")] = True,
) -> Iterator[Event]:
    """See who does what when, in feedline's loader and in torch's.

    Workers make batches ahead of the training loop. Enough of them is the time to load a batch divided by the time of a
    training step, rounded up: with fewer, training waits; more cost memory and gain nothing.

    Prefetching evens out samples that take longer; it does not help workers that are too slow on average. Batches come
    in order, so a straggler delays those behind it: feedline lets other workers run ahead meanwhile, torch does not.
    Everything was just measured, with samples and steps that sleep for as long as you set.
    """
    arguments: dict[str, object] = {"batch_size": _BATCH, "num_workers": workers}
    if workers:
        arguments |= {"prefetch_factor": prefetch, "in_order": in_order}
    chosen = {"engine": engine} if workers else {}
    text = loader_code(**arguments, **chosen, seed=0)
    yield code(text)
    batch_s = load_ms / 1000 * (1 + 19 * stragglers / 100) * _BATCH / max(1, workers)
    count = int(min(_MOST_BATCHES, max(12, _SECONDS / max(batch_s, step_ms / 1000, 2e-3))))
    dataset = Sleeping(count * _BATCH, load_ms / 1000, spread, stragglers / 100)
    yield doing(f"feedline's loader delivers {count} batches of {_BATCH} samples.", _SECONDS)
    loader, ours, theirs = loader_of(text, dataset=dataset), _Run(workers), _Run(workers)
    recording = record(loader, lambda: ours.train(loader, step_ms / 1000))
    yield lanes("feedline", "feedline's loader", ours.lanes, ours.spans())
    yield doing(f"torch's loader delivers the same {count} batches.", _SECONDS)
    torchs = loader_code(**arguments).replace("from feedline ", "from torch.utils.data ")
    theirs.train(loader_of(torchs, dataset=dataset), step_ms / 1000)
    yield lanes("torch", "torch's loader, the same settings (processes)", theirs.lanes, theirs.spans())
    in_memory = {"feedline": ours.in_memory(), "torch": theirs.in_memory()}
    yield lines("slots", "Slots in use: batches being made, waiting, or in training", "s", "batches", in_memory)
    yield figures(
        {
            "samples/s": ours.samples_per_s,
            "training waited": f"{ours.waited:.0%}",
            "torch: samples/s": theirs.samples_per_s,
            "torch: training waited": f"{theirs.waited:.0%}",
        }
    )
    yield _curve(recording, workers, ours.samples_per_s)
    yield notes("verdict", "The loader's own verdict", [recording.stats().verdict])
    if ours.waited < _LITTLE:
        yield say("Training hardly waited: it has all the samples that it can use.")
    else:
        yield say(f"Training waited {ours.waited:.0%} of the time: samples come too slowly.")


class _Run:
    """The batches of a loader: who made them, and when, in seconds on a clock that all processes share."""

    def __init__(self, workers: int) -> None:
        self.lanes = ["training", *(f"worker {worker}" for worker in range(workers))]

    def train(self, loader: Iterable[torch.Tensor], step_s: float) -> None:
        """Run an epoch with training steps that sleep, as the CPU may while a GPU computes."""
        self.makers, batches = list[int](), iter(loader)
        times: list[tuple[float, float, float, float]] = []
        while True:
            asked = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                break
            times.append((float(batch[:, 1].min()), float(batch[:, 2].max()), asked, time.monotonic()))
            self.makers.append(int(batch[0, 0]))
            time.sleep(step_s)
        self.began, self.ended, self.asked, self.got = (np.array(times) - np.min(times)).T
        steady = slice(min(8, len(times) // 3), None)  # without the first batches, which came while workers started
        asked_s, got_s = self.asked[steady], self.got[steady]
        took_s = max(1e-9, float(got_s[-1] - got_s[0]))
        self.waited = float((got_s - asked_s)[1:].sum()) / took_s
        self.samples_per_s = (len(got_s) - 1) * _BATCH / took_s

    def spans(self) -> list[Span]:
        """Return the spans of the training loop, on the first lane, and of the workers."""
        spans: list[Span] = []
        columns = (self.began.tolist(), self.ended.tolist(), self.asked.tolist(), self.got.tolist())
        before: float | None = None
        for number, (worker, began, ended, asked, got) in enumerate(zip(self.makers, *columns, strict=True)):
            if before is not None:
                spans.append((0, before, asked, "compute", f"step {number - 1}"))
            if got - asked > 1e-4:
                spans.append((0, asked, got, "order", f"waited for batch {number}"))
            if worker >= 0:
                spans.append((1 + worker, began, ended, "fetch", f"batch {number}"))
            before = got
        return spans

    def in_memory(self) -> Line:
        """Count the batches in memory: from when a worker starts one until training takes the next."""
        moments = np.linspace(self.began.min(), self.got[-1], 120)
        began, freed = self.began[:-1, None], self.got[1:, None]
        return moments.tolist(), ((began <= moments) & (moments < freed)).sum(axis=0).tolist()


def _curve(recording: Recording, workers: int, samples_per_s: float) -> Event:
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
        {**predicted, "this run": ([workers], [samples_per_s])},
    )


VIEW = View(
    workers,
    presets=[
        *({"workers": count} for count in (0, 1, 2, 3, 4, 6, 8)),
        *({"prefetch": depth} for depth in (1, 4, 8)),
        *({"stragglers": share, "in_order": in_order} for share in (0, 5) for in_order in (True, False)),
        {"step_ms": 25},
        {"engine": "thread"},
    ],
)
