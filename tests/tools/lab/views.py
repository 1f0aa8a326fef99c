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
    ends: Annotated[str, lab.Control("Ends", options=("well", "raises", "not JSON"))] = "well",
) -> Iterator[lab.Event]:
    """It counts.

    Numbers go up. </script><script>alert(1)</script>
    """
    yield lab.code(f"count({events})")
    for number in range(events):
        yield lab.figures({"number": number})
    if ends == "raises":
        raise ValueError("this view fails")
    if ends == "not JSON":
        yield lab.figures({"number": float("nan")})
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


def drawing(size: Annotated[int, lab.Control("Size", 1, 9)] = 3) -> Iterator[lab.Event]:
    """It draws every kind of picture."""
    legend = {"even": "class-0", "odd": "class-1"}
    curve: dict[str, tuple[list[float], list[float]]] = {"process": ([0, 1, 2], [100.5, 180.2, 300.1])}
    yield lab.bars("bars", "Bars", [("workers x prefetch x batch", 3.9e6, "3.9 MiB of the machine's memory", "fetch")])
    yield lab.path("journey", "A journey", [(f"Station {n}", "where something happens") for n in range(8)], 7)
    yield lab.lines("curve", "Samples per second", "workers", "samples/s", curve)
    noise: dict[str, tuple[list[float], list[float]]] = {"seen": ([1, 2, 4, 512], [2.5, 1.9, 1.5, 0.1])}
    yield lab.lines("noise", "Noise", "batch size", "distance", noise, doubling=True)
    yield lab.lines("slots", "Slots", "s", "batches", {"feedline": ([0.0, 0.7, 1.3], [0, 1, 2])})
    yield lab.lanes("timeline", "A timeline", ["training loop"], [(0, 0.0, 1.0, "compute", "step 0")])
    yield lab.cells("cells", "Cells", [("batch 0", [("0", "class-0"), ("1", "class-1")])], legend)
    yield lab.notes("notes", "Notes", [f"DataLoader({'argument=value, ' * 20})"])


COUNTING = lab.View(counting)
WAITING = lab.View(waiting)
FORKING = lab.View(forking)
DRAWING = lab.View(drawing)
