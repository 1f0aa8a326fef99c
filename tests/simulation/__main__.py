"""The command line of the simulation."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable

from tests.simulation.drawing import draw_scenario
from tests.simulation.run import WorldBroken, simulate

_SHOWN = 25
"""Lines of the trace shown after a failure."""

_SMALL = 2000
"""Default number of events per world."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Run the real core of the loader in simulated worlds, and check its laws after every event.",
    )
    parser.add_argument("--seed", type=int, help="seed of the world, or of the first one (default: random)")
    parser.add_argument("--minutes", type=float, help="run worlds, seed after seed, for this many minutes")
    parser.add_argument("--worlds", type=int, help="run this many worlds, seed after seed")
    parser.add_argument("--events", type=int, help=f"events per world (default: {_SMALL})")
    return parser


def main() -> int:
    """Run the simulation, and return the exit status."""
    options = _parser().parse_args()
    first = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    events = _SMALL if options.events is None else options.events
    return _simulate_all(_seeds(first, options), events)


def _seeds(first: int, options: argparse.Namespace) -> Iterable[int]:
    """Yield the seeds of the worlds, until their number or the time is reached."""
    until = None if options.minutes is None else time.monotonic() + options.minutes * 60
    count = options.worlds or (1 if until is None else None)
    seed = first
    while (count is None or seed < first + count) and (until is None or time.monotonic() < until):
        yield seed
        seed += 1


def _simulate_all(seeds: Iterable[int], events: int) -> int:
    total, worlds, begun = 0, 0, time.perf_counter()
    for seed in seeds:
        try:
            run = simulate(draw_scenario(seed), events=events)
        except WorldBroken as broken:
            report_broken(broken, events)
            return 1
        total, worlds = total + run.events, worlds + 1
    seconds = time.perf_counter() - begun
    _print(
        f"{worlds} worlds, {total:,} events in {seconds:.1f} s ({total / max(seconds, 1e-9):,.0f}/s): no law was broken"
    )
    return 0


def report_broken(broken: WorldBroken, events: int) -> None:
    """Print the broken law, how to repeat the failure, the world and the end of its trace."""
    run = broken.run
    _print(f"broken: {broken}")
    _print(f"repeat: python -m tests.simulation --seed {run.scenario.seed} --events {events}")
    _print(f"world: {run.scenario!r}")
    _print("\n".join(run.trace[-_SHOWN:]))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
