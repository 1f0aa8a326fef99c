"""Loaders with one problem each: the symptom, the loader's own verdict, and the same with the fix applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

import feedline
from feedline.insight.stats import Stats
from feedline.tools.lab.apart import apart
from feedline.tools.lab.controls import Choice, Number, Values
from feedline.tools.lab.pictures import Event, bars, doing, figures, say, table
from feedline.tools.lab.view import Actions, View

_SECONDS = 2.5
_BATCH = 16


class Decoded(Dataset[object]):
    """Samples that a library decodes in a millisecond or two, without holding the GIL."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> object:
        return torch.from_numpy(np.sort(np.random.default_rng(index).random(20_000))[:256])


class Looped(Decoded):
    """Samples made by a loop in Python, which holds the GIL."""

    def __getitem__(self, index: int) -> torch.Tensor:
        total = 0
        for number in range(12_000):
            total += number ^ index
        return torch.tensor(total)


class Straggling(Decoded):
    """Samples that take 1 ms; every 40th takes 60 ms."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.06 if index % 40 == 7 else 0.001)
        return torch.tensor(index)


class Lists(Decoded):
    """Samples that are lists of numbers, which must be pickled one by one."""

    def __getitem__(self, index: int) -> list[float]:
        return [float(index)] * 6_000


class Arrays(Decoded):
    """The same numbers as an array."""

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        return np.full(6_000, float(index))


class Slow(Decoded):
    """A dataset of few samples, for workers that start slowly."""

    def __len__(self) -> int:
        return _BATCH * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.0005)
        return torch.tensor(index)


class Leaking(Decoded):
    """A dataset that leaks some memory with every sample."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        self.kept.append(b"1" * 300_000)
        return torch.tensor(index)


def _ready_slowly(worker: int) -> None:
    time.sleep(0.3)


def _as_list(samples: list[object]) -> list[object]:
    return samples


@dataclass(frozen=True)
class Problem:
    """A dataset and arguments that go badly together, and the fix."""

    symptom: str
    fix: str
    dataset: Callable[[], Dataset[object]]
    arguments: dict[str, object]
    """Arguments besides the batch size."""
    changed: dict[str, object]
    """Arguments that the fix changes."""
    fixed_dataset: Callable[[], Dataset[object]] | None = None


_PROBLEMS = {
    "slow decode": Problem(
        "The training loop decodes every sample itself while the device waits.",
        "Let workers decode.",
        Decoded,
        {"num_workers": 0},
        {"num_workers": 2},
    ),
    "GIL": Problem(
        "Threads that run Python code wait for each other.",
        "Use worker processes; threads are for libraries that release the GIL.",
        Looped,
        {"num_workers": 2, "engine": "thread"},
        {"engine": "process"},
    ),
    "stragglers": Problem(
        "A few samples take very long, and each of them stops training.",
        "Use more workers and prefetch more: the other workers continue meanwhile.",
        Straggling,
        {"num_workers": 2, "prefetch_factor": 1},
        {"num_workers": 6, "prefetch_factor": 4},
    ),
    "big pickles": Problem(
        "Samples are lists of Python objects, which must be pickled and unpickled.",
        "Return NumPy arrays or tensors: they are written once, into shared memory.",
        Lists,
        {"num_workers": 2, "collate_fn": _as_list},
        {"collate_fn": None},
        Arrays,
    ),
    "restarts every epoch": Problem(
        "Most of each short epoch is spent starting workers.",
        "Set persistent_workers=True to keep workers from epoch to epoch.",
        Slow,
        {"num_workers": 2, "worker_init_fn": _ready_slowly},
        {"persistent_workers": True},
    ),
    "leaking worker": Problem(
        "The dataset leaks memory with every sample, so its workers grow.",
        "Fix the leak; until then, max_memory_per_worker replaces workers that grow too large.",
        Leaking,
        {"num_workers": 2, "persistent_workers": True},
        {"max_memory_per_worker": "60MB"},
    ),
}


