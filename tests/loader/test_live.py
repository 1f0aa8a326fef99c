"""The live view: its figures, its looks, and that it leaves nothing behind."""

from __future__ import annotations

import gc
import io
import os
import threading
from collections import deque

import pytest

import feedline
from feedline.insight.batch_rows import Totals
from feedline.loader import live
from feedline.loader.base import session_of
from feedline.loader.live import Figures, LiveView, figures_of

S = 1_000_000_000


def totals(batches: int, seconds: float, waited: float, busy: dict[int, float] | None = None) -> Totals:
    found = Totals()
    found.batches, found.samples, found.ready = batches, 4 * batches, 2 * batches
    found.elapsed = int(seconds * S)
    found.waited = int(waited * S)
    found.busy = {worker: int(spent * S) for worker, spent in (busy or {}).items()}
    return found


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "feedline-live"]


# -- figures ---------------------------------------------------------------------------------------------------------


def test_figures_cover_the_time_between_readings() -> None:
    readings = deque([(10 * S, totals(100, 9.0, 8.0, {0: 5.0})), (12 * S, totals(150, 11.0, 8.5, {0: 6.0, 1: 2.5}))])
    figures = figures_of("Photos", readings, workers=2, faults=3)
    assert figures == Figures("Photos", 25.0, 100.0, 0.25, [0.5, 1.0], 2.0, 3, 0, 0.0)
    assert figures.line == (
        "Photos: 25.0 batches/s, 100 samples/s, waited 25 %, 2.0 ready, 3 faults, workers busy 50 100 %"
    )


# -- looks -----------------------------------------------------------------------------------------------------------


def test_lines_are_written_at_intervals() -> None:
    loader, view = feedline.Loader(list(range(100)), 1), LiveView(io.StringIO())
    batches, lines = iter(loader), []
    try:
        view.add(loader, session_of(loader).counters, 0, is_asked_for=True)
        for second in range(10):
            next(batches)
            with view.lock:
                lines += view.lines(second * S).splitlines()
    finally:
        view.close()
    assert not threads()
    assert len(lines) == 2
    assert all(line.startswith("feedline: list: 1.0 batches/s, 1 samples/s, waited ") for line in lines)


def test_a_stopped_terminal_keeps_no_fork_and_no_loader_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(io.StringIO):
        is_written, goes_on = threading.Event(), threading.Event()

        def write(self, text: str) -> int:
            self.is_written.set()
            self.goes_on.wait()
            return super().write(text)

    monkeypatch.setattr(live, "_EVERY_S", 0.001)
    stream = Stopped()
    view, loader = LiveView(stream), feedline.Loader(list(range(100)), 1)
    batches = iter(loader)
    view.add(loader, session_of(loader).counters, 0, is_asked_for=True)
    try:
        while not stream.is_written.is_set():
            next(batches, None)
        is_free = view.lock.acquire(blocking=False)
        if is_free:
            view.lock.release()
    finally:
        stream.goes_on.set()
        view.close()
    assert is_free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="for forks")
def test_writing_takes_no_lock_of_the_stream() -> None:
    class Raw(io.RawIOBase):
        def fileno(self) -> int:
            return end

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            raise AssertionError("a forked process would wait for the lock of this stream")

    begin, end = os.pipe()
    try:
        with io.TextIOWrapper(io.BufferedWriter(Raw()), encoding="ascii") as stream:
            LiveView(stream)._write("ready █")
        assert os.read(begin, 100) == b"ready ?"
    finally:
        os.close(begin)
        os.close(end)


# -- when it is shown ------------------------------------------------------------------------------------------------


def test_a_loader_is_shown_inside_the_context() -> None:
    loader = feedline.Loader(list(range(6)), 2)
    with loader.live():
        assert threads() == ["feedline-live"]
        assert live._view().shows(loader)
        for _ in loader:
            pass
        assert live._view().shows(loader), "also between epochs"
    assert not threads()


def test_the_environment_variable_shows_all_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_LIVE", "1")
    loader = feedline.Loader(list(range(6)), 2)
    batches = iter(loader)
    view = live._view()
    try:
        assert view.shows(loader)
        list(batches)
        with view.lock:
            view.lines(S)
        assert not view.shows(loader), "its epoch is over, so it is hidden"
        other = feedline.Loader(list(range(6)), 2)
        rest = iter(other)
        assert view.shows(other)
        del rest, other
        gc.collect()
        with view.lock:
            view.lines(2 * S)
            assert not view._shown, "it was deleted, so it is hidden"
    finally:
        view.close()
    assert not threads()


@pytest.mark.parametrize(("name", "value"), [("FEEDLINE_LIVE", "0"), ("RANK", "1")])
def test_nothing_is_shown_if_disabled_or_on_other_ranks(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_LIVE", "1")
    monkeypatch.setenv("WORLD_SIZE", "2" if name == "RANK" else "1")
    monkeypatch.setenv(name, value)
    loader = feedline.Loader(list(range(4)), 2)
    live.begins(loader, session_of(loader).counters, 0, is_asked_for=session_of(loader).is_shown)
    assert not threads()
