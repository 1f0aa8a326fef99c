"""Batching: the number of batches, the size of the last one, and what the batch size means for gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from feedline.loader.loader import Loader
from feedline.tools.lab.controls import Number, Switch, Values
from feedline.tools.lab.pictures import Event, cells, figures, lines, say
from feedline.tools.lab.view import Actions, View, loader_code

_SHOWN = 24
"""Maximum number of batches to draw."""
_SECONDS = 0.25
_NOISED = 256
"""Maximum number of batches of each size whose gradients are computed."""


def _loader(values: Values) -> Loader:
    return Loader(
        np.arange(values["samples"]),
        values["batch_size"],
        shuffle=values["shuffle"],
        drop_last=values["drop_last"],
        seed=0,
    )


def _run(values: Values, _: Actions) -> Iterator[Event]:
    loader, samples, size = _loader(values), values["samples"], values["batch_size"]
    count = len(loader)
    rest = samples - (count - 1) * size if count else 0
    left_out = samples - count * size if values["drop_last"] else 0
    yield figures(
        {"batches": count, "samples in the last batch": min(rest, size), "samples left out": max(0, left_out)}
    )
    for epoch in range(2):
        drawn: list[tuple[str, list[tuple[str, str]]]] = []
        for number, batch in enumerate(loader):
            if number < _SHOWN:
                drawn.append((f"batch {number}", [(str(index), _shade(index, samples)) for index in batch.tolist()]))
                title = f"Epoch {epoch}" + (f", the first {_SHOWN} batches" if count > _SHOWN else "")
                at_s = (epoch * min(count, _SHOWN) + number + 1) * _SECONDS
                yield cells(f"epoch {epoch}", title, drawn, [] if epoch else _legend(samples), at_s)
    if count == 0:
        yield say("drop_last has dropped the only batch: there is nothing to train on.")
    elif values["shuffle"]:
        yield say("The second epoch has the same samples in a different order.")
    else:
        yield say("Without shuffle, every epoch has the same order.")
    yield _noise()


def _shade(index: int, samples: int) -> str:
    """Return one of eight colours by place in the dataset, which makes an order visible at a glance."""
    return f"class-{index * 8 // samples}"


def _legend(samples: int) -> list[tuple[str, str]]:
    members: dict[str, list[int]] = {}
    for index in range(samples):
        members.setdefault(_shade(index, samples), []).append(index)
    return [
        (f"samples {part[0]} to {part[-1]}" if len(part) > 1 else f"sample {part[0]}", shade)
        for shade, part in members.items()
    ]


def _noise() -> Event:
    """Measure how far a batch's gradient is from the gradient of the whole dataset, on a small linear model."""
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    inputs, targets = _regression(4096)
    per_sample = 2 * inputs * (inputs @ np.zeros(inputs.shape[1]) - targets)[:, None]
    whole = per_sample.mean(axis=0)
    measured = []
    for size in sizes:
        apart = [
            float(np.linalg.norm(per_sample[batch].mean(axis=0) - whole) / np.linalg.norm(whole))
            for batch in islice(Loader(np.arange(len(inputs)), size, shuffle=True, drop_last=True, seed=1), _NOISED)
        ]
        measured.append(float(np.mean(apart)))
    law = [measured[0] / math.sqrt(size) for size in sizes]
    return lines(
        "noise",
        "Gradient noise of a linear model with 8 weights: how far a batch's gradient is from the dataset's",
        "batch size",
        "distance / length of the gradient",
        {"measured": (sizes, measured), "first value / √ batch size": (sizes, law)},
        doubling=True,
    )


def _regression(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(count, 8))
    return inputs, inputs @ np.arange(1.0, 9.0) + generator.normal(size=count)


def _code(values: Values) -> str:
    given = {name: values[name] for name in ("batch_size", "shuffle", "drop_last")}
    return loader_code(**given, seed=0)


VIEW = View(
    name="batching",
    title="Batching",
    notice="See how a loader cuts the order of an epoch into batches.",
    more="If the batch size does not divide the dataset, the last batch is smaller, or dropped with drop_last. "
    "With shuffle, every epoch has a different order. Larger batches give steadier gradients, but the noise falls "
    "only with the square root of the batch size: four times the work for half the noise.",
    controls=(
        Number("samples", "Samples in the dataset", 1, 2000, 50),
        Number("batch_size", "Batch size", 1, 256, 8),
        Switch("shuffle", "Shuffle", default=True),
        Switch("drop_last", "Drop an incomplete last batch (drop_last)", default=False),
    ),
    code=_code,
    run=_run,
    questions=(
        (
            "Does drop_last always leave out the same samples?",
            "Without shuffle, yes: the last ones of the dataset are never seen. With shuffle, every epoch leaves out "
            "others, so all samples are seen in the long run.",
        ),
        (
            "Why is a batch of 64 not eight times as good as a batch of 8?",
            "The noise of its gradient falls with the square root of the batch size: by a factor of about 2.8, for "
            "eight times the work.",
        ),
    ),
    presets=tuple(
        {"batch_size": size, "shuffle": shuffle, "drop_last": drop}
        for size in (4, 8, 16)
        for shuffle in (True, False)
        for drop in (True, False)
    ),
)
