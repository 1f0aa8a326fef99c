"""Views of tests. Runs are in processes of their own, so views are functions that can be imported."""

import os
import queue
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from feedline.tools.lab import view as lab


def counting(
    events: Annotated[int, lab.Control("Events", 0, 100_000)] = 3,
    ends: Annotated[str, lab.Control("Ends", options=("well", "raises"))] = "well",
) -> Iterator[lab.Event]:
    """It counts.

    Numbers go up. </script><script>alert(1)</script>
    """
    yield lab.code(f"count({events})")
    for number in range(events):
        yield lab.figures({"number": number})
    if ends == "raises":
        raise ValueError("this view fails")
    yield lab.say("counted")


def waiting(clicks: lab.Clicks) -> Iterator[lab.Event]:
    """It waits until its button is clicked."""
    yield lab.say(str(os.getpid()))
    yield lab.doing("Waiting for a click.")
    yield lab.buttons({"go": "Go"})
    while True:
        try:
            clicked = clicks.get(timeout=0.05)
        except queue.Empty:
            yield lab.figures({"waits": "yes"})
        else:
            yield lab.say(f"clicked: {clicked}")
            return


def forking(dies: Annotated[bool, lab.Control("Dies")] = False) -> Iterator[lab.Event]:
    """Report the ids of its process and of a worker that would outlive it, and the path of a file it created."""
    worker = os.fork()
    if not worker:
        signal.pause()
    file = Path(tempfile.mkdtemp()) / "file"
    file.write_text("x")
    yield lab.say(f"{os.getpid()} {worker} {file}")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


COUNTING = lab.View(counting)
WAITING = lab.View(waiting)
FORKING = lab.View(forking)
