"""One round: plays a script, and looks for what it leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import tempfile
import time
import traceback
import warnings

from feedline.errors import WorkerWarning
from tests.conftest import GRACE_S, Surroundings
from tests.drill.outcome import Outcome
from tests.drill.saboteur import Saboteur
from tests.drill.script import Script
from tests.drill.stage import Stage
from tests.drill.troubles import Troubles

_EXPECTED_WARNINGS = ("This DataLoader will create", "is multi-threaded, use of fork")


def play(script: Script, *, grace_s: float = GRACE_S) -> Outcome:
    """Run a round and check what it leaves behind; processes and threads have `grace_s` to end."""
    outcome = Outcome(script.number, script.settings(), script.command)
    before = Surroundings.now()
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="feedline-drill-") as folder,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        troubles = Troubles(script.troubles, folder, os.getpid())
        with Saboteur() as saboteur:
            try:
                with contextlib.closing(Stage(script, troubles, saboteur, outcome)) as stage:
                    stage.perform()
                    stage.let_go()
                del stage
            except Exception as exc:
                outcome.problems.append(_description(exc))
        outcome.faults = dict(troubles.happened() + saboteur.happened)
    for warning in caught:
        text = str(warning.message)
        if warning.category is WorkerWarning:
            outcome.restarts += 1
        elif not any(expected in text for expected in _EXPECTED_WARNINGS):
            outcome.problems.append(f"warned of {warning.category.__name__}: {text}")
    caught.clear()
    outcome.leaks += _leftovers(before, grace_s)
    outcome.seconds = time.monotonic() - begun
    outcome.rss_bytes = _resident_bytes()
    return outcome


def _description(exc: BaseException) -> str:
    lines = traceback.format_exception(exc)
    traceback.clear_frames(exc.__traceback__)  # they refer to the loader
    return "".join(lines)


def _leftovers(before: Surroundings, grace_s: float) -> list[str]:
    first = before.leftovers()
    if first:
        for _ in range(2):  # finalizers run by the first collection release more
            gc.collect()
        before.wait_for_leavers(grace_s)
    # Names of other programs in /dev/shm, such as other drills, come and go; what a round left is there both times.
    found = [what for what in before.leftovers() if what in first or not what.startswith("/dev/shm")]
    before.kill_leftover_processes()
    return found


def _resident_bytes() -> int:
    """Return the memory of this process, after releasing all that can be released."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
