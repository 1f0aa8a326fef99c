"""The training process's side: starts actors, sends them tasks and receives their answers.

    submit --> lane of the worker --> call of the actor, one at a time --> future --> thread --> answers --> collect
                  |
                  +--> revoke

Ray reports the end of a call on a thread of its own. That thread only puts the future into a queue. A thread of the
engine takes it from there, sends the actor its next task, regardless of what the training loop is doing, and puts the
answer into a queue for `collect`. Tasks that wait in a lane can be revoked; the lock ensures that a task is either sent
or revoked, not both.

An actor's result lies in the object store of its node, and Ray copies it to this node before the future completes. If
either node is lost before that, the call fails and the worker counts as dead: its task goes to another one.

A batch is copied out of the store when it is delivered: Ray's arrays are read-only, because several readers may share
them, and training loops change batches in place. An object stays in the store while an array over it lives.
"""

from __future__ import annotations

import math
import pickle
import queue
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import NotPicklable, TransportError, WorkerStartError, WorkerWarning, warn_user
from feedline.memory.codec import Bytes, Reader
from feedline.system import interrupts
from feedline.system.failures import words
from feedline.system.mailbox import Mailbox
from feedline.types import Call, Result, ResultKind, Task
from feedline.workers import unpicklable
from feedline.workers.base import WorkerEngine
from feedline.workers.failure import UNPICKLABLE, unpack_failure, unsendable
from feedline.workers.processes.messages import Kind, result_of, unpacked
from feedline.workers.ray import cluster
from feedline.workers.ray.options import RayOptions
from feedline.workers.ray.worker import Place, RayWorker, machine_id, pack_spec

_SAY_AFTER_S = 15.0
"""How long a worker may take to start before a warning appears."""

_THREAD_PATIENCE_S = 1.0
"""How long `close` waits for the thread, which has nothing left to do by then."""

_STORE_SHARE = 0.5
"""Share of the object store that a loader's batches may take: others use the store, too."""


class _Phase(Enum):
    """How far a worker is: not started, placed by Ray, importing and reading the dataset, at work, gone."""

    WAITING = 0
    PLACING = 1
    OPENING = 2
    READY = 3
    GONE = 4


@dataclass
class _Worker:
    """An actor, as seen from the training process."""

    number: int
    generation: int = 0
    actor: Any = None
    """Its handle, from its start to its end."""
    lane: deque[tuple[int, bytes]] = field(default_factory=deque)
    """The ids of tasks that wait for it, and the tasks, pickled."""
    current: tuple[int, bytes] | None = None
    """The task that it is working on."""
    phase: _Phase = _Phase.WAITING
    is_retired: bool = False
    since_s: float = 0.0
    """When Ray was asked to start it."""
    alive_s: float = math.inf
    """When it was placed, or last reported that it is reading the samples before its task."""
    place: Place | None = None
    is_here: bool = False
    """True if it runs on this machine."""


_Over = tuple[_Worker, Future[Any]]


