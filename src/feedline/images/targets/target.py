"""What a target is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.images.geometry import View
from feedline.system.optional import is_tensor, require


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
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


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
