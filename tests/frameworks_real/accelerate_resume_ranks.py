"""One rank of the tests of Accelerate's checkpoints: iterates over loaders, and resumes from every step."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration

from feedline import DataLoader, samplers
from tests.frameworks_real.deliveries import count_deliveries, delivered
from tests.frameworks_real.drawing import BATCH, EPOCHS, RANKS, SIZE, STEPS, Numbers, Stream

CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "in order": (lambda: DataLoader(Numbers(), BATCH), {}),
    "shuffled": (lambda: DataLoader(Numbers(), BATCH, shuffle=True), {}),
    "seedable": (lambda: DataLoader(Numbers(), BATCH, shuffle=True), {"use_seedable_sampler": True, "data_seed": 7}),
    "seeded": (lambda: DataLoader(Numbers(), BATCH, shuffle=True, seed=1), {}),
    "seeded, workers": (
        lambda: DataLoader(Numbers(), BATCH, shuffle=True, seed=1, num_workers=1, persistent_workers=True),
        {},
    ),
    "own sampler": (
        lambda: DataLoader(Numbers(), BATCH, sampler=samplers.DistributedSampler(range(SIZE), seed=5), seed=1),
        {},
    ),
    "stream": (lambda: DataLoader(Stream(), BATCH, shard=True, num_workers=2, engine="thread"), {}),
    "dispatched": (lambda: DataLoader(Numbers(), BATCH, shuffle=True, seed=1), {"dispatch_batches": True}),
}


def prepared(name: str, *, stateful: bool) -> tuple[Accelerator, Any]:
    """Do what a program does at its start."""
    make, options = CASES[name]
    torch.manual_seed(0)
    config = DataLoaderConfiguration(use_stateful_dataloader=stateful, **options)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    return accelerator, accelerator.prepare(make())


def plain(batch: torch.Tensor) -> list[Any]:
    return [[int(index), draw] for index, draw in batch.tolist()]


def whole(name: str, folder: Path, *, stateful: bool) -> tuple[list[Any], dict[str, int]]:
    """Run all epochs, and save a state after every step of the first two, and after these epochs."""
    accelerator, loader = prepared(name, stateful=stateful)
    seen: list[Any] = []
    states = {}
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            seen.append([epoch, plain(batch)])
            if epoch < EPOCHS - 1:
                states[f"{epoch}-batch{len(seen)}"] = len(seen)
                accelerator.save_state(str(folder / f"{epoch}-batch{len(seen)}"))
        if epoch < EPOCHS - 1:
            states[f"{epoch}-end"] = len(seen)
            accelerator.save_state(str(folder / f"{epoch}-end"))
    accelerator.wait_for_everyone()  # all ranks write the same file, and one may not be done
    return seen, states


def rest(name: str, folder: Path, done: int, *, stateful: bool, sets_epoch: bool) -> list[Any]:
    """Restart the program, load a state, and continue."""
    accelerator, loader = prepared(name, stateful=stateful)
    accelerator.load_state(str(folder))
    seen: list[Any] = []
    first, step = divmod(done, STEPS)
    for epoch in range(first, EPOCHS):
        if sets_epoch:
            loader.set_epoch(epoch)
        batches = loader
        if epoch == first and step and not stateful:
            batches = accelerator.skip_first_batches(loader, step)
        seen += [[epoch, plain(batch)] for batch in batches]
    return seen


def main() -> None:
    warnings.simplefilter("ignore")
    count_deliveries()
    answers: dict[str, Any] = {}
    for name in CASES:
        if name == "dispatched" and RANKS > 1:
            continue  # Accelerate itself skips the wrong batches then
        for mode in ("stateful", "stateful, epochs said", "skipped"):
            stateful = mode != "skipped"
            # Every rank saves its own part, and rank 0 the common one.
            folder = Path.cwd() / f"{name}-{mode}"
            seen, states = whole(name, folder, stateful=stateful)
            rests = {
                step: [done, rest(name, folder / step, done, stateful=stateful, sets_epoch=mode != "stateful")]
                for step, done in states.items()
            }
            answers[f"{name}: {mode}"] = {"whole": seen, "rests": rests}
    print(json.dumps({"cases": answers, "iterators": dict(delivered)}))  # noqa: T201


if __name__ == "__main__":
    main()
