"""Which rows a filter leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from feedline._optional import require
from feedline.datasets.parquet.layout import Group
from feedline.datasets.parquet.values import whole
from feedline.datasets.paths import File
from feedline.errors import BadOption
from feedline.failures import words

# Any, throughout: pyarrow has no types to check against.


def condition_of(filters: Any) -> Any:
    """Return filters as an expression of pyarrow; None if there are none."""
    if filters is None:
        return None
    pq = require("pyarrow.parquet", extra="parquet", purpose="Filters")
    try:
        return pq.filters_to_expression(filters)
    except (ValueError, TypeError, IndexError) as exc:
        raise BadOption(
            f"filters={filters!r} is neither an expression of pyarrow, such as pyarrow.compute.field('x') > 3, nor a "
            f"list of conditions, such as [('x', '>', 3)]: {words(exc)}."
        ) from exc


def checked_condition(act: Callable[[], Any], filters: Any, file: File, names: list[str]) -> Any:
    """Do something with a filter; say so if the filter is what is wrong.

    Raises:
        BadOption: the filter names a column that is not there, or compares what cannot be compared.
    """
    pa = require("pyarrow", extra="parquet", purpose="Filters")
    try:
        return act()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError, TypeError) as exc:
        why = words(exc).splitlines()[0].rstrip(".")
        if "FieldRef" in why or "no kernel" in why or isinstance(exc, (TypeError, pa.ArrowTypeError)):
            raise BadOption(
                f"filters={filters!s} cannot be applied to {file.path!r}, whose columns are {names}: {why}."
            ) from exc
        raise


def mask_of(table: Any, condition: Any) -> Any:
    """Return for each row of a table whether a condition holds: an array of pyarrow."""
    ds = require("pyarrow.dataset", extra="parquet", purpose="Filters")
    return ds.dataset(table).scanner(columns={"kept": condition}, use_threads=False).to_table().column("kept")


def kept_groups(masks: list[tuple[int, Any]], number: int) -> list[Group]:
    """Return row groups with the rows for which a filter holds; those without any are left out.

    Args:
        masks: number of a row group, and whether the filter holds for each row (an array of pyarrow).
        number: that of the file.
    """
    groups = []
    for group, mask in masks:
        kept = whole(mask).fill_null(False).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(kept).astype(np.uint32)
        if len(rows):
            groups.append(Group(number, group, len(rows), rows))
    return groups
