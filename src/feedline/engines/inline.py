"""No workers: tasks run in the training loop's own thread, when their batch is asked for."""

from __future__ import annotations

from collections import deque

from feedline.abc.engine import Engine
from feedline.engines.runner import Runner
from feedline.errors import BadOption
from feedline.transport.arena import Arena
from feedline.transport.room import LocalRoom, in_room
from feedline.types import Result, Task, WorkerSpec


class InlineEngine(Engine):
    """Runs one task per `collect`."""

    worker_count = 1

    def __init__(self, arena: Arena | None = None) -> None:
        self._arena = arena
        self._tasks: deque[Task] = deque()
        self._runner: Runner | None = None

    def open(self, spec: WorkerSpec) -> None:
        if spec.worker_count:
            raise BadOption(f"The inline engine has no workers, but {spec.worker_count} were asked for.")
        self._runner = Runner(spec, None)

    def submit(self, worker: int, task: Task) -> None:
        self._tasks.append(task)

    def revoke(self, worker: int) -> int | None:
        return self._tasks.popleft().id if self._tasks else None

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        if not self._tasks:
            return []
        return [run_task(self._runner, self._tasks.popleft(), 0, self._arena)]

    def close(self) -> None:
        self._tasks.clear()
        self._runner = None


def run_task(runner: Runner | None, task: Task, worker: int, arena: Arena | None) -> Result:
    """Run a task in this process and report on it; the batch may be views of a slot of `arena`."""
    assert runner is not None
    return in_room(None if arena is None else LocalRoom(arena), runner.attempt, task, worker)
