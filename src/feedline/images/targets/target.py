"""What moves with an image: the base class, and how the targets of a sample are found and moved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.images.geometry import View
from feedline.images.medium import replaced
from feedline.system.optional import is_tensor, require
from feedline.system.shown import call_of


class Target(ABC):
    """Something that moves with an image."""

    fields: tuple[str, ...] = ()
    """Fields beside it that lose the entries that it loses."""

    @abstractmethod
    def moved(self, value: object, views: Sequence[View]) -> tuple[object, NDArray[np.bool_] | None]:
        """Return the value for the image that these views show, and which of its entries are kept; None for all.

        Args:
            value: the value for the image as it was.
            views: what each stage of the pipeline shows of the image that it received.
        """

    def __repr__(self) -> str:
        return call_of(self)


# Any: numbers in an array, a tensor, or lists.
def numbers(value: Any, columns: Sequence[int], what: str) -> NDArray[np.float64]:
    """Return numbers as an array whose last axis has one of these lengths.

    Raises:
        BadOption: they do not have this form.
    """
    try:
        array = np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)
    except ValueError as exc:  # rows of different lengths
        raise BadOption(f"{what} are not rows of {' or '.join(map(str, columns))} numbers: {value!r:.200}.") from exc
    if array.size == 0:
        shape = array.shape if array.ndim > 1 and array.shape[-1] in columns else (0, columns[0])
        return np.empty(shape)
    if array.dtype.kind not in "iuf" or array.ndim < 2 or array.shape[-1] not in columns:
        raise BadOption(
            f"{what} have the shape {array.shape} ({array.dtype}), but rows of {' or '.join(map(str, columns))} "
            "numbers are needed."
        )
    return array.astype(np.float64)


def as_given(array: NDArray[np.float64], value: object) -> object:
    """Return float32 numbers, as a tensor if they were in one before."""
    narrowed = array.astype(np.float32)
    if not is_tensor(value):
        return narrowed
    return require("torch", extra="torch", purpose="Targets in tensors").from_numpy(narrowed)


# -- in a sample -------------------------------------------------------------------------------------------------------

Targets = Mapping[Any, Target]
"""Targets by the names of their fields. Any: a name, or the index of a tuple."""

_Path = tuple[Hashable, ...]
"""The names that lead to a field."""


def checked_targets(targets: Targets | None) -> dict[Hashable, Target]:
    """Return `targets=` as a dict.

    Raises:
        BadOption: it is no mapping of names to targets.
    """
    given: object = targets
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(one, Target) for one in given.values()):
        raise BadOption(
            f"targets={given!r} is not a dict of targets. Pass the name of each field with its kind, such as "
            'targets={"boxes": images.Boxes(), "mask": images.Mask()}.'
        )
    return dict(given)


def move_targets(sample: object, targets: Mapping[Hashable, Target], views: Sequence[View]) -> object:
    """Return a sample whose targets have moved with its image.

    Args:
        sample: the sample. It is not changed.
        targets: its targets.
        views: what each stage of the pipeline shows of the image that it received.

    Raises:
        BadOption: a field is missing, or has a form that its target does not take.
    """
    changed: dict[_Path, object] = {}
    kept: dict[_Path, NDArray[np.bool_]] = {}
    for name, target in targets.items():
        path = _path(sample, name)
        changed[path], keep = target.moved(_value(sample, path), views)
        if keep is not None:
            for field in target.fields:
                place = (*path[:-1], field)
                if place in kept and _has(sample, place):
                    raise BadOption(
                        f"Two targets= of Boxes both filter the field {field!r}. Give each one fields= of its own."
                    )
                kept[place] = keep
    for path, keep in kept.items():
        if path in changed or _has(sample, path):
            changed[path] = _selected(changed[path] if path in changed else _value(sample, path), keep, path[-1])
    for path, value in changed.items():
        sample = _with(sample, path, value)
    return sample


def check_size(image: object, function: object, view: View) -> None:
    """Reject an image that a function has given another size, so that targets cannot follow.

    Raises:
        BadOption: the size has changed.
    """
    shape = tuple(getattr(image, "shape", ()))
    # A function may also move the channel to the front, as tensors have it.
    if (view.height, view.width) not in (
        [shape[1:]] if is_tensor(image) and len(shape) == 3 else [shape[:2], shape[1:]]
    ):
        raise BadOption(
            f"{function!r} returned an image of shape {shape} for one of {view.height} x {view.width} pixels. Targets "
            "cannot follow a function that moves pixels. Use a transform of feedline.images, or move the targets "
            "yourself, without targets=."
        )


# Any, from here on: a sample, and the values of its fields.
def _path(sample: Any, name: Hashable) -> _Path:
    """Return where a field is: in the sample, or in a dict that is a field of the sample."""
    if _has(sample, (name,)):
        return (name,)
    outer = [one for one in _names(sample) if isinstance(sample[one], Mapping) and name in sample[one]]
    if len(outer) == 1:
        return outer[0], name
    names = [f"{one!r}{_inner(sample[one])}" for one in _names(sample)]
    which = f"the fields {outer} of the sample all have it" if outer else "the sample does not have it"
    raise BadOption(f"targets= names {name!r}, but {which}. It has {', '.join(names)}.")


def _inner(value: object) -> str:
    return f" (a dict of {list(value)})" if isinstance(value, Mapping) else ""


def _names(sample: Any) -> Iterator[Hashable]:
    return iter(sample if isinstance(sample, Mapping) else range(len(sample)))


def _has(sample: Any, path: _Path) -> bool:
    for name in path:
        if isinstance(sample, Mapping):
            if name not in sample:
                return False
        elif type(name) is not int or not -len(sample) <= name < len(sample):
            return False
        sample = sample[name]
    return True


def _value(sample: Any, path: _Path) -> object:
    for name in path:
        sample = sample[name]
    return sample


def _with(sample: object, path: _Path, value: object) -> object:
    return replaced(sample, path[0], lambda inner: _with(inner, path[1:], value) if path[1:] else value)


def _selected(value: Any, keep: NDArray[np.bool_], name: object) -> object:
    if value is None:  # the objects of this sample have none
        return None
    count = len(value) if hasattr(value, "__len__") and getattr(value, "shape", None) != () else 0
    if count != len(keep) or isinstance(value, (str, bytes)):
        raise BadOption(
            f"{name!r} ({type(value).__name__}) has {count} entries, but there are {len(keep)} boxes. It needs one for "
            "each, or has to be left out of fields=."
        )
    if keep.all():
        return value
    if is_tensor(value):
        return value[require("torch", extra="torch", purpose="Targets in tensors").from_numpy(keep)]
    if isinstance(value, np.ndarray):
        return value[keep]
    return [one for one, stays in zip(value, keep.tolist(), strict=True) if stays]
