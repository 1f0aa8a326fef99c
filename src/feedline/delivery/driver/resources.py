"""What a loader keeps between epochs (its memory and counters), and how it gets workers."""

from __future__ import annotations

import os
import random
import time
import weakref
from collections.abc import Callable, Mapping

from feedline.abc.engine import Engine
from feedline.abc.framework import Framework
from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.driver import Driver, Prepare
from feedline.delivery.driver.memory_watch import MemoryWatch
from feedline.delivery.driver.settings import Settings
from feedline.delivery.driver.slots import Slots
from feedline.delivery.driver.tuning import TunedDriver, Tuning
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.recovery import Recovery, RecoveryOptions
from feedline.insight.observer import Observer
from feedline.insight.period import period_of
from feedline.insight.stats import Stats
from feedline.memory.arena import Arena
from feedline.system import interrupts
from feedline.system.limits import memory_limit, usable_cores
from feedline.system.timing import TaskCpu
from feedline.types import DatasetKind
from feedline.types.ranks import local_rank_count
from feedline.workers import abilities
from feedline.workers.runner import Runner

_SLOTS_PER_WINDOW = 16
_SPARE_SLOTS = 16
_MOST_SLOTS = 1024
"""Slots are cheap (address space and a few list entries). More of them let other batches get further ahead of a late
one, and let the training loop keep more batches before they are copied.
"""

_FEW_SLOTS = 8
"""Slots that may be in use before the size of a batch is known, if the user set no budget."""


