"""Question: do the loader's promises hold with 10,000 workers on a hundred machines, and 1,000 ranks?

The real plan, core and schedulers in virtual time (`tests/simulation/`): no process is started, and the clock jumps.
Its laws are checked meanwhile.
Workers on nodes make the batches; every tenth minute a node is lost, and its workers are restarted elsewhere. One batch
in a hundred takes five times as long. All ranks take a step together, as training with an all-reduce does: each waits
for the slowest. Twice, the states of all ranks are saved, and another number of ranks continues from them. Training
needs `--use` (80 %) of what the workers can make.

Knob: one rank with all workers ("one"), or many that share them ("many"); the prefetch depth; who makes a batch, the
worker whose turn it is or the one that has least to do ("least"); whether batches keep their order (not with "any").

Held still: the number of workers, how long a batch takes, the seed. Every run of a seed is the same, event for event.

How to read it: `checked` is the number of batches that were compared with the plan, each in its position. The whole
index space of 10**12 samples is shuffled, and all ranks together got exactly its beginning, nothing twice (otherwise
the program ends with an error). `of ideal` is the rate of training steps after the first stragglers, as a share of the
rate of steps that never wait. `start` is how many seconds of training were lost until then, each time that ranks
started. `recovery` is how long it took after the loss of a node until training was back at 95 % of its earlier pace, in
slices of 20 s: median and longest; it is `-` if the earlier pace was not steady enough to say. `under way` is the
largest number of batches of one rank that were in flight or ready; multiplied by the size of a batch, it is the memory
of a rank. `state` is the size of a saved state as JSON. `us/batch` is what the simulated loader cost this machine:
core, plan, checks and the simulation itself.

    python -m benchmarks.scale_study                           # about a quarter of an hour
    python -m benchmarks.scale_study --workers 100 --ranks 10 6 8 --minutes 30
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedline.samplers import RandomSampler
from feedline.schedulers import LeastLoaded
from feedline.simulation import LawBroken
from feedline.simulation.scenario import IN_ORDER, UNORDERED
from feedline.system.ranks import Share
from feedline.types import IndexBlock
from tests.simulation.engine import Trace
from tests.simulation.scenario import Scenario
from tests.simulation.world import World

SAMPLES = 10**12
BATCH_SIZE = 4
SLICE_S = 20.0
BACK = 0.95
CASES = ["one", "many", "least", "any"]
COLUMNS = (
    ("case", 28),
    ("depth", 6),
    ("ranks", 14),
    ("checked", 11),
    ("of ideal", 9),
    ("start s", 8),
    ("recovery s", 12),
    ("under way", 10),
    ("state", 6),
    ("us/batch", 9),
)


@dataclass
class Case:
    """One configuration, and what came of it."""

    name: str
    ranks: list[int]
    depth: int
    order: str = IN_ORDER
    is_least: bool = False
    """True if batches go to the worker that has least to do."""
    batches: int = 0
    of_ideal: float = 0.0
    start_lost_s: float = 0.0
    recoveries_s: list[float] = field(default_factory=list)
    under_way: int = 0
    state_bytes: int = 0
    restarts: int = 0
    us_per_batch: float = 0.0

    @property
    def title(self) -> str:
        """Which ranks, and whether their batches keep their order."""
        name = f"{self.name}, least loaded" if self.is_least else self.name
        return name if self.order == IN_ORDER else f"{name}, any order"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--workers", type=int, default=10_000, help="of all ranks together (%(default)s)")
    add("--ranks", type=int, nargs="+", default=[1000, 600, 800], help="one number after the other (%(default)s)")
    add("--minutes", type=float, default=40.0, help="virtual time of a case (%(default)s)")
    add("--nodes", type=int, default=100, help="machines over which workers are spread (%(default)s)")
    add("--lost-every", type=float, default=10.0, help="minutes from one lost node to the next (%(default)s)")
    add("--batch-s", type=float, default=20.0, help="mean time of a batch in a worker (%(default)s)")
    add("--start-s", type=float, default=60.0, help="mean time until a worker that was started is ready (%(default)s)")
    add("--slow", type=float, default=0.01, help="share of batches that are stragglers (%(default)s)")
    add("--slow-factor", type=float, default=5.0, help="how many times as long they take (%(default)s)")
    add("--use", type=float, default=0.8, help="share of the workers' rate that training needs (%(default)s)")
    add("--depths", type=int, nargs="+", default=[2, 6], help="prefetch depths (%(default)s)")
    add("--cases", nargs="+", choices=CASES, default=CASES, help="see Knob (%(default)s)")
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write the cases as JSON lines")
    options = parser.parse_args(argv)
    print("".join(f"{title:>{width}}" for title, width in COLUMNS))
    cases = []
    for case in all_cases(options):
        Study(case, options).go()
        cases.append(case)
        print(row_of(case), flush=True)
        if options.json:
            options.json.write_text("".join(json.dumps(asdict(case)) + "\n" for case in cases), encoding="utf-8")
    return 0


def all_cases(options: Any) -> Iterator[Case]:
    """Yield what is compared."""
    for depth in options.depths:
        if "one" in options.cases:
            yield Case("one rank", [1], depth)
        if "many" in options.cases:
            yield Case(f"{options.ranks[0]} ranks", options.ranks, depth)
        if "least" in options.cases:
            yield Case(f"{options.ranks[0]} ranks", options.ranks, depth, is_least=True)
    if "any" in options.cases:
        # What comes in any order has no common prefix, from which another number of ranks could go on.
        yield Case(f"{options.ranks[0]} ranks", options.ranks[:1], options.depths[0], UNORDERED)


class Study:
    """One case: all ranks, step by step."""

    def __init__(self, case: Case, options: argparse.Namespace) -> None:
        self.case = case
        self.options = options
        self.dice = random.Random(options.seed)
        self.trace = Trace()
        self.end_s = options.minutes * 60
        self.step_s = 0.0
        self.worlds: list[World] = []
        self.plans: list[Iterator[Any]] = []
        self.got = array("q")
        """All samples that were delivered, over all ranks."""
        self.ends_s: list[tuple[float, float]] = []
        """When each step ended, and how long it would have taken without waiting."""
        self.begins_s: list[float] = []
        """When ranks began, or others went on."""
        self.lost_s: list[float] = []

    def go(self) -> None:
        """Go through the whole time, and fill in the case."""
        case, began_s = self.case, time.process_time()
        states: list[dict[str, Any]] = []
        now_s = 0.0
        for place, ranks in enumerate(case.ranks):
            self.begin(ranks, states, now_s)
            self.begins_s.append(now_s)
            now_s = self.steps(now_s, self.end_s * (place + 1) / len(case.ranks))
            states = [world.state() for world in self.worlds]
            case.state_bytes = max(case.state_bytes, len(json.dumps(states[0])))
            for world in self.worlds:
                case.restarts += world.counters.restarts
                world.close()
        case.us_per_batch = (time.process_time() - began_s) / case.batches * 1e6
        self.check_all()
        self.sum_up()

    def begin(self, ranks: int, states: list[dict[str, Any]], now_s: float) -> None:
        """Have so many ranks from now on, which go on from the states of the others."""
        options, workers = self.options, max(1, self.options.workers // ranks)
        usual_s = options.batch_s / (1 + options.slow * (options.slow_factor - 1))
        spread = [usual_s * (0.75 + 0.5 * (number + 0.5) / 1000) for number in range(1000)]
        for number in range(round(1000 * options.slow)):
            spread[number * 1000 // max(1, round(1000 * options.slow))] = usual_s * options.slow_factor
        self.step_s = options.batch_s / workers / options.use
        scenario = Scenario(
            seed=options.seed,
            samples=SAMPLES,
            batch_size=BATCH_SIZE,
            shuffled=True,
            ranks=ranks,
            tail="drop",
            workers=workers,
            depth=self.case.depth,
            order=self.case.order,
            restarts=1 << 30,
            batch_s=tuple(spread),
            start_s=tuple(options.start_s * (0.5 + number / 100) for number in range(101)),
        )
        self.worlds, self.plans = [], []
        for rank in range(ranks):
            share, dice = Share(rank, ranks, "drop"), random.Random(self.dice.random())
            scheduler = LeastLoaded() if self.case.is_least else None
            world = World(scenario, workers, share, self.trace, dice, scheduler=scheduler)
            world.pass_time(now_s)
            if states:
                # Any rank's state fits every other: that they agree is part of what is tested.
                world.restore(0, states[rank % len(states)])
            else:
                world.begin(0)
            assert world.checkpoint is not None
            self.worlds.append(world)
            self.plans.append(world.order.plan(world.checkpoint.entry))

    def steps(self, now_s: float, until_s: float) -> float:
        """Take steps with all ranks until then."""
        worlds, options, case = self.worlds, self.options, self.case
        early: list[set[tuple[int, ...]]] = [set() for _ in worlds]
        while now_s < until_s:
            while now_s >= (len(self.lost_s) + 1) * options.lost_every * 60:
                self.lose_node(now_s)
            for rank, world in enumerate(worlds):
                batch, _ = world.next()
                self.check(rank, batch, early[rank])
                under_way = len(world.epoch.in_flight) + len(world.epoch.ready)
                if under_way > case.under_way:
                    case.under_way = under_way
            now_s = max(world.now_s for world in worlds) + self.step_s
            for world in worlds:
                world.pass_time(now_s - world.now_s)
            case.batches += len(worlds)
            self.ends_s.append((now_s, self.step_s))
        return now_s

    def lose_node(self, now_s: float) -> None:
        """Let all workers of a node die. Those of a rank stand on as many nodes as there are."""
        self.lost_s.append(now_s)
        nodes, count = self.options.nodes, len(self.worlds[0].workers)
        node = self.dice.randrange(nodes)
        for rank, world in enumerate(self.worlds):
            world.lose([number for number in range(count) if (rank * count + number) % nodes == node])

    def check(self, rank: int, batch: list[int], early: set[tuple[int, ...]]) -> None:
        """Compare a batch with what the plan has in its place; in any order, with what it still has."""
        self.got.extend(batch)
        if self.case.order == IN_ORDER:
            due = listed(next(self.plans[rank]))
            if batch != due:
                raise LawBroken(f"rank {rank} got {batch}, and the plan has {due}")
            return
        while tuple(batch) not in early:
            early.add(tuple(listed(next(self.plans[rank]))))
            if len(early) > 1 << 16:
                raise LawBroken(f"rank {rank} got {batch}, which the plan does not have, or which came before")
        early.remove(tuple(batch))

    def check_all(self) -> None:
        """Check that all ranks together got the beginning of the common order, and nothing twice."""
        got = np.sort(np.frombuffer(self.got, np.int64))
        if (got[1:] == got[:-1]).any():
            raise LawBroken("a sample came twice")
        if self.case.order == IN_ORDER:
            checkpoint = self.worlds[0].checkpoint
            assert checkpoint is not None
            whole = RandomSampler(range(SAMPLES), seed=self.options.seed)
            order = whole.at(np.arange(len(got)), checkpoint.entry.key)
            if (np.sort(order) != got).any():
                raise LawBroken("what all ranks got is not the beginning of the common order")

    def sum_up(self) -> None:
        """Fill in pace and recovery."""
        case = self.case
        options = self.options
        settled_s = 1.5 * options.start_s + options.slow_factor * options.batch_s
        done_s = steady_s = 0.0
        before_s = 0.0
        for end_s, ideal_s in self.ends_s:
            begun_s = max(begin_s for begin_s in self.begins_s if begin_s <= before_s)
            if before_s >= begun_s + settled_s:
                done_s, steady_s = done_s + ideal_s, steady_s + end_s - before_s
            before_s = end_s
        case.of_ideal = done_s / steady_s if steady_s else 0.0
        lost_s = before_s - steady_s - (sum(ideal_s for _, ideal_s in self.ends_s) - done_s)
        case.start_lost_s = lost_s / len(self.begins_s)
        slices = self.paces(SLICE_S)
        for lost_s in self.lost_s:
            first = int(lost_s / SLICE_S) + 1
            before = statistics.median(slices[max(0, first - 15) : first])
            back = next((place for place in range(first, len(slices)) if slices[place] >= BACK * before), None)
            if back is not None and before > BACK * case.of_ideal:
                case.recoveries_s.append((back + 1) * SLICE_S - lost_s)

    def paces(self, slice_s: float) -> list[float]:
        """Return steps as a share of ideal in each slice of the time."""
        done = [0.0] * (int(self.ends_s[-1][0] / slice_s) + 1)
        before_s = 0.0
        for end_s, ideal_s in self.ends_s:
            share, place = ideal_s / (end_s - before_s), int(before_s / slice_s)
            while before_s < end_s:
                until_s = min(end_s, (place + 1) * slice_s)
                done[place] += share * (until_s - before_s)
                before_s, place = until_s, place + 1
        return [seconds / slice_s for seconds in done[:-1]]


def listed(block: Any) -> list[int]:
    """Return the indices of a batch of the plan."""
    assert isinstance(block, IndexBlock)
    indices: list[int] = block.array.tolist()
    return indices


def row_of(case: Case) -> str:
    """Return the row of the table."""
    found = sorted(case.recoveries_s)
    recovery = f"{statistics.median(found):.0f} ({found[-1]:.0f})" if found else "-"
    cells = (
        case.title,
        case.depth,
        " ".join(map(str, case.ranks)),
        f"{case.batches:,}",
        f"{case.of_ideal:.1%}",
        f"{case.start_lost_s:.0f}",
        recovery,
        case.under_way,
        case.state_bytes,
        f"{case.us_per_batch:.0f}",
    )
    return "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))


if __name__ == "__main__":
    sys.exit(main())
