"""The memory of a loader, measured: lists that workers copy little by little, prefetched batches, the arena's slots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypedDict

import torch
from torch.utils.data import Dataset

import feedline
from feedline.tools.lab.apart import apart
from feedline.tools.lab.controls import Number, Switch, Values
from feedline.tools.lab.pictures import Event, bars, doing, figures, lines, say
from feedline.tools.lab.view import Actions, View
from feedline.tools.measure.load import pss_bytes

_BATCH = 256
_SECONDS = 3.0
_MEBIBYTE = 1 << 20


class Paths(Dataset[tuple[torch.Tensor, int]]):
    """A dataset that looks up a path for each sample, as most datasets of files do."""

    def __init__(self, paths: Sequence[str], sample_bytes: int) -> None:
        self.paths = paths
        self.sample_bytes = sample_bytes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(self.sample_bytes, dtype=torch.uint8), len(self.paths[index])


def _run(values: Values, _: Actions) -> Iterator[Event]:
    count = values["thousand_paths"] * 1000
    grown: dict[str, tuple[list[float], list[float]]] = {}
    for name in ("a Python list", "feedline.share"):
        yield doing(f"Measuring the memory of the workers, with the paths in {name}.", _SECONDS)
        paths: Sequence[str] = [
            f"/data/train/class_{number % 1000:04d}/image_{number:08d}.jpg" for number in range(count)
        ]
        if name == "feedline.share":
            paths = feedline.share(paths)
        seen, pss, details = _epoch(Paths(paths, values["sample_kb"] * 1000), values)
        grown[name] = (seen, [value - pss[0] for value in pss])
        yield lines(
            "growth",
            "Growth of the program's memory (PSS) since the first batch, while samples are looked up",
            "thousand samples looked up",
            "MiB",
            grown,
        )
    batch_bytes = _BATCH * values["sample_kb"] * 1000
    formula = values["workers"] * values["prefetch"] * batch_bytes
    yield bars(
        "prefetch",
        "Memory for prefetched batches: by the formula, and as measured in the arena",
        [
            ("workers x prefetch x batch", float(formula), f"{formula / _MEBIBYTE:.1f} MiB", "compute"),
            ("arena, measured", float(details["arena"]), f"{details['arena'] / _MEBIBYTE:.1f} MiB", "accent"),
        ],
    )
    yield figures(
        {
            "growth with a list": f"{grown['a Python list'][1][-1]:.1f} MiB",
            "growth with share": f"{grown['feedline.share'][1][-1]:.1f} MiB",
            "most slots in use": details["slots"],
            "batches pinned": "yes" if details["pinned"] else "no",
        }
    )
    yield say("Workers copy a list as they read it, but not what share() made.")


class Details(TypedDict):
    """Facts about a loader."""

    pinned: bool
    arena: int
    slots: int


def _epoch(dataset: Paths, values: Values) -> tuple[list[float], list[float], Details]:
    """Run a part of an epoch; return thousands of samples seen, summed PSS in MiB, and details about the loader."""
    pinned = bool(values["pin"]) and torch.cuda.is_available()
    loader = feedline.DataLoader(
        dataset,
        batch_size=_BATCH,
        shuffle=True,
        seed=0,
        num_workers=values["workers"],
        prefetch_factor=values["prefetch"],
        engine="process",
        pin_memory=pinned,
    )
    seen, pss, slots = [], [], 0
    is_pinned = False
    until, every = time.monotonic() + _SECONDS, max(1, len(loader) // 12)
    for number, (samples, _) in enumerate(loader):
        is_pinned = is_pinned or (pinned and samples.is_pinned())
        if number % every == 0:
            seen.append(number * _BATCH / 1000)
            pss.append((pss_bytes(kinds=("Pss_Anon",)) or 0) / _MEBIBYTE)
        slots = max(slots, int(loader.stats()["leased_slots"])) if number % 16 == 0 else slots
        if time.monotonic() > until and len(seen) > 2:
            break
    details = Details(pinned=is_pinned, arena=int(loader.stats()["arena_bytes"]), slots=slots)
    loader.close()
    return seen, pss, details


def _code(values: Values) -> str:
    pin = "\n    pin_memory=True," if values["pin"] else ""
    return f"""import feedline

paths = feedline.share(paths)  # a list of {values["thousand_paths"]},000 strings, stored once for all workers
loader = feedline.DataLoader(
    MyDataset(paths),
    batch_size={_BATCH},
    num_workers={values["workers"]},
    prefetch_factor={values["prefetch"]},{pin}
)
"""


VIEW = View(
    name="memory",
    title="Memory",
    notice="See how much memory workers take, with paths in a list and with feedline.share.",
    more="Forked workers share the memory of the training process until one of them writes to it, and Python writes to "
    "every object that it reads. So a list of paths is copied little by little into every worker; a list made by "
    "share() is not. Waiting batches take workers x prefetch x batch size, in slots that are reused.",
    controls=(
        Number("workers", "Workers", 1, 4, 2),
        Number("thousand_paths", "Paths in the dataset, in thousands", 10, 500, 200, step=10),
        Number("prefetch", "Prefetch per worker", 1, 8, 2),
        Number("sample_kb", "Size of a sample", 1, 50, 4, unit="kB"),
        Switch("pin", "Pinned memory (needs a GPU)", default=False),
    ),
    code=_code,
    run=apart(_run),
    questions=(
        (
            "Why does memory grow although the workers only read the list?",
            "Reading an object changes its reference count, which is stored in the object. So the system copies its "
            "memory page for that worker. share() keeps all strings in a few arrays, which reading does not change.",
        ),
        (
            "Is it a leak?",
            "No: it ends when every worker has a copy of the whole list. With many workers and a long list, memory may "
            "run out before.",
        ),
    ),
    presets=({}, {"workers": 1}, {"workers": 4}, {"prefetch": 8}, {"sample_kb": 50}),
)
