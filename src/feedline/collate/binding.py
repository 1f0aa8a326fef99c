"""Binding a collate function to one framework."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from feedline.abc.framework import Framework
from feedline.collate.arrays import Arrays, arrays_named, framework_of
from feedline.errors import BadOption, EmptyBatch
from feedline.types import CollateFunction

C = TypeVar("C", bound="Collate")


class Collate(ABC):
    """A collate function for every framework.

    The loader binds it to its framework. An unbound copy inspects the samples at every call: if they contain tensors,
    it makes a batch of tensors, otherwise one of NumPy arrays.

    Args:
        inner: the collate function that does part of the work.
    """

    _arrays: Arrays | None = None

    def __init__(self, inner: CollateFunction) -> None:
        if not callable(inner):
            raise BadOption(
                f"inner={inner!r:.200} is not a collate function. A loader takes drop_none(), not drop_none."
            )
        self.inner = inner
        self._inner = inner  # the bound version of `inner`, once this one is bound

    def bound_to(self: C, framework: Framework | str) -> C:
        """Return this collate function for one framework: the loader's, or "numpy" or "torch"."""
        bound = copy.copy(self)
        if isinstance(framework, str):
            bound._arrays = arrays_named(framework)
            bind = getattr(self.inner, "bound_to", None)  # a user's function has none
            bound._inner = self.inner if bind is None else bind(framework)
        else:
            bound._arrays = arrays_named(framework.name)
            bound._inner = framework.bind_collate(self.inner)
        return bound

    def __call__(self, samples: Sequence[object]) -> Any:
        if len(samples) == 0:
            raise no_samples()
        arrays = self._arrays
        if arrays is None:
            return self.bound_to(framework_of(samples))(samples)
        return self._collate(samples, arrays)

    @abstractmethod
    def _collate(self, samples: Sequence[object], arrays: Arrays) -> object:
        """Make the batch from these samples."""


def no_samples() -> EmptyBatch:
    """Return the error for a batch without samples."""
    return EmptyBatch(
        "A batch has no samples, so there is nothing to collate. The usual cause is a batch sampler that yields empty "
        "lists: leave them out."
    )
