"""Question: what does it cost to be able to resume, and to resume?

Knob: the number of samples and of workers.

Held still: a dataset that returns 0, shuffled, batches of 64; feedline.DataLoader with a seed against
torchdata's StatefulDataLoader with the same arguments (and no seed, which it does not have). The state is taken after
100 batches, and restored halfway through the epoch.

How to read it: `save` is microseconds of one `state_dict()`, `bytes` its size as a pickle, `steps/s` the rate at which
batches come while no state is taken, `restore` milliseconds from `load_state_dict()` to the first batch. With workers,
torchdata pays for its state at every step: this shows in `steps/s`, while `save` is almost free there. Ratios are round
by round; above 1 is better.

    python -m benchmarks.state_cost
    python -m benchmarks.state_cost --sizes 1e6 --workers 0 2 --json state.jsonl
"""

from __future__ import annotations

import pickle
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import flags, workloads
from feedline.delivery.state import Snapshot
from feedline.tools.measure import harness, rows

PEER = "torchdata"
COLUMNS = (
    rows.Column("save_us", "save\nus", digits=1, with_range=True, better="lower"),
    rows.Column("state_bytes", "state\nbytes", better="lower"),
    rows.Column("steps_per_s", "steps/s", with_range=True, better="higher"),
    rows.Column("restore_ms", "restore\nms", digits=1, with_range=True, better="lower"),
)
BATCH_SIZE = 64


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, sizes=[10**5, 10**6, 10**7], workers=[0, 2], steps=100)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for size in arguments.sizes:
        for workers in arguments.workers:
            for library in (PEER, harness.FEEDLINE):
                once = partial(measure, library, size, workers, arguments.steps)
                case: harness.Case = {"samples": size, "workers": workers}
                entries.append(harness.Entry(case, harness.Side(library), partial(harness.watched, once)))
    outcomes = rows.measure(entries, arguments)
    rows.publish("state_cost", outcomes, arguments, columns=COLUMNS, peer=PEER, details=False)
    return 0


# Any: both loaders, which share no class that has a state.
def open_loader(library: str, samples: int, workers: int) -> Any:
    dataset = workloads.Nothing(samples)
    arguments: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": workers}
    if library == PEER:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(dataset, **arguments)
    from feedline import DataLoader

    return DataLoader(dataset, **arguments, seed=1)


def measure(library: str, samples: int, workers: int, steps: int) -> harness.Figures:
    loader = open_loader(library, samples, workers)
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
    middle = halfway(library, state, samples // BATCH_SIZE // 2)
    loader = open_loader(library, samples, workers)
    begun = time.perf_counter()
    loader.load_state_dict(middle)
    next(iter(loader))
    return {
        "save_us": statistics.median(saving) * 1e6,
        "state_bytes": float(len(pickle.dumps(state))),
        "steps_per_s": steps_per_s,
        "restore_ms": (time.perf_counter() - begun) * 1e3,
    }


# Any: what the loaders' own state_dict returned.
def halfway(library: str, state: Any, batch: int, batch_size: int = BATCH_SIZE) -> Any:
    """Write another place into a state: going there by loading half of the samples would take minutes."""
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
