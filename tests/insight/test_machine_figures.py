"""Figures of the machine, with and without a GPU."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from feedline.insight.machine_figures import MachineFigures


def read_figures(times: int = 2) -> dict[str, list[float | None]]:
    figures = MachineFigures(lambda: [os.getpid()], every_s=1000)
    figures.open()
    for _ in range(times - 2):
        figures.read()
    figures.close()
    figures.close()
    return figures.columns


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_figures_come_from_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    columns = read_figures(3)
    assert columns["gpu"] == [None, None, None]
    assert (columns["memory"][0] or 0) > 1 << 20
    assert (columns["worker_memory"][0] or 0) > 1 << 20
    assert columns["cpu"][0] is None, "it takes two readings"


def test_gpu_figures_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
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
    columns = read_figures()
    assert columns["gpu"] == [0.25, 0.25]
    assert columns["gpu_memory"] == [2000.0, 2000.0]
    assert closed == [True]


def test_a_forked_process_leaves_the_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent opened its library, which crashes if a child closes it."""
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
