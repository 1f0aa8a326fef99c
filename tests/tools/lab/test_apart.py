"""Runs in their own process leave nothing behind, however they end."""

import multiprocessing
import os
import queue
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from feedline.tools.lab.apart import ViewFailed, apart
from feedline.tools.lab.controls import Values
from feedline.tools.lab.pictures import Event, say
from feedline.tools.lab.view import Actions
from tests.tools.lab.served import has_ended


def _forking(values: Values, _: Actions) -> Iterator[Event]:
    """Report the ids of this process and of a worker that would outlive it, and the path of a file it created."""
    worker = os.fork()
    if not worker:
        signal.pause()
    file = Path(tempfile.mkdtemp()) / "file"
    file.write_text("x")
    yield say(f"{os.getpid()} {worker} {file}")
    if values["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _as_lab(sender: Connection) -> None:
    """Start a run, send what it reports, and wait to be killed."""
    for event in apart(_forking)({"dies": False}, queue.SimpleQueue()):
        if event["kind"] == "say":
            sender.send(event["text"])


@pytest.mark.parametrize("dies", [True, False])
def test_a_run_that_dies_or_is_closed_leaves_nothing_behind(dies: bool) -> None:
    events = apart(_forking)({"dies": dies}, queue.SimpleQueue())
    report = next(event["text"] for event in events if event["kind"] == "say")
    if dies:
        with pytest.raises(ViewFailed, match="ended unexpectedly"):
            list(events)
    else:
        events.close()  # type: ignore[attr-defined]  # it is a generator
    _check_nothing_is_left(report)


@pytest.mark.slow
def test_a_run_leaves_nothing_behind_when_the_lab_is_killed() -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    lab = context.Process(target=_as_lab, args=(sender,))
    lab.start()
    report = receiver.recv()
    lab.kill()
    lab.join()
    _check_nothing_is_left(report)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not preload torch: these runs do not use it, and Python's fork server takes seconds to import it."""
    monkeypatch.setattr("feedline.tools.lab.apart._PRELOADED", ())


def _check_nothing_is_left(report: str) -> None:
    process, worker, file = report.split(maxsplit=2)
    assert has_ended(int(process))
    assert has_ended(int(worker))
    assert not Path(file).parent.exists()
