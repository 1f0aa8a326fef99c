"""Workers, memory and measurements of a loader: made when first needed, and replaced when its arguments need others."""

from __future__ import annotations

import os
import random
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.machine.counters import Counters
from feedline.insight.observer import Observer
from feedline.loader.config import LoaderConfig
from feedline.types import DatasetKind
from feedline.workers.runner import Runner
from feedline.workers.task_clock import TaskCpu

if TYPE_CHECKING:
    from feedline.abc.engine import Engine
    from feedline.delivery.driver.driver import Driver, Prepare
    from feedline.delivery.driver.memory_watch import MemoryWatch
    from feedline.delivery.driver.tuning import Tuning
    from feedline.faults.log import FaultLog
    from feedline.insight.stats import Stats
    from feedline.memory.arena import Arena

_SLOTS_PER_WINDOW = 16
_SPARE_SLOTS = 16
_MOST_SLOTS = 1024
"""Slots are cheap (address space and a few list entries). More of them let other batches get further ahead of a late
one, and let the training loop keep more batches before they are copied.
"""

_FEW_SLOTS = 8
"""Slots that may be in use before the size of a batch is known, if the user set no budget."""


class Resources:
    """Workers, memory and measurements for one config and all that equal it. Never shared by two loaders.

    An iteration under way keeps the resources that it began with.
    """

    def __init__(self, config: LoaderConfig) -> None:
        self.config = config
        """The config of the last iteration."""
        self.counters = Counters(observer=Observer(in_order=config.make_scheduler().in_order))
        self._cpu = TaskCpu()
        """CPU time of batches that are made in the training loop itself."""
        self._arena: Arena | None = None
        self._closed: list[Arena] = []
        """Arenas that `close` had to leave open."""
        self._runners: list[tuple[WorkerSpec, Runner, weakref.ref[object]]] = []
        """What made batches in the training loop itself: the spec, the runner, and the iteration that used it last. At
        most one.
        """
        self.watch: Callable[[], MemoryWatch | None] = _no_watch
        """Returns the watch of the workers that were started last, while they exist."""
        self._tuned: Tuning | None = None
        """What changes the number of workers that were started last."""

    def import_engine(self) -> None:
        """Import what starts workers: now, rather than while the training loop waits for the first batch."""
        import feedline.delivery.driver.tuning

        if self.config.engine_name == "thread":
            import feedline.workers.threads
        elif self.config.engine_name == "process":
            import feedline.workers.processes.engine
            from feedline.workers import abilities

            if abilities.can_share_arenas():
                import feedline.workers.processes.arena  # noqa: F401  # needs what only Linux has

    def arena(self) -> Arena | None:
        """Return the memory; a new one in a forked process.

        None if the system does not support such memory: each batch then has memory of its own.
        """
        from feedline.workers import abilities

        config = self.config
        shared = config.engine_name == "process"
        if not (abilities.can_share_arenas() if shared else abilities.can_map_sparsely()):
            return None
        arena = self._arena
        if arena is None or arena.pid != os.getpid():
            from feedline.memory.arena import Arena
            from feedline.system import interrupts

            workers = max(1, config.worker_count)
            with interrupts.put_off(starts_process=False):  # otherwise a file could stay open without an owner
                arena = Arena(
                    min(_MOST_SLOTS, config.most_window * _SLOTS_PER_WINDOW + _SPARE_SLOTS),
                    shared=shared,
                    budget=config.budget_bytes(),
                    window=config.window,
                    before_known=workers if config.memory_budget is not None else max(workers, _FEW_SLOTS),
                )
                if config.pin:
                    from feedline.device.pinning import SlotPinner

                    SlotPinner(arena)
                arena.serve(self)
                self._arena = arena
        return arena

    def close(self, *, is_used: bool) -> None:
        """Free the memory; batches that are still held stay valid.

        Args:
            is_used: True if a thread may be starting workers with the memory, which a later call closes then.
        """
        arena, self._arena = self._arena, None  # first: an iteration that begins from now on creates another one
        if arena is not None:
            self._closed.append(arena)
        while self._closed and not is_used:
            self._closed.pop().close()

    def take_runner(self, spec: WorkerSpec, user: object) -> Runner:
        """Return what makes batches in the training loop itself: the one that was kept, if nobody else uses it now.

        Args:
            spec: what it needs to know.
            user: the iteration that will use it.
        """
        try:
            last_spec, runner, last_user = self._runners.pop()  # in one step: several threads may come here
        except IndexError:
            last_spec = None
        if last_spec is not spec or last_user() not in (None, user):
            runner = Runner(spec, None)
            runner.clock.cpu = self._cpu
        return runner

    def keep_runner(self, spec: WorkerSpec, runner: Runner, user: object) -> None:
        """Keep a runner that remembers nothing of its epoch, for the next one."""
        self._runners[:] = [(spec, runner, weakref.ref(user))]

    def driver(self, spec: WorkerSpec, prepare: Prepare | None, tuning: Tuning | None) -> Driver:
        """Start workers; with tuning, as many as it decides, now and later."""
        from feedline.delivery.driver.driver import Driver
        from feedline.delivery.driver.memory_watch import MemoryWatch
        from feedline.delivery.driver.slots import Slots
        from feedline.delivery.driver.tuning import TunedDriver
        from feedline.delivery.machine.machine import Machine
        from feedline.delivery.machine.recovery import Recovery

        if spec.kind is DatasetKind.ITERABLE:
            import feedline.workers.fetch.spans  # noqa: F401  here: otherwise each forked worker would import it

        self._tuned, config = tuning, self.config
        memory = None if config.engine_name == "ray" else self.arena()
        engine = self._engine(memory)
        # Threads take their slots themselves.
        arena = memory if config.engine_name == "process" else None
        slots = Slots(arena, spec.framework, self.counters, depth=max(1, config.depth), capacity=engine.capacity)
        recovery = Recovery(
            spec.on_error,
            spec.dataset,
            spec.batched,
            searches=not is_stateful(spec.dataset),
            restarts=config.restart_budget,
            wall_s=time.time,
            chance=random.Random().random,
        )
        machine = Machine(
            engine.worker_count,
            slots,
            recovery,
            self.counters,
            now_s=time.monotonic(),
            most=config.most_workers,
        )
        # Create the driver first: it closes the engine when dropped, so no worker is ever left behind.
        watch = MemoryWatch(engine, config.worker_bytes)
        self.watch = weakref.ref(watch)
        driver = (Driver if tuning is None or not tuning.is_under_way else TunedDriver)(
            engine,
            machine,
            slots,
            watch=watch,
            prepare=prepare,
            rest=None if memory is None else memory.rest,
            dataset=spec.dataset if spec.kind is DatasetKind.ITERABLE and spec.sharding is None else None,
        )
        if isinstance(driver, TunedDriver) and tuning is not None:
            driver.tuning = tuning
        try:
            engine.open(spec)
        except BaseException:  # Ctrl-C too
            driver.close()
            raise
        return driver

    def _engine(self, arena: Arena | None) -> Engine:
        config = self.config
        if config.engine_name == "ray":
            from feedline.workers.ray.engine import RayEngine

            return RayEngine(self.worker_count, config.ray, config.memory_budget)
        if config.engine_name == "thread":
            from feedline.workers.threads import ThreadEngine

            return ThreadEngine(self.worker_count, arena)
        from feedline.workers.processes.engine import ProcessEngine

        return ProcessEngine(self.worker_count, arena, config.context)

    @property
    def worker_count(self) -> int:
        """The number of workers, also before they are started."""
        return self.config.worker_count if self._tuned is None else self._tuned.count

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that were started last and are alive."""
        watch = self.watch()
        return [] if watch is None else watch.pids()

    def stats(self, batch_size: int | None, tuning: Tuning | None, faults: FaultLog) -> Stats:
        """Return the measurements so far."""
        from feedline.insight.period import period_of
        from feedline.insight.stats import Stats
        from feedline.system.limits import memory_limit, usable_cores
        from feedline.system.ranks import local_rank_count

        config, counters, arena, workers = self.config, self.counters, self._arena, self.worker_count
        epoch, last, total = counters.observer.totals(counters.batches)
        everything = period_of(total, workers)
        watch = self.watch()
        return Stats(
            epoch=period_of(epoch, workers),
            last_epoch=None if last is None else period_of(last, workers),
            total=everything,
            counters={
                "engine": config.engine_name,
                "workers": workers,
                **counters.as_dict(),
                "overflowed_batches": counters.overflowed + (0 if arena is None else arena.refused),
                "arena_bytes": 0 if arena is None else arena.resident_bytes,
                "leased_slots": 0 if arena is None else arena.leased_count,
                "wait_s": everything.wait_s,
                "faults": faults.counts(),
            },
            settings={
                "engine": config.engine_name,
                "workers": workers,
                "prefetch": config.depth if self._tuned is None else self._tuned.depth,
                "in_order": config.make_scheduler().in_order,
                "moves": config.moves,
                "persistent": config.persistent,
                "pin": config.pin,
                "memory_budget": config.memory_budget,
                "cores": usable_cores(),
                "memory_limit": memory_limit() if hasattr(os, "sysconf") else None,
                "local_ranks": local_rank_count(),
                "batch_size": batch_size,
                "auto": None if tuning is None else tuning.state,
            },
            slowest_samples=counters.observer.slowest(),
            memory=() if watch is None else tuple(watch.memory()),
        )


def _no_watch() -> None:
    return None
