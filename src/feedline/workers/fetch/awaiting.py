"""Fetching from asynchronous datasets, whose `__getitem__` or `__getitems__` is an `async def`.

All samples of a batch are requested and awaited at once, before any answer is examined; then the batch is made as from
any other dataset. Each sample runs in its own context, where `feedline.rng()` returns the numbers of that sample,
however the coroutines take turns. The process-wide generators cannot be separated like that: what a sample draws from
them depends on the order in which the coroutines run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from feedline.abc.source import Selection
from feedline.errors import BadOption
from feedline.randomness.scope import Items, Scope, enter_task
from feedline.workers.fetch.guard import Guard

_GETTERS = ("__getitem__", "__getitems__")


def is_awaited(dataset: object) -> bool:
    """True if samples have to be awaited; for a subset, if those of its dataset have to be."""
    kind = type(_below(dataset))
    return any(inspect.iscoroutinefunction(getattr(kind, name, None)) for name in _GETTERS)


def asks_together(dataset: object) -> bool:
    """True if the samples of a batch are requested in one call, so an exception does not show which of them failed."""
    several = batch_getter(dataset)
    return several is not None and (not is_awaited(dataset) or inspect.iscoroutinefunction(several))


# Any, throughout: a dataset may be of any type.
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


def _below(dataset: Any) -> object:
    torch_data = sys.modules.get("torch.utils.data")
    subsets = (Selection,) if torch_data is None else (Selection, torch_data.Subset)
    while isinstance(dataset, subsets):
        dataset = dataset.dataset
    return dataset


_Answer = tuple[object, BaseException | None]
"""The outcome of a request: a sample, or an exception."""


class Reader:
    """Awaits samples ahead of the requests for them.

    Args:
        dataset: the dataset.
        scope: knows the place of the current sample in its batch.
        guard: knows the places of samples that are not requested.
        batched: False if samples are requested for themselves.
    """

    def __init__(self, dataset: Any, scope: Scope, guard: Guard | None, *, batched: bool) -> None:
        self._dataset = dataset
        self._scope = scope
        self._guard = guard
        self._below = _below(dataset)
        self._limit = _limit_of(self._below)
        self._ready: dict[int, _Answer] = {}
        """Answers by the places of the samples."""
        self.is_together = batched and inspect.iscoroutinefunction(getattr(dataset, "__getitems__", None))
        """True if one call requests all samples of a batch."""
        if not self.is_together and not inspect.iscoroutinefunction(getattr(type(self._below), "__getitem__", None)):
            raise BadOption(
                f"{type(dataset).__name__} has an async __getitems__, but its __getitem__ is not async, and this "
                "loader requests single samples. Make both async."
            )

    def ahead(self, items: Callable[[Any], Items]) -> Callable[[Any], Items]:
        """Return a function that also awaits the samples of the items it returns."""

        def awaited(indices: object) -> Items:
            asked = items(indices)
            known = () if self._guard is None else self._guard.skip
            from feedline.workers.fetch.loop import loop_of  # for async datasets only

            self._ready = {}  # samples of a batch that failed
            wanted = {place: item for place, item in enumerate(asked) if place not in known}
            self._ready = loop_of(self._below).run(self._answers(wanted))
            return asked

        return awaited

    def ask(self, item: object) -> object:
        """Return the sample awaited for the current place, or await it now: for another attempt, or another sample."""
        place = self._scope.place
        answer = self._ready.pop(place, None)
        if answer is None:
            from feedline.workers.fetch.loop import loop_of

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
                found = self._dataset.__getitems__(item) if self.is_together else self._dataset[item]
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
