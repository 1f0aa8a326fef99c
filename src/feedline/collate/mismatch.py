"""Find the sample of a batch that does not fit the others, for messages after a collate function has failed."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np

from feedline.collate import fields
from feedline.collate.arrays import shapes_differ
from feedline.collate.fields import Path
from feedline.errors import CollateError

_DATES = (np.datetime64, np.timedelta64, datetime.date, datetime.time, datetime.timedelta)


def date_in(value: object, path: Path = ()) -> Path | None:
    """Return the path to the first date or time in a sample; None if there is none.

    Example:
        >>> date_in({"x": 1, "at": {"day": datetime.date(2020, 1, 1)}})
        ('at', 'day')
    """
    if isinstance(value, _DATES):
        return path
    names = fields.names_of(value)
    found = (date_in(fields.column([value], name, path)[0], (*path, name)) for name in names or ())
    return next((one for one in found if one is not None), None)


def mismatch_of(values: Sequence[object], path: Path = ()) -> tuple[int, str] | None:
    """Return the position of a sample that cannot be stacked with the first, and a message; None if all can be stacked.

    Args:
        values: one value for each sample of the batch.
        path: the field they come from.

    Example:
        >>> mismatch_of([{"x": 1}, None])
        (1, 'Sample 1 of the batch is None. To leave such samples out, use feedline.collate.drop_none().')
    """
    for place, value in enumerate(values):
        if value is None:
            what = f"Sample {place} of the batch {'has' if path else 'is'} None{fields.inside(path)}."
            return place, f"{what} {fields.instead_of_none(path)}"
    first = values[0]
    shape = None if getattr(first, "is_nested", False) else getattr(first, "shape", None)  # these have none
    if shape is not None:
        for place, value in enumerate(values):
            other = getattr(value, "shape", shape)
            if tuple(other) != tuple(shape):
                return place, str(shapes_differ(shape, other, place, path))
        return None
    names = fields.names_of(first)
    if names is None:
        return None
    try:
        if isinstance(first, (tuple, list)):
            fields.shared_names(values, path)
        columns = {name: fields.column(values, name, path) for name in names}
    except CollateError as exc:
        odd = (place for place, value in enumerate(values) if list(fields.names_of(value) or ()) != list(names))
        return next(odd, 0), str(exc)
    found = (mismatch_of(column, (*path, name)) for name, column in columns.items())
    return next((mismatch for mismatch in found if mismatch is not None), None)
