"""What is done about a worker that has grown too large: another takes its place, between two batches.

Such a worker ends what it has begun; what it has not begun waits for its successor. Nobody died, so that this uses none
of the restarts that the user has allowed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from feedline.errors import GrowingWorker
from feedline.loader.memory_watch import MemoryWatch
from feedline.loader.rescue import Answers
from feedline.types import Result, ResultKind

if TYPE_CHECKING:
    from feedline.loader.crew import Crew


class Recycling:
    """Sees to the workers of a crew that have grown.

    Args:
        crew: whose workers.
        most_bytes: memory of its own that a worker may come to have; None for any amount.
    """

    def __init__(self, crew: Crew, most_bytes: int | None) -> None:
        self._crew: Crew = weakref.proxy(crew)  # which refers to this one: no cycle for the garbage collector
        self.watch = MemoryWatch(crew.engine, most_bytes)

    def begin(self, worker: int) -> None:
        """Watch a worker from its first answer on."""
        trouble = self.watch.begin(worker)
        if trouble is not None:
            self._crew.say(trouble, GrowingWorker)

    def look(self, now_s: float) -> None:
        """Look at every worker: those that have too much are to go, of those that grow the user is told."""
        for found in self.watch.look(now_s):
            if isinstance(found, int):
                self._crew.roster.park(found)
            else:
                self._crew.say(str(found), GrowingWorker)

    def replace(self) -> Answers:
        """Replace workers that are to go and have done what they had begun.

        Returns:
            The answers that come of it: a death, if there is no going on.
        """
        crew = self._crew
        for worker in crew.roster.idle_parked():
            _, waiting = crew.roster.take_back(worker)
            trouble = crew.start_another(worker)
            if trouble is not None:
                for pending in waiting:
                    crew.forget(pending)
                return [(None, Result(ResultKind.DIED, worker, -1, trouble))]
            crew.counters.recycled += 1
            crew.give_again(worker, waiting)
        return []
