"""Workers and prefetching: a timeline of workers and training, with feedline's loader and with torch's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Annotated

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from feedline.insight.recording import Recording
from feedline.tools.advise.what_if import RecordedRun
from feedline.tools.lab import view as lab

_SECONDS = 1.6
"""About how long each loader runs."""
_BATCH = 4
_MOST_BATCHES = 120
_LITTLE = 0.05
"""The share of waiting below which more workers gain nothing worth having."""


class Sleeping(Dataset[torch.Tensor]):
    """Samples that take some time, as storage or a decoder does: so long on average, and some 20 times as long."""

    def __init__(self, count: int, load_s: float, spread: float, straggler_share: float) -> None:
        dice = np.random.default_rng(11)
        times = load_s * dice.lognormal(-(spread**2) / 2, spread, count)
        self.times = np.where(dice.random(count) < straggler_share, 20 * load_s, times)

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the worker that makes the sample, and when it began and ended."""
        info, began = get_worker_info(), time.monotonic()
        time.sleep(float(self.times[index]))
        return torch.tensor([-1.0 if info is None else info.id, began, time.monotonic()], dtype=torch.float64)


def workers(
    engine: Annotated[str, lab.Control("Engine", options=("process", "thread"))] = "process",
    workers: Annotated[int, lab.Control("Workers", 0, 8)] = 3,
    prefetch: Annotated[int, lab.Control("Prefetch per worker", 1, 8)] = 2,
    load_ms: Annotated[float, lab.Control("Time to load a sample", 0, 20, 0.5, "ms")] = 5.0,
    spread: Annotated[float, lab.Control("Spread of that time", 0, 1.5, 0.1)] = 0.3,
    stragglers: Annotated[float, lab.Control("Stragglers (20 times slower)", 0, 10, 0.5, "%")] = 2.0,
    step_ms: Annotated[int, lab.Control("Training step", 0, 50, unit="ms")] = 8,
    in_order: Annotated[bool, lab.Control("In order")] = True,
) -> Iterator[lab.Event]:
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
    text = lab.loader_code(**arguments, **({"engine": engine} if workers else {}), seed=0)
    yield lab.code(text)
    batch_s = load_ms / 1000 * (1 + 19 * stragglers / 100) * _BATCH / max(1, workers)
    count = int(min(_MOST_BATCHES, max(12, _SECONDS / max(batch_s, step_ms / 1000, 2e-3))))
    dataset = Sleeping(count * _BATCH, load_ms / 1000, spread, stragglers / 100)
    yield lab.doing(f"feedline's loader delivers {count} batches of {_BATCH} samples.", _SECONDS)
    loader, ours, theirs = lab.loader_of(text, dataset=dataset), _Run(), _Run()
    recording = lab.record(loader, lambda: ours.train(loader, step_ms / 1000))
    names = ["training", *(f"worker {worker}" for worker in range(workers))]
    yield lab.lanes("feedline", "feedline's loader", names, ours.spans)
    yield lab.doing(f"torch's loader delivers the same {count} batches.", _SECONDS)
    torchs = lab.loader_code(**arguments).replace("from feedline ", "from torch.utils.data ")
    theirs.train(lab.loader_of(torchs, dataset=dataset), step_ms / 1000)
    yield lab.lanes("torch", "torch's loader, the same settings (processes)", names, theirs.spans)
    in_memory = {"feedline": ours.in_memory, "torch": theirs.in_memory}
    yield lab.lines("slots", "Slots in use: batches being made, waiting, or in training", "s", "batches", in_memory)
    yield lab.figures(
        {
            "samples/s": ours.samples_per_s,
            "training waited": f"{ours.waited:.0%}",
            "torch: samples/s": theirs.samples_per_s,
            "torch: training waited": f"{theirs.waited:.0%}",
        }
    )
    yield _curve(recording, workers, ours.samples_per_s)
    yield lab.notes("verdict", "The loader's own verdict", [recording.stats().verdict])
    enough = "Training hardly waited: it has all the samples that it can use."
    slow = f"Training waited {ours.waited:.0%} of the time: samples come too slowly."
    yield lab.say(enough if ours.waited < _LITTLE else slow)


class _Run:
    """An epoch of a loader: its timeline in seconds, on a clock that all processes share, and its figures."""

    spans: list[lab.Span]
    """Of the training loop, on the first lane, and of the workers."""
    in_memory: lab.Line
    """Batches in memory: from when a worker starts one until training takes the next."""

    def train(self, loader: Iterable[torch.Tensor], step_s: float) -> None:
        """Run an epoch with training steps that sleep, as the CPU may while a GPU computes."""
        batches, found = iter(loader), list[tuple[float, float, float, float, float]]()
        asked = time.monotonic()
        while (batch := next(batches, None)) is not None:
            found.append(
                (float(batch[0, 0]), float(batch[:, 1].min()), float(batch[:, 2].max()), asked, time.monotonic())
            )
            time.sleep(step_s)
            asked = time.monotonic()
        columns = np.array(found)
        columns[:, 1:] -= columns[:, 1:].min()
        self.spans = []
        for number, (worker, began, ended, asked, got) in enumerate(columns.tolist()):
            if number:
                self.spans.append((0, columns[number - 1, 4], asked, "compute", f"step {number - 1}"))
            if got - asked > 1e-4:
                self.spans.append((0, asked, got, "order", f"waited for batch {number}"))
            if worker >= 0:
                self.spans.append((1 + int(worker), began, ended, "fetch", f"batch {number}"))
        _, began, _, asked, got = columns.T
        moments = np.linspace(began.min(), got[-1], 120)
        held = (began[:-1, None] <= moments) & (moments < got[1:, None])
        self.in_memory = moments.tolist(), held.sum(axis=0).tolist()
        steady = slice(min(8, len(got) // 3), None)  # without the first batches, which came while workers started
        took_s = max(1e-9, got[-1] - got[steady][0])
        self.waited = float((got - asked)[steady][1:].sum() / took_s)
        self.samples_per_s = float((len(got[steady]) - 1) * _BATCH / took_s)


def _curve(recording: Recording, workers: int, samples_per_s: float) -> lab.Event:
    """Predict other settings from the recording, by running the real core in virtual time."""
    alone, *others = RecordedRun(recording).grid()
    predicted: dict[str, tuple[list[float], list[float]]] = {}
    for one in others:
        counts, rates = predicted.setdefault(one.change, ([0], [alone.samples_per_s]))
        counts.append(one.workers)
        rates.append(one.samples_per_s)
    title = "Throughput by number of workers: this run, and predictions from it by the real core in virtual time"
    return lab.lines("curve", title, "workers", "samples/s", {**predicted, "this run": ([workers], [samples_per_s])})


_PRESETS = [
    *({"workers": count} for count in (0, 1, 2, 3, 4, 6, 8)),
    *({"prefetch": depth} for depth in (1, 4, 8)),
    *({"stragglers": share, "in_order": in_order} for share in (0, 5) for in_order in (True, False)),
]
VIEW = lab.View(workers, presets=[*_PRESETS, {"step_ms": 25}, {"engine": "thread"}])
