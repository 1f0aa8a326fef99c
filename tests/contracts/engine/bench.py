"""The test bench: what each suite declares about its engine, and helpers for its tests."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feedline.abc import Engine, Framework
from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.frameworks.numpy import NumpyFramework
from feedline.types import DatasetKind, Result, ResultKind, SlotBatch, Task
from tests.contracts.gate import TIMEOUT_S, Gate


class EngineBench:
    """What a suite declares about its engine, and helpers for its tests.

    Names without an underscore are for subclasses of the suite; the others are for the chapters of the contract.
    """

    has_processes: bool = False
    """True if each worker is a process of its own: it has a process id and can be killed."""

    tells_stacks: bool = False
    """True if the engine can return the stack of a worker."""

    framework: Framework = NumpyFramework()

    def make_engine(self) -> Engine:
        """Return an engine that has not been opened, with two workers."""
        raise NotImplementedError("Override make_engine() to return your engine.")

    def slot_for(self, worker: int) -> int:
        """Return a slot for the next task; -1 if the engine uses none."""
        return -1

    def batch_of(self, result: Result) -> Any:
        """Return the batch of a finished task."""
        if isinstance(result.payload, SlotBatch):
            raise NotImplementedError("Override batch_of() to unpack a SlotBatch.")
        return result.payload

    # -- helpers for tests -------------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="feedline-") as folder:
            yield Path(folder)

    @contextmanager
    def _gate(self) -> Iterator[Gate]:
        with self._folder() as folder, Gate(folder / "gate") as gate:
            yield gate

    @contextmanager
    def _at_work(
        self, dataset: object, *, streams: bool = False, start: bool = True, **options: Any
    ) -> Iterator[Engine]:
        engine = self.make_engine()
        spec = WorkerSpec(
            dataset=dataset,
            kind=DatasetKind.ITERABLE if streams else DatasetKind.MAP,
            collate=options.pop("collate", default),
            framework=self.framework,
            worker_count=engine.worker_count,
            base_seed=7,
            **options,
        )
        try:
            engine.open(spec)
            if start:
                engine.start()
            yield engine
        finally:
            engine.close()

    def _submit(self, engine: Engine, worker: int, id: int, indices: object, epoch: int = 0) -> None:  # noqa: A002
        engine.submit(worker, Task(id, indices, self.slot_for(worker), epoch))

    def _collect(self, engine: Engine, count: int, worker: int | None = None) -> list[Result]:
        """Wait for `count` answers."""
        results: list[Result] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(results) < count:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"only {len(results)} of {count} answers arrived within {TIMEOUT_S} s"
            results += engine.collect(left_s, worker)
        assert len(results) == count, f"more than {count} answers: {results}"
        return results

    def _ask(self, engine: Engine, id: int, indices: object, epoch: int = 0, worker: int = 0) -> Result:  # noqa: A002
        self._submit(engine, worker, id, indices, epoch)
        (result,) = self._collect(engine, 1)
        assert result.task_id == id
        assert result.worker == worker
        return result

    def _nothing_comes(self, engine: Engine) -> None:
        assert engine.collect(0.05) == []

    def _numbers_of(self, result: Result) -> list[int]:
        assert result.kind is ResultKind.DONE, result
        batch = self.batch_of(result)
        assert batch.shape == (len(batch), 2)
        assert (batch[:, 0] == batch[:, 1]).all()
        numbers: list[int] = batch[:, 0].tolist()
        return numbers
