"""Loaders with one problem each: the symptom, the loader's own verdict, and the same with the fix applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from feedline.tools.lab import view as lab

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


def sleeping(index: int, usual_s: float, rare_s: float) -> object:
    """Wait; every 40th sample waits for another time."""
    time.sleep(rare_s if index % 40 == 7 else usual_s)
    return index


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


class _Problem(NamedTuple):
    """A dataset and arguments that go badly together, and the fix."""

    dataset: Samples
    symptom: str
    arguments: str
    """Arguments besides the batch size, as code."""
    fix: str
    fixed: str
    fixed_dataset: Samples | None = None


_PROBLEMS = {
    "slow decode": _Problem(
        Samples(decoded),
        "The training loop decodes every sample itself while the device waits.",
        "num_workers=0",
        "Let workers decode.",
        "num_workers=2",
    ),
    "GIL": _Problem(
        Samples(looped),
        "Threads that run Python code wait for each other.",
        "num_workers=2, engine='thread'",
        "Use worker processes; threads are for libraries that release the GIL.",
        "num_workers=2, engine='process'",
    ),
    "stragglers": _Problem(
        Samples(lambda index: sleeping(index, 0.001, 0.06)),
        "A few samples take very long, and each of them stops training.",
        "num_workers=2, prefetch_factor=1",
        "Use more workers and prefetch more: the other workers continue meanwhile.",
        "num_workers=6, prefetch_factor=4",
    ),
    "big pickles": _Problem(
        Samples(lambda index: [float(index)] * 6_000),
        "Samples are lists of Python objects, which must be pickled and unpickled.",
        "num_workers=2, collate_fn=as_list",
        "Return NumPy arrays or tensors: they are written once, into shared memory.",
        "num_workers=2",
        Samples(lambda index: np.full(6_000, float(index))),
    ),
    "restarts every epoch": _Problem(
        Samples(lambda index: sleeping(index, 0.0005, 0.0005), _BATCH * 8),
        "Most of each short epoch is spent starting workers.",
        "num_workers=2, worker_init_fn=open_slowly",
        "Set persistent_workers=True to keep workers from epoch to epoch.",
        "num_workers=2, worker_init_fn=open_slowly, persistent_workers=True",
    ),
    "leaking worker": _Problem(
        Samples(leaking),
        "The dataset leaks memory with every sample, so its workers grow.",
        "num_workers=2, persistent_workers=True",
        "Fix the leak; until then, max_memory_per_worker replaces workers that grow too large.",
        "num_workers=2, persistent_workers=True, max_memory_per_worker='60MB'",
    ),
}


def bottlenecks(
    problem: Annotated[str, lab.Control("Problem", options=tuple(_PROBLEMS))] = "slow decode",
    step_ms: Annotated[int, lab.Control("Training step", 0, 50, unit="ms")] = 5,
) -> Iterator[lab.Event]:
    """Choose a problem, and see how much its fix gains.

    The loader runs briefly with the problem and reports what training waited for; then it runs again with the fix.
    Both are measured on this machine: two processes need two cores to be twice as fast.

    A loader is slow only if training waits for it. With longer steps, workers have more time for each batch, and a fix
    gains less.
    """
    chosen, imported = _PROBLEMS[problem], "from feedline import DataLoader\n"
    name = "dataset_of_arrays" if chosen.fixed_dataset else "dataset"
    before = f"loader = DataLoader(dataset, batch_size={_BATCH}, {chosen.arguments})"
    after = f"loader = DataLoader({name}, batch_size={_BATCH}, {chosen.fixed})"
    yield lab.code(f"{imported}\n# before\n{before}\n# after\n{after}")
    names = {"dataset": chosen.dataset, "dataset_of_arrays": chosen.fixed_dataset}
    seen, rates = [], []
    for title, shade, text, sentence in (
        ("as it is", "bad", before, chosen.symptom),
        ("with the fix", "good", after, chosen.fix),
    ):
        yield lab.say(sentence)
        yield lab.doing(f"Running the loader {title}.", _SECONDS)
        loader = lab.loader_of(imported + text, **names, as_list=as_list, open_slowly=open_slowly)
        stats = lab.stats_of(loader, step_s=step_ms / 1000, seconds=_SECONDS)
        yield lab.notes(title, f"The loader's own verdict, {title}", [stats.verdict])
        seen.append(stats)
        rates.append((title, stats.total.samples_per_s, f"{stats.total.samples_per_s:,.0f}", shade))
    yield lab.bars("rates", "Samples per second", rates)
    slow, fixed = seen
    largest = [max((worker.pss_bytes for worker in stats.memory), default=0) >> 20 for stats in seen]
    yield lab.figures(
        {
            "times as fast": f"{rates[1][1] / max(1e-9, rates[0][1]):.2g}x",
            "training waited": f"{slow.total.stall:.0%} → {fixed.total.stall:.0%}",
            "largest worker": f"{largest[0]} → {largest[1]} MiB",
            "workers replaced": f"{slow['recycled_workers']} → {fixed['recycled_workers']}",
        }
    )


VIEW = lab.View(bottlenecks, presets=[{"problem": name} for name in _PROBLEMS])
