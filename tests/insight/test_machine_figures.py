"""Figures of the machine, with and without the packages that tell them."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from feedline.insight import machine_figures
from feedline.insight.machine_figures import COLUMNS, MachineFigures


def looked(times: int = 2) -> dict[str, list[float | None]]:
    figures = MachineFigures(lambda: [os.getpid()], every_s=1000)
    figures.open()
    for _ in range(times - 2):
        figures.read()
    figures.close()
    figures.close()
    return figures.columns


def test_columns_are_equally_long_and_the_thread_ends() -> None:
    columns = looked(3)
    assert tuple(columns) == COLUMNS
    assert {len(column) for column in columns.values()} == {3}
    assert "feedline-recording" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_without_any_package_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("psutil", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)
    columns = looked(3)
    assert columns["gpu"] == [None, None, None]
    assert (columns["memory"][0] or 0) > 1 << 20
    assert (columns["worker_memory"][0] or 0) > 1 << 20
    assert columns["cpu"][0] is None, "it takes two looks"


def test_a_gpu_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    module = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50 * handle),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=1000),
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    columns = looked()
    assert columns["gpu"] == [0.25, 0.25]
    assert columns["gpu_memory"] == [2000.0, 2000.0]
    assert closed == [True]


def test_a_gpu_that_does_not_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no driver")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=RuntimeError, nvmlInit=fail))
    assert looked()["gpu"] == [None, None]


def test_looks_of_days_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_figures, "_MOST", 64)
    figures = MachineFigures(list)
    seconds, looks = 0.0, 0
    while seconds < 500:
        figures.read()
        seconds, looks = seconds + figures._every_s, looks + 1
    moments = figures.columns["at"]
    assert 32 <= len(moments) < 64
    assert {len(column) for column in figures.columns.values()} == {len(moments)}
    assert moments == sorted(moments, key=lambda at: at or 0.0)
    assert (figures._every_s, looks < 300) == (8.0, True), "taken less often: the distances stay equal"


def test_a_forked_process_leaves_the_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library was opened by the parent, and crashes when a child closes it."""
    figures = MachineFigures(list, every_s=1000)
    figures.open()
    monkeypatch.setattr(figures._gpu, "close", lambda: os._exit(1))
    child = os.fork()
    if child == 0:
        figures.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    monkeypatch.undo()
    figures.close()


def test_a_reading_that_is_under_way_is_left_out() -> None:
    figures = MachineFigures(list, every_s=1000)
    for _ in range(3):
        figures.read()
    figures.columns["at"].append(1e12)  # the thread appends to one column after the other
    figures.columns["cpu"].append(0.5)
    assert {len(column) for column in figures.since(figures._begun).values()} == {3}
