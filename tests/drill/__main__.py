"""The command line of the drill."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Iterable

from tests.drill.soak import Listener, Plan, soak
from tests.drill.summary import Summary

_FOREVER_S = 1e9
_LINE_EVERY_S = 30.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drill",
        description="Injects faults into real loaders, and checks that nothing is lost, repeated or left behind.",
    )
    parser.add_argument("--minutes", type=float, help="how long; 5, or without limit if the number of rounds is given")
    parser.add_argument("--seed", type=int, help="seed of everything random; a new one every time if not given")
    parser.add_argument("--rounds", type=int, help="number of rounds; as many as time permits if not given")
    parser.add_argument("--round", type=int, help="run only this round: it is the same as in the whole drill")
    parser.add_argument("--times", type=int, default=1, help="how often to run each round (races need more than one)")
    parser.add_argument("--hang", type=float, default=120.0, metavar="SECONDS", help="how long a round may take")
    parser.add_argument("--json", action="store_true", help="write the summary as JSON")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="ROUND", help="start with this round")
    parser.add_argument("--report-to", type=int, help=argparse.SUPPRESS)  # the drill starts itself with this
    return parser


def main() -> int:
    """Run the drill; return the exit status."""
    options = _parser().parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    first, count = (options.first, options.rounds) if options.round is None else (options.round, 1)
    minutes = options.minutes if options.minutes is not None else (5.0 if count is None else None)
    plan = Plan(seed, _FOREVER_S if minutes is None else minutes * 60, first, count, options.times, options.hang)
    if options.report_to is not None:
        return _run_rounds(plan, options.report_to)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the process that runs the rounds, too
    sys.stderr.write(f"seed {seed}\n")
    summary = soak(plan, _listener())
    sys.stdout.write((json.dumps(summary.as_json(), indent=2) if options.json else summary.as_text()) + "\n")
    return 0 if summary.is_good and summary.rounds else 1


def _listener() -> Listener:
    """Return a listener that prints a line at intervals, and after each failure."""
    printed_s, failures = 0.0, 0

    def print_line(summary: Summary) -> None:
        nonlocal printed_s, failures
        if summary.seconds - printed_s < _LINE_EVERY_S and len(summary.failures) == failures:
            return
        printed_s, failures = summary.seconds, len(summary.failures)
        faults = sum(summary.faults.values())
        sys.stderr.write(
            f"{summary.rounds} rounds, {faults:,} faults, {summary.samples:,} samples, {failures} failures\n"
        )

    return print_line


def _run_rounds(plan: Plan, file: int) -> int:
    from tests.drill.runner import Assignment, run  # imports torch, which the process that watches has no use for

    numbers: Iterable[int] = itertools.count(plan.first)
    if plan.count is not None:
        numbers = range(plan.first, plan.first + plan.count)
    repeated = (number for number in numbers for _ in range(plan.times))
    with os.fdopen(file, "w") as out:
        run(Assignment(plan.seed, repeated, plan.seconds, plan.hang_s), out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
