"""The command line of the simulation."""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time

from tests.simulation.drawing import draw_scenario
from tests.simulation.run import WorldBroken, simulate

_SHOWN = 25
"""Lines of the trace shown after a failure."""


def main() -> int:
    """Run the simulation, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Run the real core of the loader in simulated worlds, and check its laws after every event.",
    )
    parser.add_argument("--seed", type=int, help="seed of the world, or of the first one (default: random)")
    parser.add_argument("--minutes", type=float, help="run worlds, seed after seed, for this many minutes; else one")
    parser.add_argument("--events", type=int, default=2000, help="events per world (2000)")
    options = parser.parse_args()
    first = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    began_s, total = time.monotonic(), 0
    for seed in itertools.count(first):
        try:
            total += simulate(draw_scenario(seed), events=options.events).events
        except WorldBroken as broken:
            report_broken(broken, options.events)
            return 1
        seconds = time.monotonic() - began_s
        if seconds >= (options.minutes or 0) * 60:
            break
    _print(f"{seed - first + 1} worlds, {total:,} events in {seconds:.1f} s: no law was broken")
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
