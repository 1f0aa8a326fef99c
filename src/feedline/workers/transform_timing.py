"""Times the steps of a dataset's transform, such as those of torchvision's `Compose`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from feedline.randomness.stages import TRANSFORM, stage
from feedline.system.failures import TRANSFORMS


def timed_steps(dataset: object) -> Callable[[], None]:
    """Time the steps of a dataset's transform, including datasets that it wraps; returns a function to undo that.

    A transform has steps if its attribute `transforms` is a list, as in torchvision's `Compose`. Transforms that are
    containers, such as those of MONAI and albumentations, are not changed, because other code inspects their steps.
    MONAI's `CacheDataset`, for example, would apply a step twice if it did not recognise the step's class.
    """
    wrapped = []
    for steps in _lists_of_steps(dataset):
        before = list(steps)
        if not any(isinstance(step, functools.partial) and step.func is _call_timed for step in before):
            timed = [functools.partial(_call_timed, step) for step in before]
            wrapped.append((steps, before, timed))
            steps[:] = timed

    def put_back() -> None:
        for steps, before, timed in wrapped:
            if steps == timed:  # not if another thread, or the user, has changed them meanwhile
                steps[:] = before

    return put_back


def _lists_of_steps(dataset: object) -> Iterator[list[Callable[..., object]]]:
    for _ in range(8):  # nested datasets; a bound in case of a cycle
        if dataset is None:
            return
        for name in TRANSFORMS:
            transform = _attribute(dataset, name)
            steps = _attribute(transform, "transforms")
            if type(steps) is not list or not all(map(callable, steps)):
                continue
            if not any(hasattr(type(transform), name) for name in ("__iter__", "__getitem__", "__len__")):
                yield steps
        dataset = _attribute(dataset, "dataset")


def _attribute(value: object, name: str) -> object:
    try:
        return getattr(value, name, None)
    except Exception:  # raised by a user's property: there is nothing to time
        return None


def _call_timed(step: Callable[..., object], *args: object, **options: object) -> object:
    with stage(TRANSFORM):
        return step(*args, **options)
