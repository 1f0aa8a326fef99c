"""Stages: named steps inside a task, and the time spent in them.

Fetching and collating are timed by the loader itself. What a dataset does inside of a fetch, it can name with `stage`;
what it keeps under `transform`, as torchvision's datasets do, is timed for it while samples take long enough. Times go
to the scope of the worker, so to its task; outside of a loader nothing is measured.
"""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from feedline.failures import TRANSFORMS
from feedline.randomness.scope import Scope, current_scope
from feedline.system.attributes import attribute_of, of_class

TRANSFORM = "transform"


class stage:  # noqa: N801  a context manager, which users call
    """Name what a dataset does inside of this context: its time is a stage of its own in `loader.stats()`.

    Inside of itself, a stage counts once. Costs about a microsecond. Outside of a loader nothing happens.

    Args:
        name: of the stage, such as "decode"; "transform" is the loader's own word for what is done to a sample after
            it was read.

    Example:
        >>> import feedline
        >>> class Squares:
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         with feedline.stage("square"):
        ...             return index * index
        >>> loader = feedline.Loader(Squares(), 2)
        >>> batches = list(loader)
        >>> loader.stats().epoch.stages["square"].count
        2
    """

    __slots__ = ("_begun", "_name", "_scope")

    def __init__(self, name: str) -> None:
        self._name = name
        self._scope: Scope | None = None
        self._begun = 0

    def __enter__(self) -> None:
        scope = current_scope()
        # A negative number says that it is entered already, up the stack.
        if scope is None or scope.stages.get(self._name, 0) < 0:
            return
        self._scope = scope
        scope.stages[self._name] = ~scope.stages.get(self._name, 0)
        self._begun = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            spent = time.monotonic_ns() - self._begun
            scope.stages[self._name] = ~scope.stages.get(self._name, -1) + spent


class Timed:
    """A transform that is timed. To whoever looks at it, it is the transform itself, as far as that can be had."""

    # Any: a callable of the user's.
    def __init__(self, transform: Any) -> None:
        object.__setattr__(self, "_transform", transform)

    def __call__(self, *args: Any, **options: Any) -> Any:
        with stage(TRANSFORM):
            return self._transform(*args, **options)

    @property  # type: ignore[misc]  # so that isinstance() says what it would say of the transform
    def __class__(self) -> Any:
        return type(self._transform)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_transform"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._transform, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:  # a copy is one of the transform
        return _itself, (self._transform,)


def _itself(transform: Any) -> Any:
    return transform


def timed_transforms(dataset: Any) -> Callable[[], None]:
    """Have a dataset, and those that it wraps, time their transforms; returns what puts these back.

    Other threads may use the same dataset: what another one has put there is left alone.
    """
    swapped: list[tuple[Any, str, Any, Any]] = []
    for layer in _layers_of(dataset):
        for name in TRANSFORMS:
            if hasattr(type(of_class(type(layer), name)), "__set__"):
                continue  # a property: setting it would be the user's code
            transform = attribute_of(layer, name)
            if type(transform) is not Timed and _is_plainly_called(transform):
                timed = Timed(transform)
                try:
                    object.__setattr__(layer, name, timed)
                except (AttributeError, TypeError):  # an object that is like no other: it is not timed
                    continue
                swapped.append((layer, name, timed, transform))
    return functools.partial(_put_back, swapped)


def _put_back(swapped: list[tuple[Any, str, Any, Any]]) -> None:
    for layer, name, timed, transform in swapped:
        if attribute_of(layer, name) is timed:
            object.__setattr__(layer, name, transform)


def _layers_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it wraps."""
    for _ in range(8):  # wrapped in one another; a bound in case of a cycle
        if dataset is None or isinstance(dataset, type):
            return
        yield dataset
        dataset = attribute_of(dataset, "dataset")


def _is_plainly_called(transform: Any) -> bool:
    """True if all that is done with a transform is calling it: one that is a container may be used as such."""
    if isinstance(transform, (types.FunctionType, types.MethodType, functools.partial)):
        return True
    kind = type(transform)
    is_container = any(hasattr(kind, name) for name in ("__iter__", "__getitem__", "__len__"))
    return transform is not None and callable(transform) and not isinstance(transform, type) and not is_container
