"""A crew whose engine tests move by hand: each worker answers, dies or is killed when the test says so."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.abc import Engine
from feedline.errors import WorkerDied
from feedline.frameworks.numpy import NumpyFramework
from feedline.core.counters import Counters
from feedline.loader.crew import Crew
from feedline.loader.rescue import Answers, Care
from feedline.transport.arena import Arena
from feedline.transport.codec import Codec, SlotWriter
from feedline.transport.reading import Copies
from feedline.types import Parcel, Result, ResultKind, Resume, Task, WorkerSpec

CODEC = Codec(NumpyFramework())


class HandEngine(Engine):
    """Answers when the test says so, with batches written into the task's slot."""

    def __init__(self, worker_count: int = 2) -> None:
        self.worker_count = worker_count
        self.tasks: list[tuple[int, Task]] = []
        self.answers: list[Result] = []
        self.arena: Arena | None = None
        self.closed = 0
        self.replaced: list[int] = []
        self.killed: list[int] = []

    def open(self, spec: WorkerSpec) -> None:
        return

    def submit(self, worker: int, task: Task) -> None:
        if task.indices == "unsendable":
            raise TypeError("cannot be sent")
        self.tasks.append((worker, task))

    def revoke(self, worker: int) -> int | None:
        for place, (who, task) in enumerate(self.tasks):
            if who == worker:
                del self.tasks[place]
                return task.id
        return None

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        answers, self.answers = self.answers, []
        return answers

    def replace(self, worker: int) -> None:
        assert worker not in self.waiting(), "what it had was not taken back"
        self.replaced.append(worker)

    def kill(self, worker: int) -> bool:
        self.killed.append(worker)
        return True

    def stack(self, worker: int) -> str | None:
        return f'File "loading.py", line 7 in read_{worker}\n'

    def pid(self, worker: int) -> int | None:
        return 4000 + worker

    def close(self) -> None:
        self.closed += 1

    def waiting(self) -> list[int]:
        """Return whose tasks have not been begun."""
        return [worker for worker, _ in self.tasks]

    def begin(self) -> Task:
        """Have the oldest task begun: it cannot be taken back any more."""
        return self.tasks.pop(0)[1]

    def die(self, worker: int = 0, death: BaseException | None = None) -> None:
        """Have a worker die, who has begun what was taken with `begin`."""
        self.answers.append(Result(ResultKind.DIED, worker, -1, death or WorkerDied(f"worker {worker} is gone")))

    def finish(self, kind: ResultKind = ResultKind.DONE, size: int = 1000, *, overflow: bool = False) -> None:
        """Finish the oldest task."""
        worker, task = self.tasks.pop(0)
        payload: Any = None
        if kind is ResultKind.DONE:
            payload = self._write(task, size, overflow=overflow)
        elif kind is ResultKind.FAILED:
            payload = ValueError("torn")
        self.answers.append(Result(kind, worker, task.id, payload, 1_000_000))

    def _write(self, task: Task, size: int, *, overflow: bool) -> Parcel:
        assert self.arena is not None
        memory = np.zeros(1 << 16, np.uint8) if overflow or task.slot < 0 else self.arena.view(task.slot, 1 << 16)
        writer = SlotWriter(memory, memory.__array_interface__["data"][0])
        header = CODEC.encode([np.full(size, task.indices, np.uint8)], writer)
        return Parcel(header, task.slot, writer.used, Copies(memory) if overflow or task.slot < 0 else None)


class Bench:
    """A crew whose engine is moved by hand; it is an epoch of its own."""

    replays = False

    def __init__(
        self, slots: int = 4, budget: int = 1 << 30, restarts: int = 0, engine: HandEngine | None = None
    ) -> None:
        self.engine = engine or HandEngine()
        self.arena = self.engine.arena = Arena(slots, shared=True, budget=budget)
        self.counters = Counters()
        self.crew = Crew(self.engine, self.arena, NumpyFramework(), self.counters, care=Care(restarts=restarts))
        self.resume: Resume | None = None
        self.owed: dict[int, Resume] = {}
        self.crew.begin_epoch(self)

    def resume_for(self, worker: int) -> Resume | None:
        return self.resume

    def owe(self, worker: int, resume: Resume) -> None:
        self.owed[worker] = resume

    def given(self) -> list[tuple[int, Any]]:
        """Return who has which task waiting."""
        return [(worker, task.indices) for worker, task in self.engine.tasks]

    def let_die(self, worker: int = 0, death: BaseException | None = None) -> Answers:
        """Have a worker die; returns what comes of it."""
        self.engine.die(worker, death)
        assert self.crew.collect(0.0) == [], "the epoch takes in what came with it first"
        return self.crew.collect(0.0)

    def batch(self, number: int, **how: Any) -> Any:
        """Have a batch made and delivered."""
        self.crew.submit(self, number, Task(0, number), 0)
        self.engine.finish(**how)
        ((pending, result),) = self.crew.collect(0.0)
        assert pending is not None
        assert pending.ordinal == number
        return self.crew.deliver(result)[0]

    def free_slots(self) -> int:
        slots = []
        while (slot := self.arena.acquire()) >= 0:
            slots.append(slot)
        assert len(slots) == len(set(slots)), "a slot was given back twice"
        for slot in slots:
            self.arena.release(slot)
        return len(slots)
