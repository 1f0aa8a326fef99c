"""Loaders with one problem each: the symptom, the loader's own verdict, and the same with the fix applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch.utils.data import Dataset

from feedline.insight.stats import Stats
from feedline.tools.lab.loaders import loader_of, stats_of
from feedline.tools.lab.pictures import Event, bars, code, doing, figures, notes, say
from feedline.tools.lab.view import Control, View

_SECONDS = 2.5
_BATCH = 16


class Samples(Dataset[object]):
    """Samples that a function makes from their index."""

    def __init__(self, make: Callable[[int], object], count: int = 1 << 16) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> object:
        return self.make(index)


def decoded(index: int) -> object:
    """Compute for a millisecond or two without holding the GIL, as a library that decodes does."""
    return torch.from_numpy(np.sort(np.random.default_rng(index).random(20_000))[:256])


def looped(index: int) -> object:
    """Compute in a Python loop, which holds the GIL."""
    return sum(number ^ index for number in range(12_000))


def waiting(index: int) -> object:
    """Take half a millisecond."""
    time.sleep(0.0005)
    return index


def straggling(index: int) -> object:
    """Take 1 ms; every 40th sample takes 60 ms."""
    time.sleep(0.06 if index % 40 == 7 else 0.001)
    return index


def listed(index: int) -> object:
    """Return a list of numbers, which must be pickled one by one."""
    return [float(index)] * 6_000


def leaking(index: int, kept: list[bytes] = []) -> object:  # noqa: B006  # the leak
    """Keep some memory with every sample."""
    kept.append(b"1" * 300_000)
    time.sleep(0.001)
    return index


def as_list(samples: list[object]) -> list[object]:
    """Collate samples into a list."""
    return samples


def open_slowly(worker: int) -> None:
    """Take as long to start as a worker that opens a large index."""
    time.sleep(0.3)


@dataclass(frozen=True)
class _Problem:
    """A dataset and arguments that go badly together, and the fix."""

    symptom: str
    fix: str
    dataset: Samples
    arguments: str
    """Arguments besides the batch size, as code."""
    fixed: str
    fixed_dataset: Samples | None = None


_PROBLEMS = {
    "slow decode": _Problem(
        "The training loop decodes every sample itself while the device waits.",
        "Let workers decode.",
        Samples(decoded),
        "num_workers=0",
        "num_workers=2",
    ),
    "GIL": _Problem(
        "Threads that run Python code wait for each other.",
        "Use worker processes; threads are for libraries that release the GIL.",
        Samples(looped),
        "num_workers=2, engine='thread'",
        "num_workers=2, engine='process'",
    ),
    "stragglers": _Problem(
        "A few samples take very long, and each of them stops training.",
        "Use more workers and prefetch more: the other workers continue meanwhile.",
        Samples(straggling),
        "num_workers=2, prefetch_factor=1",
        "num_workers=6, prefetch_factor=4",
    ),
    "big pickles": _Problem(
        "Samples are lists of Python objects, which must be pickled and unpickled.",
        "Return NumPy arrays or tensors: they are written once, into shared memory.",
        Samples(listed),
        "num_workers=2, collate_fn=as_list",
        "num_workers=2",
        Samples(lambda index: np.full(6_000, float(index))),
    ),
    "restarts every epoch": _Problem(
        "Most of each short epoch is spent starting workers.",
        "Set persistent_workers=True to keep workers from epoch to epoch.",
        Samples(waiting, _BATCH * 8),
        "num_workers=2, worker_init_fn=open_slowly",
        "num_workers=2, worker_init_fn=open_slowly, persistent_workers=True",
    ),
    "leaking worker": _Problem(
        "The dataset leaks memory with every sample, so its workers grow.",
        "Fix the leak; until then, max_memory_per_worker replaces workers that grow too large.",
        Samples(leaking),
        "num_workers=2, persistent_workers=True",
        "num_workers=2, persistent_workers=True, max_memory_per_worker='60MB'",
    ),
}


def bottlenecks(
    problem: Annotated[str, Control("Problem", options=tuple(_PROBLEMS))] = "slow decode",
    step_ms: Annotated[int, Control("Training step", 0, 50, unit="ms")] = 5,
) -> Iterator[Event]:
    """Choose a problem, and see how much its fix gains.

    The loader runs briefly with the problem and reports what training waited for; then it runs again with the fix.
    Both are measured on this machine: two processes need two cores to be twice as fast.

    A loader is slow only if training waits for it. With longer steps, workers have more time for each batch, and a fix
    gains less.
    """
    chosen = _PROBLEMS[problem]
    before = f"loader = DataLoader(dataset, batch_size={_BATCH}, {chosen.arguments})"
    name = "dataset_of_arrays" if chosen.fixed_dataset else "dataset"
    after = f"loader = DataLoader({name}, batch_size={_BATCH}, {chosen.fixed})"
    imported = "from feedline import DataLoader\n"
    yield code(f"{imported}\n# before\n{before}\n# after\n{after}")
    names: dict[str, object] = {"dataset": chosen.dataset, "dataset_of_arrays": chosen.fixed_dataset}
    names |= {"as_list": as_list, "open_slowly": open_slowly}
    seen: dict[str, Stats] = {}
    for title, text, sentence in (("as it is", before, chosen.symptom), ("with the fix", after, chosen.fix)):
        yield say(sentence)
        yield doing(f"Running the loader {title}.", _SECONDS)
        seen[title] = stats_of(loader_of(imported + text, **names), step_s=step_ms / 1000, seconds=_SECONDS)
        yield notes(title, f"The loader's own verdict, {title}", [seen[title].verdict])
    rates = {title: stats.total.samples_per_s for title, stats in seen.items()}
    shades = {"as it is": "bad", "with the fix": "good"}
    drawn = [(title, rate, f"{rate:,.0f}", shades[title]) for title, rate in rates.items()]
    yield bars("rates", "Samples per second", drawn)
    slow, fixed = seen.values()
    largest = [max((worker.pss_bytes for worker in stats.memory), default=0) >> 20 for stats in seen.values()]
    yield figures(
        {
            "times as fast": f"{rates['with the fix'] / max(1e-9, rates['as it is']):.2g}x",
            "training waited": f"{slow.total.stall:.0%} → {fixed.total.stall:.0%}",
            "largest worker": f"{largest[0]} → {largest[1]} MiB",
            "workers replaced": f"{slow['recycled_workers']} → {fixed['recycled_workers']}",
        }
    )


VIEW = View(bottlenecks, presets=[{"problem": name} for name in _PROBLEMS])
