"""The process in which rounds run, one after the other. It reports the outcome of each as a line of JSON.

A failed round ends it; its parent continues with a new process, which the failure has not affected. A round that hangs
is aborted after its time limit, with the stacks of all threads on the error output.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import IO, Any

from tests.drill.round import play
from tests.drill.script import draw_script


@dataclass(frozen=True)
class Assignment:
    """Which rounds a runner runs."""

    seed: int
    numbers: Iterable[int]
    seconds: float
    """No round starts after this time."""
    hang_s: float
    """How long a round may take."""


def run(assignment: Assignment, out: IO[str]) -> None:
    """Run rounds until one fails, the time is over or there are no more."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # hundreds of workers crash
    gc.collect()
    gc.freeze()
    deadline = time.monotonic() + assignment.seconds
    for number in assignment.numbers:
        if time.monotonic() >= deadline:
            return
        script = draw_script(assignment.seed, number)
        _report(out, {"begun": number, "settings": script.settings(), "command": script.command})
        faulthandler.dump_traceback_later(assignment.hang_s, exit=True, file=sys.stderr)
        outcome = play(script)
        faulthandler.cancel_dump_traceback_later()
        _report(out, asdict(outcome))
        if not outcome.is_good:
            return


def _report(out: IO[str], what: dict[str, Any]) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()
