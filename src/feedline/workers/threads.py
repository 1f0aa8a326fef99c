"""Workers that are threads of the training process.

Batches are not copied: the training loop gets the worker's own objects. Collate functions that request a buffer write
into a slot of an arena in ordinary memory, whose pages are warm from earlier batches.

Threads share the interpreter. A dataset that holds the GIL while it works (pure Python, small tensors) gains nothing
here; one that decodes, reads or sleeps in C gains as much as with processes, without copies of the dataset.

Nothing here relies on the GIL. Workers share the lanes and the mailbox, which lock themselves, and the arena, which has
a lock; a runner, its scope and its counters belong to one worker. The lists of threads and lanes change only on the
thread that drives the loader. Whether several threads may use the dataset at once is up to the dataset, and one that
relied on the GIL may fail without it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from feedline.abc.source import copy_for_worker
from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import WorkerStartError
from feedline.memory.arena import Arena
from feedline.memory.local_buffers import LocalBuffers
from feedline.randomness.agreement import Agreement
from feedline.system import interrupts
from feedline.system.failures import add_note, words
from feedline.system.mailbox import Mailbox
from feedline.types import DatasetKind, Result, ResultKind, Task, WorkerIdentity
from feedline.workers import handles
from feedline.workers.base import WorkerEngine
from feedline.workers.fetch.announcing import Announcer, announcer_of
from feedline.workers.runner import Runner

_PATIENCE_S = 0.2
"""How long `close` waits for threads that are inside the user's code. They are daemons and end with their task."""

_LAST_PATIENCE_S = 5.0
"""How long the program's exit waits for them: a thread that is ended inside a decoder crashes the program."""

