"""Runs in a process of their own: nothing of them stays, however they end."""

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
    """Tell the ids of this process and of a worker that stays when it dies, and where it has put a file."""
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
    """Begin a run, tell what it tells, and wait to be killed."""
    for event in apart(_forking)({"dies": False}, queue.SimpleQueue()):
        if event["kind"] == "say":
            sender.send(event["text"])


@pytest.mark.parametrize("dies", [True, False])
def test_nothing_of_a_run_stays(dies: bool) -> None:
    events = apart(_forking)({"dies": dies}, queue.SimpleQueue())
    told = next(event["text"] for event in events if event["kind"] == "say")
    if dies:
        with pytest.raises(ViewFailed, match="ended unexpectedly"):
            list(events)
    else:
        events.close()  # type: ignore[attr-defined]  # it is a generator
    _check_nothing_stays(told)


@pytest.mark.slow
def test_nothing_of_a_run_stays_when_the_lab_is_killed() -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    lab = context.Process(target=_as_lab, args=(sender,))
    lab.start()
    told = receiver.recv()
    lab.kill()
    lab.join()
    _check_nothing_stays(told)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """These runs do not use torch, which Python's fork server takes seconds to import."""
    monkeypatch.setattr("feedline.tools.lab.apart._PRELOADED", ())


def _check_nothing_stays(told: str) -> None:
    process, worker, file = told.split(maxsplit=2)
    assert has_ended(int(process))
    assert has_ended(int(worker))
    assert not Path(file).parent.exists()