def _run(values: Values, _: Actions) -> Iterator[Event]:
    problem = _PROBLEMS[values["problem"]]
    yield say(problem.symptom)
    step_s = values["step_ms"] / 1000
    yield doing("Running the loader as it is.", _SECONDS)
    slow = _measured(problem.dataset(), problem.arguments, step_s)
    yield _verdicts([("as it is", slow)])
    yield say(problem.fix)
    yield doing("Running the loader with the fix.", _SECONDS)
    dataset = (problem.fixed_dataset or problem.dataset)()
    fixed = _measured(dataset, problem.arguments | problem.changed, step_s)
    yield _verdicts([("as it is", slow), ("with the fix", fixed)])
    rates = [slow.total.samples_per_s, fixed.total.samples_per_s]
    yield bars(
        "rates",
        "Samples per second",
        [("as it is", rates[0], f"{rates[0]:,.0f}", "bad"), ("with the fix", rates[1], f"{rates[1]:,.0f}", "good")],
    )
    grown = [_growth(stats) for stats in (slow, fixed)]
    yield figures(
        {
            "times as fast": f"{rates[1] / max(1e-9, rates[0]):.2g}x",
            "training waited": f"{slow.total.stall:.0%} → {fixed.total.stall:.0%}",
            "workers grew": f"{grown[0]:.0f} → {grown[1]:.0f} MiB",
            "workers replaced": f"{slow['recycled_workers']} → {fixed['recycled_workers']}",
        }
    )


def _verdicts(stats_by_name: list[tuple[str, Stats]]) -> Event:
    return table(
        "verdicts",
        "The loader's own verdict",
        ["", "loader.stats().verdict"],
        [[n, s.verdict] for n, s in stats_by_name],
    )


def _growth(stats: Stats) -> float:
    return sum(worker.growth_bytes for worker in stats.memory) / (1 << 20)


# Any: arguments of a loader.
def _measured(dataset: Dataset[object], arguments: dict[str, Any], step_s: float) -> Stats:
    """Train for some time, epoch after epoch; return the loader's measurements."""
    loader = feedline.DataLoader(dataset, batch_size=_BATCH, seed=0, **arguments)
    until = time.monotonic() + _SECONDS
    try:
        while True:
            for _ in loader:
                time.sleep(step_s)
                if time.monotonic() > until:
                    return loader.stats()  # while the workers, whose memory is included, are alive
    finally:
        loader.close()


def _code(values: Values) -> str:
    problem = _PROBLEMS[values["problem"]]
    lines = ["from feedline import DataLoader", "", "# before", _call("dataset", problem.arguments), "# after"]
    name = "dataset_of_arrays" if problem.fixed_dataset else "dataset"
    return "\n".join([*lines, _call(name, problem.arguments | problem.changed), ""])


def _call(dataset: str, arguments: dict[str, object]) -> str:
    shown = {name: getattr(value, "__name__", repr(value)).strip("_") for name, value in arguments.items()}
    given = "".join(f", {name}={value}" for name, value in shown.items() if value != "None")
    return f"loader = DataLoader({dataset}, batch_size={_BATCH}{given})"


VIEW = View(
    name="bottlenecks",
    title="Bottlenecks",
    notice="Choose a problem, and see how much its fix gains.",
    more="The loader runs briefly with the problem and reports what training waited for; then it runs again with the "
    "fix. Both runs are measured on this machine, so figures differ from machine to machine: two processes need two "
    "cores to be twice as fast.",
    controls=(
        Choice("problem", "Problem", tuple(_PROBLEMS), "slow decode"),
        Number("step_ms", "Training step", 0, 50, 5, unit="ms"),
    ),
    code=_code,
    run=apart(_run),
    questions=(
        (
            "Why does the training step matter?",
            "A loader is slow only if training waits for it. With longer steps, workers have more time for each "
            "batch, and a fix gains less. Move the slider.",
        ),
    ),
    presets=tuple({"problem": name} for name in _PROBLEMS),
)
