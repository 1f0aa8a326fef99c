from __future__ import annotations

import pytest

from feedline.tools.measure.machine import collect_details


def test_collecting_details_does_not_fix_the_start_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", None)
    assert collect_details().start_method in ("fork", "forkserver", "spawn")


def test_a_broken_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("libtorch.so: not found")

    monkeypatch.setattr("feedline.tools.measure.machine.require", broken)
    assert collect_details().torch_trouble == "OSError: libtorch.so: not found"
