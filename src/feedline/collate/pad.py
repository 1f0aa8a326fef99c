"""Pad sequences of different lengths to the longest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from feedline.collate import fields
from feedline.collate.arrays import Arrays, is_array
from feedline.collate.binding import Collate
from feedline.collate.default import default
from feedline.collate.fields import Field
from feedline.errors import BadOption, CollateError
from feedline.system.failures import words
from feedline.types import CollateFunction

Side = Literal["left", "right"]


def pad(
    value: float | Mapping[Any, float] = 0,
    *,
    fields: Collection[Field] | None = None,
    lengths: bool | str = True,
    multiple_of: int | None = None,
    sort: bool = False,
    axis: int = 0,
    side: Side = "right",
    inner: CollateFunction = default,
) -> Pad:
    """Pad sequences to the longest of the batch.

    A sequence is an array, a tensor or a list of numbers. The batch has the structure of a sample: a dict for dicts, a
    tuple for tuples. A sample may also be just a sequence.

    Args:
        value: the padding value: a number, or a mapping from fields to numbers, which also selects the fields to pad.
        fields: the fields to pad: keys of a dict, positions of a tuple. By default the fields of `value`, or every
            field that is a sequence.
        lengths: True to add the lengths before padding: for dicts as `<field>_lengths`, for tuples at the end, one for
            each padded field; for a bare sequence the batch becomes (padded, lengths). A name to add them once under
            that name, for dicts whose padded fields have equal lengths. False to add none.
        multiple_of: round the padded length up to a multiple of this; 8 suits tensor cores.
        sort: True to sort the samples by the length of the first padded field, longest first.
        axis: the axis whose length varies, counted in one sample's array; negative counts from the last.
        side: where to put the padding.
        inner: collates the fields that are not padded. It gets a dict of them for each sample (for tuples the keys are
            positions) and must return a dict.

    Raises:
        BadOption: an argument is invalid.
        CollateError: when a batch is made: sequences differ in more than their length, a field is missing, or the array
            cannot hold the padding value.

    Example:
        >>> import numpy as np
        >>> from feedline.collate import pad
        >>> pad({"ids": -1})([{"ids": np.array([5, 6, 7]), "label": 0}, {"ids": np.array([8]), "label": 1}])
        {'ids': array([[ 5,  6,  7],
               [ 8, -1, -1]]), 'label': array([0, 1]), 'ids_lengths': array([3, 1])}
    """
    return Pad(
        value, fields=fields, lengths=lengths, multiple_of=multiple_of, sort=sort, axis=axis, side=side, inner=inner
    )


_SMALL_BYTES = 1 << 20
"""Below this size, filling the whole array with the padding value first is faster than filling only the gaps."""


@dataclass(frozen=True)
class _Sequences:
    """One field of all samples: arrays that differ in the length of one axis."""

    arrays: list[Any]
    sizes: list[int]
    axis: int

    def longest_first(self) -> list[int]:
        return sorted(range(len(self.sizes)), key=lambda i: -self.sizes[i])

    def in_order(self, order: list[int]) -> _Sequences:
        return _Sequences([self.arrays[i] for i in order], [self.sizes[i] for i in order], self.axis)


class Pad(Collate):
    """The collate function that `pad` returns."""

    def __init__(
        self,
        value: float | Mapping[Any, float],
        *,
        fields: Collection[Field] | None,
        lengths: bool | str,
        multiple_of: int | None,
        sort: bool,
        axis: int,
        side: Side,
        inner: CollateFunction,
    ) -> None:
        super().__init__(inner)
        self.values = _check_values(value)
        self.fields = _check_fields(fields, self.values)
        if not isinstance(lengths, (bool, str)):
            raise BadOption(f"lengths={lengths!r} is not True, False or the name of a field to put the lengths in.")
        if multiple_of is not None and (not _is_int(multiple_of) or multiple_of < 1):
            raise BadOption(f"multiple_of={multiple_of!r} is not a positive integer.")
        if not _is_int(axis):
            raise BadOption(f"axis={axis!r} is not the number of an axis.")
        if side not in ("left", "right"):
            raise BadOption(f"side={side!r} is not 'left' or 'right'.")
        self.lengths = lengths
        self.multiple_of = multiple_of or 1
        self.sort = bool(sort)
        self.axis = int(axis)
        self.side = side

    def _collate(self, samples: Sequence[object], arrays: Arrays) -> object:
        if _dimensions(samples[0]):
            return self._collate_bare(samples, arrays)
        names = fields.shared_names(samples)
        if names is None:
            raise CollateError(
                f"Sample 0 of the batch is a {type(samples[0]).__name__}. pad() takes arrays, lists of numbers, and "
                "dicts or tuples of these."
            )
        chosen = self._chosen(samples, names)
        columns = {name: self._sequences(fields.column(samples, name), name, arrays) for name in chosen}
        if self.sort and chosen:
            order = columns[chosen[0]].longest_first()
            samples = [samples[i] for i in order]
            columns = {name: column.in_order(order) for name, column in columns.items()}
        batch = self._others(samples, [name for name in names if name not in columns])
        for name, column in columns.items():
            batch[name] = self._padded(column, name, arrays)
        batch = {name: batch[name] for name in (*names, *(name for name in batch if name not in names))}
        return self._finish(samples[0], batch, columns, arrays)

    def _collate_bare(self, samples: Sequence[object], arrays: Arrays) -> object:
        """Make the batch from samples that are bare sequences."""
        if self.fields is not None:
            raise CollateError(
                f"pad() cannot pad the fields {', '.join(map(repr, self.fields))}, because the samples have no fields: "
                f"sample 0 is a {type(samples[0]).__name__}. Return dicts or tuples from the dataset, or call pad() "
                "without fields."
            )
        if isinstance(self.lengths, str):
            raise self._no_place(samples[0])
        sequences = self._sequences(samples, None, arrays)
        if self.sort:
            sequences = sequences.in_order(sequences.longest_first())
        padded = self._padded(sequences, None, arrays)
        return (padded, self._lengths(sequences, arrays)) if self.lengths else padded

    def _chosen(self, samples: Sequence[object], names: Sequence[Field]) -> list[Field]:
        """Return the fields to pad."""
        if self.fields is None:
            return [name for name in names if self._has_axis(fields.column(samples[:1], name)[0])]
        for name in self.fields:
            if name not in names:
                raise fields.missing(samples, name)
        return list(self.fields)

    def _has_axis(self, value: object) -> bool:
        dimensions = _dimensions(value)
        return -dimensions <= self.axis < dimensions

    def _sequences(self, values: Sequence[object], name: Field, arrays: Arrays) -> _Sequences:
        """Check the values of a field and return them as arrays."""
        if len({type(value) for value in values}) > 1 or not is_array(values[0]):
            for position, value in enumerate(values):
                if not self._has_axis(value):
                    raise self._cannot_pad(value, position, name)
        try:
            sequences = arrays.workable(values)
        except (TypeError, ValueError) as exc:  # lists that do not form an array
            raise CollateError(
                f"The sequences{_inside(name)} cannot be read as arrays of numbers: {words(exc)}. Return lists of "
                "numbers, or arrays, from the dataset."
            ) from exc
        first = sequences[0]
        if not self._has_axis(first):
            raise self._cannot_pad(first, 0, name)
        axis = self.axis % first.ndim
        shapes = [sequence.shape for sequence in sequences]
        others = [(*shape[:axis], *shape[axis + 1 :]) for shape in shapes]
        if others.count(others[0]) < len(others) or () in shapes:
            position = next(i for i, other in enumerate(others) if other != others[0] or not shapes[i])
            raise CollateError(
                f"Samples 0 and {position} of the batch have shapes {tuple(shapes[0])} and {tuple(shapes[position])}"
                f"{_inside(name)}. pad() makes axis {self.axis} equal; all other axes must be equal already. Choose "
                "another axis, or resize the arrays in the dataset."
            )
        sizes = [shape[axis] for shape in shapes]
        return _Sequences(sequences, sizes, axis)

    def _cannot_pad(self, value: object, position: int, name: Field) -> CollateError:
        if value is None:
            path = () if name is None else (name,)
            return CollateError(
                f"Sample {position} of the batch {'has' if path else 'is'} None{_inside(name)}, which pad() cannot "
                f"pad. {fields.instead_of_none(path)}"
            )
        shape = f" of shape {tuple(value.shape)}" if is_array(value) else ""
        return CollateError(
            f"Sample {position} of the batch has a {type(value).__name__}{shape}{_inside(name)}, which pad() cannot "
            f"pad along axis {self.axis}. Return an array or a list of numbers that has this axis, or name the fields "
            "to pad with pad(fields=...)."
        )

    def _padded(self, sequences: _Sequences, name: Field, arrays: Arrays) -> object:
        """Copy the sequences into one array and pad them."""
        axis = sequences.axis
        longest = max(sequences.sizes)
        width = -(-longest // self.multiple_of) * self.multiple_of
        shape = list(sequences.arrays[0].shape)
        shape[axis] = width
        out = arrays.empty((len(sequences.arrays), *shape), sequences.arrays)
        value = self.values[name] if isinstance(self.values, Mapping) else self.values
        if not arrays.holds(out, value):
            raise CollateError(
                f"The padding value {value} does not fit into {out.dtype}, the type of the arrays{_inside(name)}. "
                "Choose another value, or convert the arrays in the dataset."
            )
        filled = out.nbytes < _SMALL_BYTES
        if filled:
            out[...] = value
        before = (slice(None),) * axis
        right = self.side == "right"
        for number, (sequence, size) in enumerate(zip(sequences.arrays, sequences.sizes, strict=True)):
            kept = slice(0, size) if right else slice(width - size, width)
            out[(number, *before, kept)] = sequence
            if not filled and size < width:
                rest = slice(size, width) if right else slice(0, width - size)
                out[(number, *before, rest)] = value
        return arrays.adopt(out)

    def _lengths(self, sequences: _Sequences, arrays: Arrays) -> object:
        return arrays.adopt(np.array(sequences.sizes, np.int64))

    def _others(self, samples: Sequence[object], names: Sequence[Field]) -> dict[Field, object]:
        """Collate the fields that are not padded."""
        if not names:
            return {}
        columns = [fields.column(samples, name) for name in names]
        rest = self._inner([dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)])
        missing = [name for name in names if not isinstance(rest, Mapping) or name not in rest]
        if missing:
            raise CollateError(
                f"{self.inner!r}, the inner collate function of pad(), got dicts with the fields "
                f"{', '.join(map(repr, names))} and returned a {type(rest).__name__} without {missing[0]!r}. It must "
                "return a dict with all of these fields."
            )
        return dict(rest)

    def _finish(
        self, sample: object, batch: dict[Field, object], columns: Mapping[Field, _Sequences], arrays: Arrays
    ) -> object:
        """Add the lengths and build the batch with the structure of a sample."""
        if self.lengths is False:
            return fields.build(sample, batch)
        is_dict = isinstance(sample, Mapping)
        if not is_dict and (type(sample) not in (tuple, list) or isinstance(self.lengths, str)):
            raise self._no_place(sample)
        if isinstance(self.lengths, str):
            added: dict[Field, object] = {self.lengths: self._common_lengths(columns, arrays)} if columns else {}
        elif is_dict:
            added = {f"{name}_lengths": self._lengths(column, arrays) for name, column in columns.items()}
        else:
            added = {len(batch) + i: self._lengths(column, arrays) for i, column in enumerate(columns.values())}
        taken = batch.keys() & added.keys()
        if taken:
            raise CollateError(
                f"pad() adds the lengths as {taken.pop()!r}, but the samples have a field of that name. Choose "
                "another name with pad(lengths='name'), or use pad(lengths=False) if the samples contain their lengths."
            )
        return fields.build(sample, {**batch, **added})

    def _common_lengths(self, columns: Mapping[Field, _Sequences], arrays: Arrays) -> object:
        (first, sequences), *others = columns.items()
        for name, column in others:
            for position, (one, other) in enumerate(zip(sequences.sizes, column.sizes, strict=True)):
                if one != other:
                    raise CollateError(
                        f"pad(lengths={self.lengths!r}) adds one length per sample, but in sample {position} of the "
                        f"batch {first!r} has length {one} and {name!r} has {other}. Use lengths=True, which adds the "
                        "lengths of each field."
                    )
        return self._lengths(sequences, arrays)

    def _no_place(self, sample: object) -> CollateError:
        return CollateError(
            f"pad(lengths={self.lengths!r}) cannot add lengths to a {type(sample).__name__}, the type of the samples. "
            f"Use {'lengths=True or ' if isinstance(self.lengths, str) else ''}lengths=False, or return dicts from "
            "the dataset."
        )

    def __repr__(self) -> str:
        return (
            f"pad({self.values!r}, fields={self.fields!r}, lengths={self.lengths!r}, multiple_of={self.multiple_of}, "
            f"sort={self.sort}, axis={self.axis}, side={self.side!r}, inner={self.inner!r})"
        )


def _check_values(value: float | Mapping[Any, float]) -> float | dict[Field, float]:
    if isinstance(value, Mapping):
        for name, number in value.items():
            if not _is_number(number):
                raise BadOption(f"The padding value of field {name!r} is {number!r}, not a number.")
        return dict(value)
    if not _is_number(value):
        raise BadOption(
            f"value={value!r} is not a number or a mapping from fields to numbers. If you are passing pad to a loader, "
            "write pad(), with parentheses."
        )
    return value


def _check_fields(chosen: object, values: object) -> tuple[Field, ...] | None:
    if chosen is None:
        return tuple(values) if isinstance(values, dict) else None
    if isinstance(chosen, (str, bytes)) or not isinstance(chosen, Collection):
        raise BadOption(f"fields={chosen!r} is not a list of fields; for a single one write fields=[{chosen!r}].")
    if isinstance(values, dict):
        for name in chosen:
            if name not in values:
                raise BadOption(
                    f"Field {name!r} has no padding value: value= has the fields "
                    f"{', '.join(map(repr, values)) or 'none'}. Add it there."
                )
    return tuple(chosen)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating, np.bool_))


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _dimensions(value: object) -> int:
    """Return the number of axes of an array or of nested lists of numbers; 0 for anything else."""
    if is_array(value):
        return value.ndim
    depth = 0
    while isinstance(value, list):
        depth += 1
        if not value:
            return depth
        value = value[0]
    return depth if _is_number(value) else 0


def _inside(name: Field) -> str:
    return "" if name is None else fields.inside((name,))
