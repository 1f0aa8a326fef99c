"""Question: what does it cost to be able to resume, and to do so?

Knob: the number of samples and of workers.

Held still: a dataset that returns 0, shuffled, batches of 64; feedline.DataLoader with a seed against
torchdata's StatefulDataLoader with the same arguments (and no seed, which it does not have). The state is taken after
100 batches, and restored halfway through the epoch.

How to read it: `save` is microseconds of one `state_dict()`, `bytes` its size as a pickle, `steps/s` the rate at which
batches come while no state is taken, `restore` milliseconds from `load_state_dict()` to the first batch. With workers,
torchdata pays for its state at every step, so that `save` is next to nothing there and `steps/s` is not. Ratios are
round by round; above 1 is better.

    python -m benchmarks.state_cost
    python -m benchmarks.state_cost --sizes 1e6 --workers 0 2 --json state.jsonl
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.table import Table

from benchmarks import harness, machine, rows, workloads

PEER = "torchdata"
COLUMNS = (
    rows.Column("save_us", "save\nus", digits=1, with_range=True),
    rows.Column("state_bytes", "state\nbytes"),
    rows.Column("steps_per_s", "steps/s", with_range=True),
    rows.Column("restore_ms", "restore\nms", digits=1, with_range=True),
)
RATIOS = {"save_us": "x save", "state_bytes": "x bytes", "steps_per_s": "x steps", "restore_ms": "x restore"}
BATCH_SIZE = 64


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=None, engine=[])
    parser.add_argument("--sizes", nargs="+", type=_size, default=[10**5, 10**6, 10**7], help="samples (1e5 1e6 1e7)")
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--steps", type=int, default=100, help="batches before the state is taken (100)")
    arguments = parser.parse_args(argv)
    outcomes = measure(arguments)
    comparisons = [compare(outcome, outcomes) for outcome in outcomes]
    rows.write_rows("state_cost", outcomes, comparisons, arguments)
    if arguments.json != "-":
        show(outcomes, comparisons, arguments)
    return 0


def measure(arguments: argparse.Namespace) -> list[harness.Outcome]:
    outcomes = [
        harness.Outcome({"samples": size, "workers": workers}, harness.Side(library))
        for size in arguments.sizes
        for workers in arguments.workers
        for library in (PEER, harness.FEEDLINE)
    ]
    settings = rows.settings(arguments)
    with rows.progress(len(outcomes) * settings.rounds) as step:
        for number in range(settings.rounds):
            for outcome in outcomes:
                step(f"round {number + 1} of {settings.rounds}: {outcome.side.name} {outcome.case}")
                outcome.rounds.append(harness.undisturbed(partial(one_round, outcome, arguments.steps), settings))
    return outcomes


# Any: both loaders, which share no class that has a state.
def open_loader(library: str, samples: int, workers: int) -> Any:
    dataset = workloads.Nothing(samples)
    arguments: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": workers}
    if library == PEER:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(dataset, **arguments)
    from feedline import DataLoader

    return DataLoader(dataset, **arguments, seed=1)  # type: ignore[arg-type]  # a dataset as torch knows it


def one_round(outcome: harness.Outcome, steps: int) -> harness.Figures:
    samples, workers = int(outcome.case["samples"]), int(outcome.case["workers"])
    before = machine.load_of_others()
    loader = open_loader(outcome.side.library, samples, workers)
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
    size = len(pickle.dumps(state))
    del batches
    middle = halfway(outcome.side.library, state, samples // BATCH_SIZE // 2)
    loader = open_loader(outcome.side.library, samples, workers)
    begun = time.perf_counter()
    loader.load_state_dict(middle)
    next(iter(loader))
    restore_ms = (time.perf_counter() - begun) * 1e3
    after = machine.load_of_others()
    return {
        "save_us": statistics.median(saving) * 1e6,
        "state_bytes": float(size),
        "steps_per_s": steps_per_s,
        "restore_ms": restore_ms,
        "other_cores": None if before is None or after is None else max(before, after),
    }


# Any: what the loaders' own state_dict returned.
def halfway(library: str, state: Any, batch: int) -> Any:
    """Write another place into a state: going there by loading half of the samples would take minutes."""
    if library == harness.FEEDLINE:
        return {**state, "order": {**state["order"], "consumed": batch * BATCH_SIZE}}
    state = pickle.loads(pickle.dumps(state))
    main = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
    main["_sampler_iter_yielded"] = batch
    inner = main["_sampler_iter_state"]
    inner["samples_yielded"] = batch * BATCH_SIZE
    inner["sampler_iter_state"]["yielded"] = batch * BATCH_SIZE
    if "_snapshot" in state:
        state["_snapshot"]["_snapshot_step"] = batch
    else:
        state["_num_yielded"] = batch
    return state


def compare(outcome: harness.Outcome, outcomes: Sequence[harness.Outcome]) -> dict[str, harness.Spread | None]:
    base = next(other for other in outcomes if other.side.library == PEER and other.case == outcome.case)
    if base is outcome:
        return dict.fromkeys(RATIOS)
    return {figure: harness.ratio(outcome, base, figure, lower_is_better=figure != "steps_per_s") for figure in RATIOS}


def show(
    outcomes: Sequence[harness.Outcome],
    comparisons: Sequence[dict[str, harness.Spread | None]],
    arguments: argparse.Namespace,
) -> None:
    table = Table(title=f"state_cost: median of {arguments.rounds} interleaved rounds \\[lowest..highest]")
    for title in ("samples", "workers", "loader", *(c.title for c in COLUMNS), *RATIOS.values(), "note"):
        table.add_column(title, justify="left" if title == "loader" else "right", no_wrap=True)
    for outcome, found in zip(outcomes, comparisons, strict=True):
        table.add_row(
            f"{outcome.case['samples']:,}",
            str(outcome.case["workers"]),
            outcome.side.name,
            *(rows.cell(harness.spread(outcome, column.figure), column) for column in COLUMNS),
            *(rows.times(found[figure]) for figure in RATIOS),
            rows.note(outcome),
            end_section=outcome.side.library == harness.FEEDLINE,
        )
    rows.show(table)


def _size(text: str) -> int:
    return int(float(text))


if __name__ == "__main__":
    sys.exit(main())
