"""Fetching from asynchronous datasets, whose `__getitem__` or `__getitems__` is an `async def`.

All samples of a batch are awaited at once. Each runs in its own context, where `feedline.rng()` returns the numbers of
that sample, however the coroutines take turns. The process-wide generators cannot be separated like that: what a sample
draws from them depends on the order in which the coroutines run. A warning reports it.

All samples are requested before any answer is examined. A guard then goes through the answers one by one, as if it had
requested each itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from feedline.abc.source import Selection
from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import BadOption, DataWarning, warn_user
from feedline.randomness.global_states import GlobalStates
from feedline.randomness.scope import Scope, enter_task
from feedline.types import CollateFunction
from feedline.workers.fetch.guard import Asking, Guard
from feedline.workers.fetch.loop import loop_of

_LOOKS = 4
"""Number of batches during which to watch the process-wide generators."""


# Any, throughout: a dataset may be of any type.
def is_awaited(dataset: object) -> bool:
    """True if samples have to be awaited; for a subset, if those of its dataset have to be."""
    kind = type(_below(dataset))
    return any(_is_async(getattr(kind, name, None)) for name in _GETTERS)


# Any: a method of any kind.
def _is_async(method: Any) -> bool:
    """Return `inspect.iscoroutinefunction(method)`; several times faster for the methods that most datasets have."""
    if method is None or type(method) in (types.WrapperDescriptorType, types.MethodDescriptorType):
        return False
    if type(method) is types.FunctionType and not vars(method):  # no mark of a coroutine function
        return bool(method.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(method)


_GETTERS = ("__getitem__", "__getitems__")


def asks_together(dataset: object) -> bool:
    """True if the samples of a batch are requested in one call, so an exception does not show which of them failed."""
    several = batch_getter(dataset)
    return several is not None and (not is_awaited(dataset) or inspect.iscoroutinefunction(several))


def batch_getter(dataset: Any) -> Callable[[object], object] | None:
    """Return the dataset's `__getitems__`; None if its samples are requested one by one.

    Torch's `Subset` has a `__getitems__` that requests one sample after the other if its dataset has none. The loader
    does the same itself, and so knows which sample failed.
    """
    torch_data = sys.modules.get("torch.utils.data")
    below = dataset
    while torch_data is not None and all(
        getattr(type(below), name, None) is getattr(torch_data.Subset, name, dataset) for name in _GETTERS
    ):
        below = below.dataset
    several: Callable[[object], object] | None = getattr(dataset, "__getitems__", None)
    return several if several and (below is dataset or callable(getattr(below, "__getitems__", None))) else None


def _is_torchs_subset(dataset: object) -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(dataset, torch_data.Subset)


def awaiting_fetcher(
    dataset: object, collate: CollateFunction, spec: WorkerSpec, scope: Scope, guard: Guard | None
) -> Callable[[object], object]:
    """Return a fetcher that awaits the samples of a batch."""
    several = getattr(dataset, "__getitems__", None)
    is_together = spec.batched and inspect.iscoroutinefunction(several)
    if not is_together and not inspect.iscoroutinefunction(getattr(type(_below(dataset)), "__getitem__", None)):
        raise BadOption(
            f"{type(dataset).__name__} has an async __getitems__, but its __getitem__ is not async, and this loader "
            "requests single samples. Make both async."
        )
    return _Awaiting(dataset, collate, spec, scope, guard, is_together=is_together)


def _below(dataset: Any) -> object:
    while isinstance(dataset, Selection) or _is_torchs_subset(dataset):
        dataset = dataset.dataset
    return dataset


class _Awaiting:
    """Makes batches of samples that are awaited."""

    def __init__(
        self,
        dataset: object,
        collate: CollateFunction,
        spec: WorkerSpec,
        scope: Scope,
        guard: Guard | None,
        *,
        is_together: bool,
    ) -> None:
        self._scope = scope
        self._guard = guard
        # A separate object, so that this one and `_how` form no cycle: the loop ends as soon as the dataset does.
        self._reader = _Reader(dataset, scope, is_together=is_together)
        how = Asking.of(self._reader.ask, collate, spec, is_together)
        self._how = how if guard is None else guard.guarded(how, together=is_together)
        self._is_together = is_together
        self._looks = 0 if scope.seeds_globals else _LOOKS

    def __call__(self, indices: object) -> object:
        before = GlobalStates.now() if self._looks < _LOOKS else None
        scope, how = self._scope, self._how
        known = () if self._guard is None else self._guard.skip
        try:
            items = how.items(indices)
            if not self._is_together:
                self._reader.read_ahead({place: item for place, item in enumerate(items) if place not in known})
            samples = []
            for scope.place, item in enumerate(items):
                samples.append(how.ask(item))
            scope.collate()
            return how.join(samples)
        finally:
            self._reader.ready = {}  # samples that were awaited but not requested
            if before is not None:
                self._look(before)

    def _look(self, before: GlobalStates) -> None:
        used = GlobalStates.now().differing(before)
        self._looks += 1
        if used:
            self._looks = _LOOKS
            warn_user(
                f"{self._reader.name} draws random numbers from {' and '.join(used)}. Its samples are made "
                "concurrently and share these generators, so with seed= batches are not reproducible. Draw from "
                "feedline.rng(), which is separate for each sample.",
                DataWarning,
            )


_Answer = tuple[object, BaseException | None]
"""The outcome of a request: a sample, or an exception."""


class _Reader:
    """Awaits samples ahead of the requests for them."""

    def __init__(self, dataset: Any, scope: Scope, *, is_together: bool) -> None:
        self._dataset = dataset
        self._scope = scope
        self._below = _below(dataset)
        self._limit = _limit_of(self._below)
        self._is_together = is_together
        self.ready: dict[int, _Answer] = {}
        """Answers by the places of the samples."""

    @property
    def name(self) -> str:
        """The name of the dataset's class."""
        return type(self._dataset).__name__

    def read_ahead(self, wanted: dict[int, object]) -> None:
        """Await samples, given by their places."""
        self.ready = loop_of(self._below).run(self._answers(wanted))

    def ask(self, item: object) -> object:
        """Return the sample awaited for the current place, or await it now: for another attempt, or another sample."""
        place = self._scope.place
        answer = self.ready.pop(place, None)
        if answer is None:
            answer = loop_of(self._below).run(self._answer(place, item, contextlib.nullcontext()))
        sample, error = answer
        if error is None:
            return sample
        try:
            raise error
        finally:
            del answer, error  # avoid a reference cycle: its traceback refers to this frame

    async def _answers(self, wanted: dict[int, object]) -> dict[int, _Answer]:
        turn = contextlib.nullcontext() if self._limit is None else asyncio.Semaphore(self._limit)
        answers = await asyncio.gather(*(self._answer(place, item, turn) for place, item in wanted.items()))
        return dict(zip(wanted, answers, strict=True))

    async def _answer(self, place: int, item: object, turn: contextlib.AbstractAsyncContextManager[None]) -> _Answer:
        enter_task(self._scope.apart(place))
        try:
            async with turn:
                found = self._dataset.__getitems__(item) if self._is_together else self._dataset[item]
                return (await found if inspect.isawaitable(found) else found), None
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and getattr(task, "cancelling", lambda: 1)():
                raise
            return None, exc  # the dataset itself has cancelled it
        except BaseException as exc:  # KeyboardInterrupt would end the loop, but not the wait for it
            return None, exc


def _limit_of(dataset: object) -> int | None:
    limit = getattr(dataset, "max_concurrency", None)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise BadOption(
            f"max_concurrency={limit!r} of {type(dataset).__name__} is not a number of reads. Set it to an int of at "
            "least 1, or to None for all samples of a batch at once."
        )
    return limit
