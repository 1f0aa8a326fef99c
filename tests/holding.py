"""Holds a worker at a sample until the machine has had every chance to give its tasks to others."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from feedline import schedulers
from feedline.delivery.machine.lateness import Lateness

_CHANCES = 20
"""How often the machine looks for tasks for an idle worker before the held one is released."""


class Hold:
    """Releases the reader of the file `gate` after the machine has moved tasks or has had its chances to do so.

    A named pipe needs no shared memory, so it can hold threads, forked and spawned processes, and actors.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = folder / "gate"
        self.moved = 0
        """Tasks that had moved when the held worker was released."""
        self._chances = 0
        os.mkfifo(self.gate)
        look = Lateness.help_idle_workers

        def looking(lateness: Lateness, epoch: Any) -> float | None:
            pause_s = look(lateness, epoch)
            flights = lateness._flights
            self._chances += any(not view.outstanding for view in flights.active)
            if self._chances >= _CHANCES or flights.counters.relieved:
                self.release(flights.counters.relieved)
            return pause_s

        monkeypatch.setattr(Lateness, "help_idle_workers", looking)
        monkeypatch.setattr(schedulers, "_SURELY_LATE_S", 0.0)

    def release(self, moved: int = 0) -> None:
        """Release the held worker; waits until one has reached the gate. May be called twice."""
        if self.gate.exists():
            with self.gate.open("w"):
                self.gate.unlink()
            self.moved = moved


def pass_gate(gate: Path) -> None:
    """Wait at a gate until it is opened; return at once if it is open."""
    if gate.exists():
        gate.read_text()


class Whereabouts:
    """Samples are the ids of the threads that made them. One sample waits at the gate."""

    def __init__(self, gate: Path, count: int, held: int) -> None:
        self.gate = gate
        self.count = count
        self.held = held

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.held:
            pass_gate(self.gate)
        return threading.get_native_id()
