"""The fields that a rank needs: others are dropped before a batch leaves the worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from feedline.abc.framework import Framework
from feedline.collate.arrays import Arrays
from feedline.collate.binding import Collate
from feedline.errors import BadOption, CollateError
from feedline.types import CollateFunction

Fields: TypeAlias = tuple[str | int, ...] | Callable[[Any], Any]  # Any: batches of any kind
"""Names, places in a tuple, or a function of the batch."""


# object: user input.
def checked_fields(fields: object) -> Fields | None:
    """Return the option `fields=`. Raises BadOption: it is neither names, places nor a function."""
    if fields is None or callable(fields):
        return fields
    given = (fields,) if isinstance(fields, (str, int)) else fields
    kinds = {type(field) for field in given} if isinstance(given, Sequence) else {object}
    if not isinstance(given, Sequence) or kinds not in (set(), {str}, {int}):
        raise BadOption(
            f"fields={fields!r:.200} is neither a list of names, for dicts, nor a list of numbers, for tuples, nor a "
            "function that takes a batch. fields=() drops all of them."
        )
    if len(set(given)) < len(given):
        raise BadOption(f"fields={fields!r:.200} names a field twice. Name each field once.")
    return tuple(given)


class Picked(Collate):
    """Collates as another function does, and keeps some fields.

    The default collate function gets only these fields of the samples; other functions get all.

    Args:
        inner: the other function.
        fields: the fields to keep.
        batched: False if `inner` is called with single samples.
    """

    _is_before = False
    """True if fields are dropped before samples are collated."""

    def __init__(self, inner: CollateFunction, fields: Fields, *, batched: bool) -> None:
        super().__init__(inner)
        self.fields = fields
        self.batched = batched

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Picked):
            return NotImplemented
        return (self.inner, self.fields, self.batched) == (other.inner, other.fields, other.batched)

    def __hash__(self) -> int:
        return hash((Picked, self.batched))

    def bound_to(self, framework: Framework | str) -> Picked:
        bound = super().bound_to(framework)
        if self.batched and isinstance(framework, Framework):
            bound._is_before = framework.is_default_collate(self.inner)
        return bound

    def __call__(self, samples: Any) -> Any:
        fields = self.fields
        if fields == ():
            return {}
        if callable(fields):
            return fields(self._inner(samples))
        if self._is_before:
            return self._inner([_kept(sample, fields) for sample in samples])
        return _kept(self._inner(samples), fields)

    def _collate(self, samples: Sequence[object], arrays: Arrays) -> object:
        return self(samples)

    def __repr__(self) -> str:
        return f"{self.inner!r}, fields={self.fields!r}"


# Any: a sample or a batch of any kind.
def _kept(value: Any, fields: tuple[str | int, ...]) -> Any:
    """Return some fields of a sample or batch."""
    with contextlib.suppress(LookupError, TypeError):
        if isinstance(value, Mapping):
            return {name: value[name] for name in fields}
        if isinstance(value, (tuple, list)):
            places: Any = fields  # Any: names raise an error below
            return tuple(value[place] for place in places)
    size = f" with {', '.join(map(repr, value))}" if isinstance(value, Mapping) else ""
    size = f" with {len(value)} fields" if isinstance(value, (tuple, list)) else size
    raise CollateError(
        f"fields={fields!r} do not exist in a {type(value).__name__}{size}. Use names for dicts, numbers from 0 for "
        "tuples, or a function that takes the batch."
    )


class NoSamples:
    """A dataset in place of one from which nothing is needed: any index is valid, and nothing is read."""

    def __getitem__(self, index: object) -> None:
        return None

    def __getitems__(self, indices: Sequence[object]) -> list[None]:
        return [None] * len(indices)


NOTHING = NoSamples()
"""One for all loaders: workers are kept while their dataset is the same object."""
