"""Runs the cases of formats in a separate process, and in another one after a crash."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

from tests import program_server
from tests.fuzz.case import Failure

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = 'import runpy; runpy.run_module("tests.fuzz", run_name="__main__", alter_sys=True)'
_MOST_S = 1700.0
"""For all cases together; each also has its own limit."""
_ENOUGH = 12
"""Number of failures after which to stop."""


def run_cases(formats: Sequence[str], seed: int, cases: int) -> list[Failure]:
    """Run the first `cases` cases of each format; return those that failed."""
    failures: list[Failure] = []
    left, first = list(formats), 0
    while left and len(failures) < _ENOUGH:
        words = [*left, "--seed", seed, "--json", "--first", first, "--cases", cases]
        done = program_server.run(_PROGRAM, *words, cwd=_ROOT, timeout_s=_MOST_S)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        failures += [Failure(**one) for one in messages if "begins" not in one]
        started = [one for one in messages if "begins" in one]
        if not started:
            raise RuntimeError(f"python -m tests.fuzz {' '.join(map(str, words))} did not begin:\n{done.stderr}")
        format_, last = started[-1]["format"], started[-1]["begins"]
        if done.returncode in (0, 1) and (format_, last) == (left[-1], cases - 1):
            break
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        kind = "time" if -done.returncode in (signal.SIGALRM, signal.SIGPROF) else "crash"
        failures.append(Failure(format_, last, "?", kind, f"the process ended with {how}\n{done.stderr[-2000:]}"))
        left, first = left[left.index(format_) :], last + 1
        if first == cases:
            left, first = left[1:], 0
    return failures


def described(seed: int, failures: Sequence[Failure]) -> str:
    """Return the failures, each with the command that repeats it."""
    return "\n\n".join(
        f"{one.kind} ({one.damage}); repeat it with: python -m tests.fuzz {one.format} --seed {seed} --case "
        f"{one.number}\n{one.text}"
        for one in failures
    )