_left: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that were running a task when their engine was closed."""
_is_exiting = False


Lane = queue.SimpleQueue["Task | None"]
"""Tasks waiting for a worker; None ends the worker. It is atomic: a task goes to the worker or is taken back."""


class ThreadEngine(WorkerEngine):
    """Runs tasks on threads. Each worker has a lane of waiting tasks; all answer into one mailbox."""

    def __init__(self, worker_count: int, arena: Arena | None = None) -> None:
        super().__init__(worker_count)
        self._lanes: list[Lane] = [queue.SimpleQueue() for _ in range(worker_count)]
        self._answers: Mailbox[Result] = Mailbox()
        self._alive_s: dict[int, float] = {}
        """When workers last reported that they are alive."""
        self._arena = arena
        if arena is not None:
            arena.serve(self)  # the loader may be dropped during an iteration
        self._threads: list[threading.Thread] = []
        self._ending = threading.Event()
        self._generation = 0
        self._announcer: Announcer | None = None
        self._agreement: Agreement | None = None

    def open(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._announcer = announcer_of(spec.dataset) if spec.kind is DatasetKind.MAP else None
        if self.worker_count > 1:
            self._agreement = None if spec.sharding is None else Agreement()
            handles.warn_about(spec.dataset, threaded=True)
        # Before any worker uses what they share.
        copies = [copy_for_worker(spec.dataset) for _ in range(self.worker_count)]
        with interrupts.put_off(starts_process=False):
            for number, dataset in enumerate(copies):
                try:
                    self._threads.append(self._start(number, dataset))
                except WorkerStartError:
                    self.close()
                    raise

    def _start(self, number: int, dataset: object, generation: int = 0) -> threading.Thread:
        assert self._spec is not None
        own = _Own(number, generation, dataset, self._lanes[number], self._ending, self._agreement)
        thread = threading.Thread(
            target=_serve,
            args=(self._spec, own, self._answers, self._arena, functools.partial(self._note_alive, number)),
            name=f"feedline-worker-{number}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as exc:
            raise WorkerStartError(
                f"Worker {number} of {self.worker_count} could not be started: {words(exc)}. The limit on processes, "
                "which counts threads (`ulimit -u`), or memory is reached; use fewer workers."
            ) from exc
        return thread

    @interrupts.put_off(starts_process=False)
    def replace(self, worker: int) -> None:
        if worker < len(self._threads):
            self.retire(worker)
        elif worker == len(self._lanes):
            self._lanes.append(queue.SimpleQueue())
        self._generation += 1
        assert self._spec is not None
        dataset = copy_for_worker(self._spec.dataset)
        self._threads[worker : worker + 1] = [self._start(worker, dataset, self._generation)]

    @interrupts.put_off(starts_process=False)
    def retire(self, worker: int) -> None:
        self._lanes[worker].put(None)
        self._lanes[worker] = queue.SimpleQueue()  # for a successor
        self._threads[worker].join(_PATIENCE_S)

    @property
    def worker_objects(self) -> list[threading.Thread]:
        return list(self._threads)

    def stack(self, worker: int) -> str | None:
        frame = sys._current_frames().get(self._threads[worker].ident or 0)
        if frame is None:
            return None
        summary = reversed(traceback.extract_stack(frame))  # as faulthandler writes it
        return "\n".join(f'  File "{called.filename}", line {called.lineno} in {called.name}' for called in summary)

    def submit(self, worker: int, task: Task) -> None:
        if self._announcer is not None:  # before a worker can read the samples itself
            self._announcer.announce([task])
        self._lanes[worker].put(task)

    def revoke(self, worker: int) -> int | None:
        with contextlib.suppress(queue.Empty):
            waiting = self._lanes[worker].get_nowait()
            return None if waiting is None else waiting.id
        return None

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return self._answers.collect(timeout_s)

    def alive_s(self, worker: int) -> float:
        return self._alive_s.get(worker, 0.0)

    def _note_alive(self, worker: int) -> None:
        self._alive_s[worker] = time.monotonic()

    def _close(self) -> None:
        self._ending.set()
        for worker, lane in enumerate(self._lanes):
            self._drop_tasks(worker)
            lane.put(None)
        _wait_for(self._threads, _LAST_PATIENCE_S if _is_exiting else _PATIENCE_S)
        _left.update(thread for thread in self._threads if thread.is_alive())
        self._lanes.clear()


def _wait_for(threads: Iterable[threading.Thread], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _exit() -> None:
    """Wait for remaining threads, and make engines that are closed after this wait as long for theirs."""
    global _is_exiting
    _is_exiting = True
    interrupts.see_through(lambda: _wait_for(list(_left), _LAST_PATIENCE_S))


@dataclass(frozen=True)
class _Own:
    """The parts that belong to one worker."""

    number: int
    generation: int
    dataset: object
    lane: Lane
    ending: threading.Event
    """Set when the engine closes: no sample is needed any more."""
    agreement: Agreement | None
    """As for `Runner`."""


def _serve(
    spec: WorkerSpec, own: _Own, answers: Mailbox[Result], arena: Arena | None, report_alive: Callable[[], None]
) -> None:
    number, lane = own.number, own.lane
    seed = spec.base_seed + number + own.generation * spec.worker_count
    # SystemExit and similar exceptions would end this thread silently, so they are reported.
    trouble: BaseException | None
    try:
        identity = WorkerIdentity(number, spec.worker_count, seed, own.dataset, threaded=True)
        runner = Runner(spec, identity, own.ending.wait, report_alive, own.agreement)
        trouble = runner.unready
    except BaseException as exc:
        trouble = exc
    if trouble is not None:
        _annotate(trouble, number)
        answers.put(Result(ResultKind.DIED, number, -1, trouble))
        return
    buffer = LocalBuffers(lambda: arena)
    while (task := lane.get()) is not None:
        # No reference to the result may stay in this thread, not even for a moment: once the training loop has raised
        # an exception, it refers to the loop's frames, and so to the iterator, which could not be freed.
        answers.put_result(_answer, runner, buffer, task, number)
        del task


def _answer(runner: Runner, buffer: LocalBuffers, task: Task, number: int) -> Result:
    try:
        try:
            result = runner.attempt(task, number, buffer)
        finally:
            buffer.close()
    except BaseException as exc:
        result = runner.report(exc, task, number)
    try:
        if result.kind is ResultKind.FAILED:
            _annotate(result.payload, number)
        return result
    finally:
        del result  # avoid a reference cycle: its exception may refer to this frame


def _annotate(exc: BaseException, number: int) -> None:
    add_note(exc, f"Caught {type(exc).__name__} in DataLoader worker thread {number}.")
