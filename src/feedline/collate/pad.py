"""Pad sequences of different lengths to the longest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from feedline.collate import fields
from feedline.collate.arrays import Arrays
from feedline.collate.binding import Collate
from feedline.collate.default import default
from feedline.collate.fields import Field
from feedline.errors import BadOption, CollateError
from feedline.system.failures import words
from feedline.system.options import checked_count, checked_flag
from feedline.types import CollateFunction, is_array

Side = Literal["left", "right"]


def pad(
    value: float | Mapping[Any, float] = 0,
    *,
    fields: Collection[Field] | None = None,
    lengths: bool = True,
    multiple_of: int | None = None,
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
            each padded field; for a bare sequence the batch becomes (padded, lengths). False to add none.
        multiple_of: round the padded length up to a multiple of this; 8 suits tensor cores.
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
    return Pad(value, fields=fields, lengths=lengths, multiple_of=multiple_of, axis=axis, side=side, inner=inner)


class Pad(Collate):
    """The collate function that `pad` returns."""

    def __init__(
        self,
        value: float | Mapping[Any, float],
        *,
        fields: Collection[Field] | None,
        lengths: bool,
        multiple_of: int | None,
        axis: int,
        side: Side,
        inner: CollateFunction,
    ) -> None:
        super().__init__(inner)
        each = dict(value) if isinstance(value, Mapping) else None
        if not all(map(_is_number, [value] if each is None else each.values())):
            raise BadOption(f"value={value!r:.200} is not a number or a mapping from fields to numbers.")
        if fields is not None and (isinstance(fields, (str, bytes)) or not isinstance(fields, Collection)):
            raise BadOption(f"fields={fields!r} is not a list of fields; for a single one write fields=[{fields!r}].")
        for name in fields or ():
            if each is not None and name not in each:
                raise BadOption(f"Field {name!r} of fields= has no padding value in value={value!r:.200}.")
        checked_flag("lengths", lengths)
        if multiple_of is not None:
            checked_count("multiple_of", multiple_of)
        if not _is_int(axis):
            raise BadOption(f"axis={axis!r} is not the number of an axis.")
        if side not in ("left", "right"):
            raise BadOption(f"side={side!r} is not 'left' or 'right'.")
        self.value: float | dict[Field, float] = value if each is None else each  # type: ignore[assignment]  # checked
        chosen = each if fields is None else fields
        self.fields = None if chosen is None else tuple(chosen)
        self.lengths = lengths
        self.multiple_of = multiple_of or 1
        self.axis = int(axis)
        self.side = side

    def _collate(self, samples: Sequence[object], arrays: Arrays) -> object:
        if _dimensions(samples[0]):
            if self.fields is not None:
                raise CollateError(f"pad() is to pad the fields {self.fields}, but the samples are sequences.")
            padded, lengths = self._padded(samples, None, arrays)
            return (padded, lengths) if self.lengths else padded
        names = fields.shared_names(samples)
        if names is None:
            raise CollateError(
                f"Sample 0 of the batch is a {type(samples[0]).__name__}. pad() takes arrays, lists of numbers, and "
                "dicts or tuples of these."
            )
        chosen = self.fields
        if chosen is None:
            chosen = tuple(name for name in names if self._has_axis(fields.column(samples[:1], name)[0]))
        for name in chosen:
            if name not in names:
                raise CollateError(
                    f"The samples have no field {name!r}, only {', '.join(map(repr, names)) or 'none'}. Is the name "
                    "spelled as in the dataset?"
                )
        batch = self._others(samples, [name for name in names if name not in chosen])
        added: dict[Field, object] = {}
        for name in chosen:
            batch[name], length = self._padded(fields.column(samples, name), name, arrays)
            added[f"{name}_lengths" if isinstance(samples[0], Mapping) else len(names) + len(added)] = length
        batch = {name: batch[name] for name in (*names, *(name for name in batch if name not in names))}
        if not self.lengths:
            return fields.build(samples[0], batch)
        if not isinstance(samples[0], Mapping) and type(samples[0]) not in (tuple, list):
            raise CollateError(
                f"pad() cannot add lengths to a {type(samples[0]).__name__}, the type of the samples. Use "
                "lengths=False, or return dicts from the dataset."
            )
        taken = batch.keys() & added.keys()
        if taken:
            raise CollateError(
                f"pad() adds the lengths as {taken.pop()!r}, but the samples have a field of that name. Use "
                "pad(lengths=False) if the samples contain their lengths."
            )
        return fields.build(samples[0], {**batch, **added})

    def _has_axis(self, value: object) -> bool:
        dimensions = _dimensions(value)
        return -dimensions <= self.axis < dimensions

    def _padded(self, values: Sequence[object], name: Field, arrays: Arrays) -> tuple[object, object]:
        """Copy sequences into one array and pad them; returns it, and their lengths."""
        inside = "" if name is None else fields.inside((name,))
        sequences = self._checked(values, inside, arrays)
        axis = self.axis % sequences[0].ndim
        sizes = [sequence.shape[axis] for sequence in sequences]
        width = -(-max(sizes) // self.multiple_of) * self.multiple_of
        shape = list(sequences[0].shape)
        shape[axis] = width
        out = arrays.empty((len(sequences), *shape), sequences)
        value = self.value[name] if isinstance(self.value, dict) else self.value
        if not arrays.holds(out, value):
            raise CollateError(
                f"The padding value {value} does not fit into {out.dtype}, the type of the arrays{inside}. "
                "Choose another value, or convert the arrays in the dataset."
            )
        before = (slice(None),) * axis
        right = self.side == "right"
        for number, (sequence, size) in enumerate(zip(sequences, sizes, strict=True)):
            kept = slice(0, size) if right else slice(width - size, width)
            out[(number, *before, kept)] = sequence
            if size < width:
                rest = slice(size, width) if right else slice(0, width - size)
                out[(number, *before, rest)] = value
        return arrays.adopt(out), arrays.adopt(np.array(sizes, np.int64))

    def _checked(self, values: Sequence[object], inside: str, arrays: Arrays) -> list[Any]:
        """Return the sequences of a field as arrays that differ only in the length of the axis."""
        for position, value in enumerate(values):
            if not self._has_axis(value):
                shape = f" of shape {tuple(value.shape)}" if is_array(value) else ""
                what = "None" if value is None else f"a {type(value).__name__}{shape}"
                none = fields.instead_of_none((inside,) if inside else ()) if value is None else ""
                raise CollateError(
                    f"Sample {position} of the batch has {what}{inside}, which pad() cannot pad along axis "
                    f"{self.axis}. {none or 'Return arrays or lists of numbers that have it, or choose fields='}."
                )
        try:
            sequences = arrays.workable(values)
        except (TypeError, ValueError) as exc:  # lists that do not form an array
            raise CollateError(f"The sequences{inside} cannot be read as arrays of numbers: {words(exc)}.") from exc
        axis = self.axis % sequences[0].ndim
        others = [(*sequence.shape[:axis], *sequence.shape[axis + 1 :]) for sequence in sequences]
        for position, other in enumerate(others):
            if other != others[0]:
                raise CollateError(
                    f"Samples 0 and {position} of the batch have shapes {tuple(sequences[0].shape)} and "
                    f"{tuple(sequences[position].shape)}{inside}. pad() makes axis {self.axis} equal; all other axes "
                    "must be equal already. Choose another axis, or resize the arrays in the dataset."
                )
        return sequences

    def _others(self, samples: Sequence[object], names: Sequence[Field]) -> dict[Field, object]:
        """Collate the fields that are not padded."""
        if not names:
            return {}
        columns = [fields.column(samples, name) for name in names]
        rest = self._inner([dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)])
        if not isinstance(rest, Mapping) or any(name not in rest for name in names):
            raise CollateError(
                f"inner={self.inner!r} of pad() must return a dict with the fields {', '.join(map(repr, names))}, and "
                f"returned a {type(rest).__name__}."
            )
        return dict(rest)

    def __repr__(self) -> str:
        return (
            f"pad({self.value!r}, fields={self.fields!r}, lengths={self.lengths!r}, multiple_of={self.multiple_of}, "
            f"axis={self.axis}, side={self.side!r}, inner={self.inner!r})"
        )


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
