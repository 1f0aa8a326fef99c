"""Views of tests. Runs are in processes of their own, so views are functions that can be imported."""

import os
import queue
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from feedline.tools.lab.pictures import (
    Event,
    bars,
    buttons,
    cells,
    code,
    doing,
    figures,
    lanes,
    lines,
    notes,
    path,
    say,
)
from feedline.tools.lab.view import Clicks, Control, View


def counting(
    events: Annotated[int, Control("Events", 0, 100_000)] = 3,
    ends: Annotated[str, Control("Ends", options=("well", "raises", "not JSON"))] = "well",
) -> Iterator[Event]:
    """It counts.

    Numbers go up. </script><script>alert(1)</script>
    """
    yield code(f"count({events})")
    for number in range(events):
        yield figures({"number": number})
    if ends == "raises":
        raise ValueError("this view fails")
    if ends == "not JSON":
        yield figures({"number": float("nan")})
    yield say("counted")


def waiting(clicks: Clicks) -> Iterator[Event]:
    """It waits until its button is clicked."""
    yield say(str(os.getpid()))
    yield doing("Waiting for a click.")
    yield buttons({"go": "Go"})
    while True:
        try:
            clicked = clicks.get(timeout=0.05)
        except queue.Empty:
            yield figures({"waits": "yes"})
        else:
            yield say(f"clicked: {clicked}")
            return


def forking(dies: Annotated[bool, Control("Dies")] = False) -> Iterator[Event]:
    """Report the ids of its process and of a worker that would outlive it, and the path of a file it created."""
    worker = os.fork()
    if not worker:
        signal.pause()
    file = Path(tempfile.mkdtemp()) / "file"
    file.write_text("x")
    yield say(f"{os.getpid()} {worker} {file}")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def drawing(size: Annotated[int, Control("Size", 1, 9)] = 3) -> Iterator[Event]:
    """It draws every kind of picture."""
    legend = {"even": "class-0", "odd": "class-1"}
    curve: dict[str, tuple[list[float], list[float]]] = {"process": ([0, 1, 2], [100.5, 180.2, 300.1])}
    yield bars("bars", "Bars", [("workers x prefetch x batch", 3.9e6, "3.9 MiB of the machine's memory", "fetch")])
    yield path("journey", "A journey", [(f"Station {n}", "where something happens") for n in range(8)], 7)
    yield lines("curve", "Samples per second", "workers", "samples/s", curve)
    noise: dict[str, tuple[list[float], list[float]]] = {"seen": ([1, 2, 4, 512], [2.5, 1.9, 1.5, 0.1])}
    yield lines("noise", "Noise", "batch size", "distance", noise, doubling=True)
    yield lines("slots", "Slots", "s", "batches", {"feedline": ([0.0, 0.7, 1.3], [0, 1, 2])})
    yield lanes("timeline", "A timeline", ["training loop"], [(0, 0.0, 1.0, "compute", "step 0")])
    yield cells("cells", "Cells", [("batch 0", [("0", "class-0"), ("1", "class-1")])], legend)
    yield notes("notes", "Notes", [f"DataLoader({'argument=value, ' * 20})"])


COUNTING = View(counting)
WAITING = View(waiting)
FORKING = View(forking)
DRAWING = View(drawing)
