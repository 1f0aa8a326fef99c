"""One pass over an iterable dataset with workers: each has a stream of its own, and they take turns.

The order is worker 0, 1, ... n-1, 0, 1, ...; a worker whose stream has ended is left out from then on. So the order is
the same in every epoch, however fast the workers are. A stream cannot move to another worker.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from feedline.errors import WorkerTimeout
from feedline.loader.crew import Crew
from feedline.types import Result, ResultKind


class StreamEpoch:
    """Iterates over the batches of the workers' streams.

    Args:
        crew: the workers.
        request: what to ask a worker for: the number of samples of a batch.
        depth: batches of each worker that are under way or waiting.
        in_order: False to deliver whatever is there.
        timeout_s: the longest wait for a batch; 0 for no limit.
        shared_seed: for torch's data pipes.
    """

    def __init__(
        self, crew: Crew, request: Any, depth: int, *, in_order: bool, timeout_s: float, shared_seed: int | None
    ) -> None:
        self._crew = crew
        self._request = request
        self._in_order = in_order
        self._timeout_s = timeout_s
        self._shared_seed = shared_seed
        count = len(crew.workers)
        self._arrived: list[deque[Result]] = [deque() for _ in range(count)]
        self._asked = [0] * count
        self._active = list(range(count))
        self._turn = 0
        self._ordinal = 0
        for _ in range(max(1, depth)):
            for worker in range(count):
                self._ask(worker)

    def __iter__(self) -> StreamEpoch:
        return self

    def _ask(self, worker: int) -> None:
        self._crew.submit(self, self._ordinal, self._request, worker, self._shared_seed)
        self._asked[worker] += 1
        self._ordinal += 1

    def __next__(self) -> Any:
        while self._active:
            position = self._next_position()
            if position is None:
                self._wait()
                continue
            worker = self._active[position]
            result = self._arrived[worker].popleft()
            if result.kind is ResultKind.ENDED:
                del self._active[position]
                while self._arrived[worker]:  # an iterator that went on after its end
                    self._crew.discard(self._arrived[worker].popleft())
                self._turn = position % len(self._active) if self._active else 0
                continue
            self._turn = (position + 1) % len(self._active)
            try:
                return self._crew.deliver(result)
            finally:
                self._ask(worker)
        raise StopIteration

    def _next_position(self) -> int | None:
        """Whose batch comes next, as a place among the active workers; None to wait."""
        if self._in_order:
            return self._turn if self._arrived[self._active[self._turn]] else None
        for step in range(len(self._active)):  # from where the last one came: a quick stream does not starve others
            position = (self._turn + step) % len(self._active)
            if self._arrived[self._active[position]]:
                return position
        return None

    def _wait(self) -> None:
        deadline = time.monotonic() + self._timeout_s if self._timeout_s else None
        while True:
            answers = self._crew.collect(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for pending, result in answers:
                if pending is None:
                    self._crew.close()
                    raise result.payload
                self._arrived[result.worker].append(result)
            if answers:
                return
            if deadline is not None and time.monotonic() >= deadline:
                worker = self._active[self._turn]
                raise WorkerTimeout(
                    f"DataLoader timed out after {self._timeout_s} seconds: worker {worker} has not delivered the "
                    "next batch of its stream. Raise `timeout`, or look for what blocks in the dataset's iterator."
                )

    def close(self) -> None:
        """Leave the epoch; what is under way is dropped."""
        for results in self._arrived:
            for result in results:
                self._crew.discard(result)
            results.clear()
        self._active.clear()
        if not self._crew.closed:
            self._crew.abandon(self)