class RayEngine(WorkerEngine):
    """Runs tasks in Ray actors, which send their batches through Ray's object store.

    Args:
        worker_count: number of workers.
        options: resources and placement of each worker.
        budget: bytes of the object store that batches may take; at most half of the store.
    """

    def __init__(self, worker_count: int, options: RayOptions | None = None, budget: int | None = None) -> None:
        super().__init__(worker_count)
        self._options = options or RayOptions()
        self._budget = budget
        self._ray: Any = None
        self._joined: tuple[str, str] | None = None
        """The connection to a cluster that the actors belong to."""
        self._packed: object = None
        """A reference to the specification in the object store."""
        self._store = Store(0)
        self._workers: list[_Worker] = []
        self._over: queue.SimpleQueue[_Over | None] = queue.SimpleQueue()
        self._answers: Mailbox[Result] = Mailbox()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_called_workers = False
        """True if a dataset method was called in the workers since the dataset was packed."""
        self._has_warned_of_start = False

    def open(self, spec: WorkerSpec) -> None:
        self._ray = cluster.connect(self._options, max(self.worker_count, spec.worker_count))
        self._joined = cluster.connection(self._ray)
        most = int(cluster.store_bytes(self._ray) * _STORE_SHARE)
        self._store = Store(most if self._budget is None else min(most, self._budget))
        self._spec = spec
        self._packed = self._put()
        self._workers = [_Worker(number) for number in range(self.worker_count)]

    def _put(self) -> object:
        """Put the specification into the object store."""
        assert self._spec is not None
        try:
            packed = pack_spec(self._spec, self._ray.cloudpickle)
        except NotPicklable:
            raise  # it already explains the cause
        except (*UNPICKLABLE, RuntimeError) as exc:  # multiprocessing's locks and queues raise the latter
            raise unpicklable.explain(self._spec, exc) from exc
        try:
            return self._ray.put(packed)
        except self._ray.exceptions.ObjectStoreFullError as exc:
            raise TransportError(
                f"The dataset takes {packed.memory.nbytes >> 20} MiB and does not fit into Ray's object store of "
                f"{cluster.store_bytes(self._ray) >> 20} MiB. Start Ray with a larger store "
                "(ray.init(object_store_memory=...)), or let the dataset open its files in each worker."
            ) from exc

    def start(self) -> None:
        if self._thread is not None or self._spec is None:
            return
        with interrupts.put_off(starts_process=False):
            self._thread = threading.Thread(target=self._listen, name="feedline-ray", daemon=True)
            self._thread.start()
            for worker in self._workers:
                self._launch(worker)

    def _launch(self, worker: _Worker) -> None:
        self._check_connection()
        options = self._options
        actor_options: dict[str, object] = {
            "num_cpus": options.num_cpus,
            "resources": dict(options.resources or {}),
            "scheduling_strategy": options.scheduling_strategy,
            "max_restarts": 0,  # the core replaces workers, and knows their pending tasks
            "max_task_retries": 0,
        }
        worker.actor = self._ray.remote(RayWorker).options(**actor_options).remote()
        worker.phase, worker.since_s = _Phase.PLACING, time.monotonic()
        self._follow(worker, worker.actor.place.remote())

    def _check_connection(self) -> None:
        """Raise an error if the program has left the cluster of the actors.

        A call to Ray would then start another cluster, or never return.
        """
        if cluster.connection(self._ray) != self._joined:
            raise WorkerStartError(
                "Ray was shut down (ray.shutdown()) while the loader still needed its workers. Close the loader first."
            )

    # Any: a reference to the result of a call, as Ray returns it.
    def _follow(self, worker: _Worker, call: Any) -> None:
        over = self._over
        call.future().add_done_callback(lambda future: over.put((worker, future)))

    @interrupts.put_off(starts_process=False)
    def replace(self, worker: int) -> None:
        generation = 0
        if worker >= len(self._workers) or self._workers[worker].is_retired:
            cluster.check_room(self._ray, self._options, worker)
        if worker < len(self._workers):
            self._part_from(self._workers[worker])
            generation = self._workers[worker].generation + 1
        if self._has_called_workers:
            self._has_called_workers, self._packed = False, self._put()  # the dataset here has received the same calls
        self._workers[worker : worker + 1] = [_Worker(worker, generation)]
        self._launch(self._workers[worker])

    @interrupts.put_off(starts_process=False)
    def retire(self, worker: int) -> None:
        self._part_from(self._workers[worker])
        self._workers[worker].is_retired = True

    def alive_s(self, worker: int) -> float:
        return self._workers[worker].alive_s

    def _part_from(self, worker: _Worker) -> None:
        """Stop listening to a worker, and let it end. May be called twice."""
        with self._lock:
            worker.phase = _Phase.GONE
            worker.lane.clear()
            worker.current = None
            actor, worker.actor = worker.actor, None
        if actor is not None and cluster.connection(self._ray) == self._joined:
            self._ray.kill(actor)

    def kill(self, worker: int) -> bool:
        one = self._workers[worker]
        if one.actor is None:
            return False
        self._ray.kill(one.actor)
        return True

    def pid(self, worker: int) -> int | None:
        one = self._workers[worker]
        return one.place.pid if one.place is not None and one.is_here and one.phase is not _Phase.GONE else None

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run on this machine."""
        found = (self.pid(number) for number in range(len(self._workers)))
        return [pid for pid in found if pid is not None]

    def capacity(self) -> int:
        return self._store.capacity(before_known=self.worker_count)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def submit(self, worker: int, task: Task) -> None:
        try:
            data = pickle.dumps(task, 5)
        except UNPICKLABLE as exc:
            raise unsendable(task.indices, exc) from exc
        if type(task.indices) is Call:
            self._has_called_workers = True
        with self._lock:
            self._workers[worker].lane.append((task.id, data))
            self._give_next(self._workers[worker])

    def _give_next(self, worker: _Worker) -> None:
        """Send the next task to a worker that is ready. The caller holds the lock."""
        if worker.phase is _Phase.READY and worker.current is None and worker.lane:
            self._check_connection()
            worker.current = worker.lane.popleft()
            self._follow(worker, worker.actor.work.remote(worker.current[1]))

    def revoke(self, worker: int) -> int | None:
        lane = self._workers[worker].lane
        with self._lock:
            return lane.popleft()[0] if lane else None

    def _listen(self) -> None:
        """Process finished calls until the engine is closed. Runs on a thread of its own."""
        calls = self._over
        while (over := calls.get()) is not None:
            try:
                result = self._finish_call(*over)
            except Exception as exc:  # report anything: the training loop is waiting
                death = WorkerStartError(f"Worker {over[0].number} cannot be reached through Ray: {words(exc)}.")
                result = Result(ResultKind.DIED, over[0].number, -1, death)
            if result is not None:
                self._answers.put(result)
            del over, result  # an idle thread keeps no batch alive

    def _finish_call(self, worker: _Worker, future: Future[Any]) -> Result | None:
        """Process a finished call, and send the worker its next task."""
        with self._lock:
            if worker.phase is _Phase.GONE:
                return None
            failure = future.exception()
            if worker.phase is not _Phase.READY:
                return self._begun(worker, failure, future)
            assert worker.current is not None
            task_id, data = worker.current
            if failure is None and not future.result()[0]:  # it is still reading
                worker.alive_s = time.monotonic()
                self._follow(worker, worker.actor.work.remote(data))
                return None
            worker.current = None
            if failure is not None and not cluster.is_trouble(self._ray, failure):
                worker.phase = _Phase.GONE
                return Result(
                    ResultKind.DIED, worker.number, -1, cluster.death_error(worker.number, worker.place, failure)
                )
            self._give_next(worker)
        if failure is not None:
            return Result(ResultKind.FAILED, worker.number, task_id, cluster.trouble(self._ray, worker.number, failure))
        (*notes, head), memory = future.result()
        message = unpacked(head)
        reader = self._store.open(memory) if message.kind is Kind.DONE and message.body else None
        result = result_of(worker.number, message, unpacked(notes[0]).body if notes else None, reader=reader)
        if not worker.is_here and result.kind is ResultKind.DONE:  # another machine has another clock
            result.times = (time.monotonic_ns() - result.busy_ns, *result.task_times[1:])
        return result

    def _begun(self, worker: _Worker, failure: BaseException | None, future: Future[Any]) -> Result | None:
        """Process the outcome of placing a worker or getting it ready. The caller holds the lock."""
        death: object = None
        if failure is not None:
            death = cluster.death_error(worker.number, worker.place, failure, was_ready=False)
            if cluster.is_trouble(self._ray, failure):
                death = WorkerStartError(f"Ray could not start worker {worker.number}: {words(failure)}.")
        elif worker.phase is _Phase.PLACING:
            worker.phase, worker.place, worker.alive_s = _Phase.OPENING, future.result(), time.monotonic()
            worker.is_here = worker.place.machine == machine_id()
            self._follow(worker, worker.actor.open.remote(self._packed, worker.number, worker.generation))
            return None
        else:
            death = future.result()
        if death is not None:
            worker.phase = _Phase.GONE
            return Result(ResultKind.DIED, worker.number, -1, death)
        worker.phase = _Phase.READY
        self._give_next(worker)
        return None

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = self._answers.collect(timeout_s)
        if not results:
            self._look_at_starts(results)
        for result in results:
            if result.payload and isinstance(result.payload, bytes):  # FAILED or DIED: the user's own exception
                result.payload = unpack_failure(result.payload)
        return results

    def _look_at_starts(self, results: list[Result]) -> None:
        """Warn about workers that have not started yet, and give up on those that take too long."""
        self._check_connection()
        now_s, timeout_s = time.monotonic(), self._options.start_timeout_s
        for one in self._workers:
            waits_s = now_s - one.since_s
            if one.phase is not _Phase.PLACING or waits_s < min(_SAY_AFTER_S, timeout_s):
                continue
            if waits_s >= timeout_s:
                why = cluster.shortage(self._ray, self._options)
                self._part_from(one)
                death = WorkerStartError(
                    f"Ray did not start worker {one.number} within {timeout_s:g} s. {why} Request less (fewer workers, "
                    "RayOptions(num_cpus=...)), or wait longer (start_timeout_s=...)."
                )
                results.append(Result(ResultKind.DIED, one.number, -1, death))
            elif not self._has_warned_of_start:
                self._has_warned_of_start = True
                why = cluster.shortage(self._ray, self._options)
                warn_user(
                    f"Ray has not started worker {one.number} after {waits_s:.0f} s. {why} The loader keeps waiting.",
                    WorkerWarning,
                )

    # -- the end -----------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        for worker in self._workers:
            self._part_from(worker)
        self._over.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_THREAD_PATIENCE_S)
        self._workers.clear()
        self._packed = None
        self._answers, self._over = Mailbox(), queue.SimpleQueue()  # drops the batches that were not collected


# -- the object store ---


class Store:
    """The memory that the batches of one loader take in the object store.

    Args:
        budget: bytes that they may take.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._batches: set[_Batch] = set()
        """The batches in the store. One disappears when it was delivered, on any thread."""
        self.largest = 0
        """Bytes of the largest batch so far."""

    @property
    def held(self) -> int:
        """Bytes of the batches in the store."""
        return sum(batch.size for batch in list(self._batches))

    def capacity(self, before_known: int) -> int:
        """Return how many batches may be in flight; `before_known` until the size of a batch is known."""
        return (self.budget - self.held) // self.largest if self.largest else before_known

    def open(self, found: Bytes | None) -> Reader:
        """Return a reader that copies the arrays of a batch out of the store."""
        if found is None or not found.nbytes:
            self.largest = max(self.largest, 1)
            return Reader(np.empty(1, np.uint8))
        self.largest = max(self.largest, found.nbytes)
        batch = _Batch(found, self._batches.discard)
        batch.size = found.nbytes
        self._batches.add(batch)
        return Reader(found)


class _Batch(weakref.ref[Bytes]):
    """A reference to a batch's memory. Compared by identity: arrays, and references to them, cannot be compared."""

    __slots__ = ("size",)
    size: int
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__
