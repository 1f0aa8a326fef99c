"""A thread that kills and stops workers from outside, while the training loop continues."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType

from tests.drill.script import KILL, STOP, Attack

_JOIN_S = 30.0


class Saboteur:
    """Carries out attacks one after the other. Stopped workers are continued, at the latest when it leaves.

    Example:
        with Saboteur() as saboteur:
            saboteur.attack(attack, lambda: engine.pids)
    """

    def __init__(self) -> None:
        self.happened: Counter[str] = Counter()
        self._orders: queue.SimpleQueue[tuple[Attack, Callable[[], Iterable[int]]] | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="saboteur", daemon=True)

    def __enter__(self) -> Saboteur:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._orders.put(None)
        self._thread.join(_JOIN_S)

    def attack(self, attack: Attack, pids: Callable[[], Iterable[int]]) -> None:
        """Schedule an attack on one of the processes that `pids` returns when it is due."""
        self._orders.put((attack, pids))

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            attack, pids = order
            if self._leaving.wait(attack.delay_s):
                return
            alive = [pid for pid in pids() if pid > 0 and _is_alive(pid)]
            if not alive:
                continue
            pid = alive[attack.choice % len(alive)]
            if attack.kind == KILL:
                self._signal(pid, signal.SIGKILL, KILL)
            elif self._signal(pid, signal.SIGSTOP, STOP):
                self._leaving.wait(attack.hold_s)
                self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: int, name: str = "") -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has ended in the meantime
            return False
        if name:
            self.happened[name] += 1
        return True


def _is_alive(pid: int) -> bool:
    """True if the process runs or is stopped; a zombie counts as dead."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
