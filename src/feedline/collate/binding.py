"""How a collate function is bound to one framework."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from feedline.abc.framework import Framework
from feedline.collate.arrays import Arrays, arrays_named, framework_of
from feedline.errors import BadOption, EmptyBatch

CollateFunction = Callable[[Any], Any]
"""Takes the samples of a batch (torch's, ours, the user's own) and returns the batch."""

C = TypeVar("C", bound="Collate")


class Collate(ABC):
    """A collate function for every framework.

    The loader binds it to its own. A copy that is not bound looks at its samples at every call: tensors make a batch
    of tensors, anything else one of NumPy arrays.

    Args:
        inner: the collate function that this one hands part of its work to.
    """

    _arrays: Arrays | None = None

    def __init__(self, inner: CollateFunction) -> None:
        if not callable(inner):
            raise BadOption(
                f"inner={inner!r} is not a collate function. Give a callable, or nothing for the default; the loader "
                f"gets {type(self).__name__.lower()}(...), called once when the loader is built."
            )
        self.inner = inner
        self._inner = inner  # bound, when this one is

    def bound_to(self: C, framework: Framework | str) -> C:
        """Return this collate function for one framework: the loader's, or "numpy" or "torch"."""
        bound = copy.copy(self)
        if isinstance(framework, str):
            bound._arrays = arrays_named(framework)
            bind = getattr(self.inner, "bound_to", None)  # a user's own function has none, and stays as it is
            bound._inner = self.inner if bind is None else bind(framework)
        else:
            bound._arrays = arrays_named(framework.name)
            bound._inner = framework.bind_collate(self.inner)
        return bound

    def __call__(self, samples: Sequence[Any]) -> Any:
        if len(samples) == 0:
            raise no_samples()
        arrays = self._arrays
        if arrays is None:
            return self.bound_to(framework_of(samples))(samples)
        return self._collate(samples, arrays)

    @abstractmethod
    def _collate(self, samples: Sequence[Any], arrays: Arrays) -> Any:
        """Make the batch of these samples."""


def no_samples() -> EmptyBatch:
    """Return the error for a batch that was empty from the start."""
    return EmptyBatch(
        "A batch has no samples, so there is nothing to collate. A batch sampler that yields empty lists is the usual "
        "reason: leave those out."
    )
