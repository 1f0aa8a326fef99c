"""The live view: its figures, when it is shown, and that it leaves nothing behind."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import feedline
from feedline.insight.batch_rows import Totals
from feedline.loader import live
from feedline.loader.base import session_of
from feedline.loader.live import LiveView

S = 1_000_000_000


def totals(batches: int, seconds: float, waited: float, busy: dict[int, float] | None = None) -> Totals:
    found = Totals()
    found.batches, found.samples, found.ready = batches, 4 * batches, 2 * batches
    found.elapsed = int(seconds * S)
    found.waited = int(waited * S)
    found.busy = {worker: int(spent * S) for worker, spent in (busy or {}).items()}
    return found


def views() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "feedline-live"]


@pytest.fixture(autouse=True)
def no_view_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in views():
        thread.join()


def test_a_line_covers_the_time_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[Any] = [
        (10 * S, totals(100, 9.0, 8.0, {0: 5.0})),
        (12 * S, totals(150, 11.0, 8.5, {0: 6.0, 1: 2.5})),
        (14 * S, totals(150, 11.0, 8.5, {0: 6.0, 1: 2.5})),
    ]
    monkeypatch.setattr(LiveView, "_read", lambda _: readings.pop(0))
    loader = feedline.Loader([], 2)
    view = LiveView("Photos", session_of(loader))
    view.close()
    assert view.line() == "Photos: 25.0 batches/s, 100 samples/s, waited 25 %, 2.0 ready, workers busy 50 100 %"
    assert view.line().startswith("Photos: no batch for 2 s")


def test_writing_takes_no_lock_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raw(io.RawIOBase):
        def fileno(self) -> int:
            return end

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            raise AssertionError("a forked process would wait for the lock of this stream")

    begin, end = os.pipe()
    try:
        with io.TextIOWrapper(io.BufferedWriter(Raw()), encoding="ascii") as stream, monkeypatch.context() as patches:
            patches.setattr(sys, "stderr", stream)
            live.write("ready █")
        assert os.read(begin, 100) == b"ready ?"
    finally:
        os.close(begin)
        os.close(end)


def test_a_loader_is_shown_inside_the_context() -> None:
    loader = feedline.Loader(list(range(6)), 2)
    with loader.live():
        (thread,) = views()
        assert len(list(loader)) == 3
        assert views() == [thread], "also between epochs"
    thread.join()
    assert session_of(loader).view is None


def test_the_environment_variable_shows_all_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_LIVE", "1")
    loader = feedline.Loader(list(range(6)), 2)
    batches = iter(loader)
    view = session_of(loader).view
    assert view is not None
    assert view.is_running
    next(batches)
    del batches, loader  # which ends the view
    gc.collect()
    view._thread.join()


@pytest.mark.parametrize(("name", "value"), [("FEEDLINE_LIVE", "0"), ("RANK", "1")])
def test_nothing_is_shown_if_disabled_or_on_other_ranks(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_LIVE", "1")
    monkeypatch.setenv("WORLD_SIZE", "2" if name == "RANK" else "1")
    monkeypatch.setenv(name, value)
    session = session_of(feedline.Loader(list(range(4)), 2))
    live.show_epoch("list", session)
    assert session.view is None
