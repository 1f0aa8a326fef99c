"""One round: plays a script, and looks for what it leaves behind."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

from feedline.errors import WorkerWarning
from tests.conftest import GRACE_S, Surroundings
from tests.drill.saboteur import Saboteur
from tests.drill.script import Script
from tests.drill.stage import Stage
from tests.drill.troubles import Troubles

_EXPECTED_WARNINGS = ("This DataLoader will create", "is multi-threaded, use of fork")


@dataclass
class Outcome:
    """The outcome of a round."""

    counts: Counter[str] = field(default_factory=Counter)
    """Batches, samples and workers; samples that were lost, repeated or corrupted."""
    faults: Counter[str] = field(default_factory=Counter)
    """How often each fault happened."""
    problems: list[str] = field(default_factory=list)
    """What is wrong."""


def play(script: Script, *, grace_s: float = GRACE_S) -> Outcome:
    """Run a round and check what it leaves behind; processes and threads have `grace_s` to end."""
    outcome = Outcome()
    before = Surroundings.now()
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
        outcome.faults = troubles.happened() + saboteur.happened
    for warning in caught:
        text = str(warning.message)
        if warning.category is WorkerWarning:
            outcome.counts["workers replaced"] += 1
        elif not any(expected in text for expected in _EXPECTED_WARNINGS):
            outcome.problems.append(f"warned of {warning.category.__name__}: {text}")
    caught.clear()
    outcome.problems += [f"left behind: {what}" for what in _leftovers(before, grace_s)]
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
