"""The command line of the drill. Each round runs in a forked process of its own: no earlier failure has affected it."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from tests.drill.round import Outcome, play
from tests.drill.script import Script, draw_script

_CLEANUP_S = 30.0
"""How long a round may take beyond the time after which it should have ended itself."""

_LINE_EVERY_S = 30.0
_TAIL_CHARS = 6000

_ENOUGH = 10
"""Failures after which the drill ends: more would add nothing new."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drill",
        description="Injects faults into real loaders, and checks that nothing is lost, repeated or left behind.",
    )
    parser.add_argument("--minutes", type=float, help="how long; 5, or without limit if the number of rounds is given")
    parser.add_argument("--seed", type=int, help="seed of everything random; a new one every time if not given")
    parser.add_argument("--rounds", type=int, help="number of rounds, or how often to run --round")
    parser.add_argument("--round", type=int, help="run only this round, which is the same every time")
    parser.add_argument("--hang", type=float, default=120.0, metavar="SECONDS", help="how long a round may take")
    return parser


def main() -> int:
    """Run the drill; return the exit status."""
    options = _parser().parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    numbers: Iterable[int] = itertools.count() if options.rounds is None else range(options.rounds)
    if options.round is not None:
        numbers = itertools.repeat(options.round, options.rounds or 1)
    minutes = options.minutes or (5.0 if options.rounds is None and options.round is None else float("inf"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # hundreds of workers crash
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the round, too
    sys.stderr.write(f"seed {seed}\n")
    gc.freeze()
    began_s = said_s = time.monotonic()
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    with contextlib.suppress(KeyboardInterrupt):
        for number in numbers:
            if time.monotonic() - began_s > minutes * 60 or counts["failures"] >= _ENOUGH:
                break
            script = draw_script(seed, number)
            outcome = run(script, options.hang)
            counts.update(rounds=1, failures=bool(outcome.problems), **outcome.counts)
            faults.update(outcome.faults)
            _print_failure(script, outcome)
            if time.monotonic() - said_s > _LINE_EVERY_S:
                said_s = time.monotonic()
                sys.stderr.write(_figures(counts, faults, ", ") + "\n")
    is_good = counts["rounds"] and not counts["failures"]
    sys.stdout.write(f"seed {seed}, {time.monotonic() - began_s:.0f} s\n{_figures(counts, faults, chr(10))}\n")
    sys.stdout.write("nothing is lost, repeated or left behind\n" if is_good else "THE DRILL HAS FAILED\n")
    return 0 if is_good else 1


def _figures(counts: Counter[str], faults: Counter[str], separator: str) -> str:
    return separator.join(f"{count:,} {name}" for name, count in [*counts.items(), *sorted(faults.items())])


def _print_failure(script: Script, outcome: Outcome) -> None:
    if outcome.problems:
        lines = [f"FAILED: {script.command}", f"  settings: {json.dumps(script.settings())}"]
        lines += [f"  {problem}".replace("\n", "\n  ").rstrip() for problem in outcome.problems]
        sys.stdout.write("\n".join(lines) + "\n\n")
        sys.stdout.flush()


def run(script: Script, hang_s: float) -> Outcome:
    """Play a script in a forked process, which is killed with all its workers if it hangs."""
    near, far = multiprocessing.Pipe(duplex=False)
    with (
        near,
        tempfile.TemporaryDirectory(prefix="feedline-drill-") as folder,
        Path(folder, "errors.txt").open("w+") as errors,
    ):
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=_play, args=(script, far, errors, folder, hang_s))
        process.start()
        far.close()
        try:
            process.join(hang_s + _CLEANUP_S)
            if process.exitcode == 0 and near.poll():
                outcome: Outcome = near.recv()
                return outcome
            how = "hung" if process.exitcode is None else f"ended with exit code {process.exitcode}"
            errors.seek(0)
            output = errors.read()[-_TAIL_CHARS:]
            return Outcome(problems=[f"The process {how} in the middle of the round:\n{output}"])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()


def _play(script: Script, report_to: Connection, errors: IO[str], folder: str, hang_s: float) -> None:
    os.setsid()
    tempfile.tempdir = os.environ["TMPDIR"] = folder  # files of an aborted round are deleted with the folder
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for standard in (1, 2):
        os.dup2(errors.fileno(), standard)
    faulthandler.dump_traceback_later(hang_s, exit=True, file=errors)
    outcome = play(script)
    faulthandler.cancel_dump_traceback_later()
    report_to.send(outcome)


if __name__ == "__main__":
    sys.exit(main())
