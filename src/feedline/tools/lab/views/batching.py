"""Batching: the number of batches, the size of the last one, and what the batch size means for gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from feedline.loader.loader import Loader
from feedline.tools.lab import view as lab

_SHOWN = 24
"""Maximum number of batches to draw."""
_SECONDS = 0.25
_NOISED = 256
"""Maximum number of batches of each size whose gradients are computed."""


def batching(
    samples: Annotated[int, lab.Control("Samples in the dataset", 1, 2000)] = 50,
    batch_size: Annotated[int, lab.Control("Batch size", 1, 256)] = 8,
    shuffle: Annotated[bool, lab.Control("Shuffle")] = True,
    drop_last: Annotated[bool, lab.Control("Drop an incomplete last batch (drop_last)")] = False,
) -> Iterator[lab.Event]:
    """See how a loader cuts the order of an epoch into batches.

    If the batch size does not divide the dataset, the last batch is smaller, or dropped with drop_last. Without
    shuffle, drop_last leaves out the same samples in every epoch; with shuffle, others each time.

    Larger batches give steadier gradients, but the noise falls only with the square root of the batch size: a batch
    of 64 has 2.8 times less noise than a batch of 8, for eight times the work.
    """
    text = lab.loader_code(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=0)
    yield lab.code(text)
    loader = lab.loader_of(text, dataset=range(samples))
    parts = np.array_split(np.arange(samples), min(8, samples))
    shades = [f"class-{number}" for number, part in enumerate(parts) for _ in part]
    legend = {f"samples {part[0]} to {part[-1]}": f"class-{number}" for number, part in enumerate(parts)}
    epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
    sizes = [len(batch) for batch in epochs[0]]
    left_out = samples - sum(sizes)
    last = sizes[-1] if sizes else 0
    yield lab.figures({"batches": len(sizes), "samples in the last batch": last, "samples left out": left_out})
    for epoch, batches in enumerate(epochs):
        title = f"Epoch {epoch}" + (f", the first {_SHOWN} batches" if len(batches) > _SHOWN else "")
        drawn: list[lab.Row] = []
        for number, batch in enumerate(batches[:_SHOWN]):
            drawn.append((f"batch {number}", [(str(index), shades[index]) for index in batch]))
            at_s = (epoch * min(_SHOWN, len(batches)) + number + 1) * _SECONDS
            yield lab.cells(f"epoch {epoch}", title, drawn, {} if epoch else legend, at_s)
    result = "Without shuffle, every epoch has the same order."
    if shuffle:
        result = "The second epoch has the same samples in a different order."
    yield lab.say(result if sizes else "drop_last has dropped the only batch: there is nothing to train on.")
    yield _noise()


def _noise() -> lab.Event:
    """Measure how far a batch's gradient is from the gradient of the whole dataset, on a small linear model."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(4096, 8))
    targets = inputs @ np.arange(1.0, 9.0) + generator.normal(size=len(inputs))
    gradients = -2 * inputs * targets[:, None]  # of a model whose weights are all zero
    whole = gradients.mean(axis=0)
    sizes, measured = [2**power for power in range(10)], []
    for size in sizes:
        batches = itertools.islice(Loader(np.arange(len(inputs)), size, shuffle=True, drop_last=True, seed=1), _NOISED)
        apart = [np.linalg.norm(gradients[batch].mean(axis=0) - whole) / np.linalg.norm(whole) for batch in batches]
        measured.append(float(np.mean(apart)))
    law = [measured[0] / size**0.5 for size in sizes]
    return lab.lines(
        "noise",
        "Gradient noise of a linear model with 8 weights: how far a batch's gradient is from the dataset's",
        "batch size",
        "distance / length of the gradient",
        {"measured": (sizes, measured), "first value / √ batch size": (sizes, law)},
        doubling=True,
    )


_PRESETS = itertools.product((4, 8, 16), (True, False), (True, False))
VIEW = lab.View(
    batching, [{"batch_size": size, "shuffle": mixes, "drop_last": drops} for size, mixes, drops in _PRESETS]
)
