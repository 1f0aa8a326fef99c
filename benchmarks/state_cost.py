"""Question: what does it cost to be able to resume, and to resume?

Knob: what is loaded (`nothing`: a dataset that returns 0; `tokens`: blocks of 2,048 tokens from a file, through a
`TokenDataset` or the usual dataset around `np.memmap`), the number of samples and of workers.

Held still: shuffled, batches of 64; feedline.DataLoader with a seed against torchdata's StatefulDataLoader with the
same arguments (and no seed, which it does not have). The state is taken after 100 batches. What is restored is a random
place of the epoch, which differs between rounds and is the same for both. The file of tokens is sparse: it has its full
size but takes no space, so nothing is read from a disk.

How to read it: `save` is microseconds of one `state_dict()`, `bytes` its size as a pickle, `steps/s` the rate at which
batches come while no state is taken, `restore` milliseconds from `load_state_dict()` to the first batch of a new
loader; with workers, it includes their start. `open` is the milliseconds before that, for opening the dataset and the
loader. With workers, torchdata pays for its state at every step: this shows in `steps/s`, while `save` is almost free
there. Ratios are round by round; above 1 is better.

    python -m benchmarks.state_cost
    python -m benchmarks.state_cost --sizes 1e6 --workers 0 2 --json state.jsonl
    python -m benchmarks.state_cost --dataset tokens --sizes 5e5 --batch-size 32 --rounds 11     # a billion tokens
"""

from __future__ import annotations

import os
import pickle
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags, workloads
from feedline.delivery.state import Snapshot
from feedline.tools.measure import harness, rows

PEER = "torchdata"
COLUMNS = (
    rows.Column("save_us", "save\nus", digits=1, with_range=True, better="lower"),
    rows.Column("state_bytes", "state\nbytes", better="lower"),
    rows.Column("steps_per_s", "steps/s", with_range=True, better="higher"),
    rows.Column("restore_ms", "restore\nms", digits=1, with_range=True, better="lower"),
    rows.Column("open_ms", "open\nms", digits=1),
)
BLOCK = 2048


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, sizes=[10**5, 10**6, 10**7], workers=[0, 2], steps=100, batch_size=64)
    flags.choose(parser, "--dataset", ("nothing", "tokens"), ("nothing",))
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for dataset in arguments.dataset:
        for size in arguments.sizes:
            path = None
            if dataset == "tokens":
                path = workloads.stored(arguments.data, f"sparse-{size}.bin", partial(write, size))
            for workers in arguments.workers:
                for library in (PEER, harness.FEEDLINE):
                    places = random.Random(0)  # the same for both libraries
                    opened = partial(open_loader, library, path, size, workers, arguments.batch_size)
                    once = partial(measure, library, opened, places, size, arguments.batch_size, arguments.steps)
                    case: harness.Case = {"dataset": dataset, "samples": size, "workers": workers}
                    entries.append(harness.Entry(case, harness.Side(library), partial(harness.watched, once)))
    outcomes = rows.measure(entries, arguments)
    rows.publish("state_cost", outcomes, arguments, columns=COLUMNS, peer=PEER, details=False)
    return 0


def write(samples: int, path: Path) -> None:
    """Make a file of zeros that takes no space."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2 * (samples * BLOCK + 1))


# Any: both loaders, which share no class that has a state.
def open_loader(library: str, path: Path | None, samples: int, workers: int, batch_size: int) -> Any:
    arguments: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers}
    if library == PEER:
        from torchdata.stateful_dataloader import StatefulDataLoader

        if path is None:
            return StatefulDataLoader(workloads.Nothing(samples), **arguments)
        return StatefulDataLoader(workloads.TokenBlocks(np.memmap(path, np.uint16, "r"), BLOCK), **arguments)
    from feedline import DataLoader
    from feedline.text import TokenDataset

    dataset = workloads.Nothing(samples) if path is None else TokenDataset(path, BLOCK, raw_dtype="uint16")
    return DataLoader(dataset, **arguments, seed=1)


def measure(
    library: str, opened: partial[Any], places: random.Random, samples: int, batch_size: int, steps: int
) -> harness.Figures:
    loader = opened()
    batches = iter(loader)
    for _ in range(max(8, steps // 10)):
        next(batches)
    begun = time.perf_counter()
    for _ in range(steps):
        next(batches)
    steps_per_s = steps / (time.perf_counter() - begun)
    saving = []
    for _ in range(20):
        begun = time.perf_counter()
        state = loader.state_dict()
        saving.append(time.perf_counter() - begun)
    del batches
    harness.close(loader)
    moved = elsewhere(library, state, places.randrange(1, samples // batch_size), batch_size)
    begun = time.perf_counter()
    loader = opened()
    is_open = time.perf_counter()
    loader.load_state_dict(moved)
    batches = iter(loader)
    next(batches)
    ended = time.perf_counter()
    del batches
    harness.close(loader)
    return {
        "save_us": statistics.median(saving) * 1e6,
        "state_bytes": float(len(pickle.dumps(state))),
        "steps_per_s": steps_per_s,
        "restore_ms": (ended - is_open) * 1e3,
        "open_ms": (is_open - begun) * 1e3,
    }


# Any: what the loaders' own state_dict returned.
def elsewhere(library: str, state: Any, batch: int, batch_size: int) -> Any:
    """Write another place into a state: going there by loading the samples before it would take minutes."""
    if library == harness.FEEDLINE:
        snapshot = Snapshot.from_dict(state)
        moved = replace(snapshot, order={**snapshot.order, "consumed": batch * batch_size}).as_dict()
        return {**moved, **{name: state[name] for name in ("dataset",) if name in state}}
    state = pickle.loads(pickle.dumps(state))
    main = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
    main["_sampler_iter_yielded"] = batch
    inner = main["_sampler_iter_state"]
    inner["samples_yielded"] = batch * batch_size
    inner["sampler_iter_state"]["yielded"] = batch * batch_size
    if "_snapshot" in state:
        state["_snapshot"]["_snapshot_step"] = batch
    else:
        state["_num_yielded"] = batch
    return state


if __name__ == "__main__":
    sys.exit(main())