class Resources:
    """Memory and workers for one loader."""

    def __init__(self, settings: Settings, framework: Framework) -> None:
        self.settings = settings
        self.framework = framework
        if settings.engine_name == "process" and abilities.can_share_arenas():
            import feedline.workers.processes.engine  # noqa: F401  now, not while the loop waits for the first batch
        self.counters = Counters(observer=Observer(in_order=settings.make_scheduler().in_order))
        self._arena: Arena | None = None
        self._given_up: list[Arena] = []
        """Memory to close once no other thread is starting workers with it."""
        self._cpu = TaskCpu()
        """CPU time of batches that are made in the training loop itself."""
        self._runners: list[tuple[WorkerSpec, Runner, weakref.ref[object]]] = []
        """What made batches in the training loop itself: the spec, the runner, and the iteration that used it last. At
        most one.
        """
        self.watch: Callable[[], MemoryWatch | None] = lambda: None
        """The watch of the workers that were started last, while they exist."""
        self._tuning: Tuning | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return Resources, (
            self.settings,
            self.framework,
        )  # a loader that is sent elsewhere has its own memory there

    def arena(self) -> Arena | None:
        """Return the loader's memory; a new one in a forked process.

        None if the system does not support such memory: each batch then has memory of its own.
        """
        shared = self.settings.engine_name == "process"
        if not (abilities.can_share_arenas() if shared else abilities.can_map_sparsely()):
            return None
        arena = self._arena
        if arena is None or arena.pid != os.getpid():
            settings = self.settings
            count = min(_MOST_SLOTS, settings.most_window * _SLOTS_PER_WINDOW + _SPARE_SLOTS)
            workers = max(1, settings.worker_count)
            with interrupts.put_off(starts_process=False):  # otherwise a file could stay open without an owner
                arena = Arena(
                    count,
                    shared=shared,
                    budget=settings.budget_bytes(),
                    window=settings.window,
                    before_known=workers if settings.memory_budget is not None else max(workers, _FEW_SLOTS),
                )
                if settings.pin:
                    from feedline.device.pinning import SlotPinner

                    SlotPinner(arena)
                arena.serve(self)
                self._arena = arena
        return arena

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
            runner.cpu = self._cpu
        return runner

    def keep_runner(self, spec: WorkerSpec, runner: Runner, user: object) -> None:
        """Keep a runner that remembers nothing of its epoch, for the next one."""
        self._runners[:] = [(spec, runner, weakref.ref(user))]

    def driver(self, spec: WorkerSpec, prepare: Prepare | None, tuning: Tuning | None = None) -> Driver:
        """Start workers; with `tuning`, as many as it decides, now and later."""
        self._tuning = tuning
        engine, arena = self._engine()
        memory = self._arena  # a copy: `close` in another thread clears it
        settings = self.settings
        depth = max(1, settings.depth)
        slots = Slots(arena, self.framework, self.counters, depth=depth, has_space=engine.has_space)
        options = RecoveryOptions(
            spec.on_error,
            spec.dataset,
            spec.batched,
            searches=not is_stateful(spec.dataset),
            restarts=settings.restart_budget,
            sets_restarts=settings.restarts is not None,
            wall_s=time.time,
            chance=random.Random().random,
        )
        machine = Machine(
            engine.worker_count,
            slots,
            Recovery(options),
            self.counters,
            moves=settings.moves,
            now_s=time.monotonic(),
            most=settings.most_workers,
        )
        # Create the driver first: it closes the engine when dropped, so no worker is ever left behind.
        watch = MemoryWatch(engine, settings.worker_bytes)
        self.watch = weakref.ref(watch)
        is_tuned = tuning is not None and tuning.is_under_way
        driver = (TunedDriver if is_tuned else Driver)(
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

    def _engine(self) -> tuple[Engine, Arena | None]:
        settings = self.settings
        if settings.engine_name == "ray":
            from feedline.workers.ray.engine import RayEngine

            return RayEngine(self.worker_count, settings.ray, settings.memory_budget), None
        arena = self.arena()
        if settings.engine_name == "thread":
            from feedline.workers.threads import ThreadEngine

            return ThreadEngine(self.worker_count, arena), None
        if arena is None:
            from feedline.workers.portable import PortableEngine

            return PortableEngine(self.worker_count, settings.context), None
        from feedline.workers.processes.engine import ProcessEngine

        return ProcessEngine(self.worker_count, arena, settings.context), arena

    @property
    def worker_count(self) -> int:
        """The number of workers, also before they are started."""
        return self.settings.worker_count if self._tuning is None else self._tuning.count

    def stats(self, faults: Mapping[str, int]) -> Stats:
        """Return the measurements so far.

        Args:
            faults: numbers of failed samples, by the action taken.
        """
        counters, workers = self.counters, self.worker_count
        epoch, last, total = counters.observer.totals(counters.batches)
        everything = period_of(total, workers)
        watch = self.watch()
        return Stats(
            epoch=period_of(epoch, workers),
            last_epoch=None if last is None else period_of(last, workers),
            total=everything,
            counters={**self._counted(), "wait_s": everything.wait_s, "faults": faults},
            settings=self._settings_dict(),
            slowest_samples=counters.observer.slowest(),
            memory=() if watch is None else tuple(watch.memory()),
            settled=None if (settled := counters.observer.settled(total)) is None else period_of(settled, workers),
        )

    def _counted(self) -> dict[str, object]:
        counters, arena = self.counters, self._arena
        return {
            "engine": self.settings.engine_name,
            "workers": self.worker_count,
            **counters.as_dict(),
            "overflowed_batches": counters.overflowed + (0 if arena is None else arena.refused),
            "arena_bytes": 0 if arena is None else arena.resident_bytes,
            "leased_slots": 0 if arena is None else arena.leased_count,
        }

    def _settings_dict(self) -> dict[str, object]:
        settings = self.settings
        return {
            "engine": settings.engine_name,
            "workers": self.worker_count,
            "prefetch": settings.depth if self._tuning is None else self._tuning.depth,
            "in_order": settings.make_scheduler().in_order,
            "moves": settings.moves,
            "persistent": settings.persistent,
            "pin": settings.pin,
            "memory_budget": settings.memory_budget,
            "cores": usable_cores(),
            "memory_limit": memory_limit() if hasattr(os, "sysconf") else None,
            "local_ranks": local_rank_count(),
        }

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that were started last and are alive."""
        watch = self.watch()
        return [] if watch is None else watch.pids()

    def close(self, is_used: Callable[[], bool] = lambda: False) -> None:
        """Give the memory back; batches that are still held stay valid.

        Args:
            is_used: returns True if another thread is starting workers with it: that thread keeps and later closes it.
        """
        arena, self._arena = self._arena, None  # first: an iteration that begins from now on creates another one
        if arena is not None:
            self._given_up.append(arena)
        if is_used():
            return
        given_up, self._given_up = self._given_up, []
        for arena in given_up:
            arena.close()
