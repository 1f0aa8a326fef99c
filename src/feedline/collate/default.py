"""The default collate function: stacks arrays, makes arrays of numbers, keeps the structure of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.deferred import DeferredField
from feedline.abc.framework import Framework
from feedline.collate import fields
from feedline.collate.arrays import arrays_named, framework_of, stack
from feedline.collate.binding import no_samples
from feedline.collate.fields import Path
from feedline.errors import CollateError
from feedline.system.optional import require
from feedline.types import CollateFunction


class Default:
    """The type of `feedline.collate.default`."""

    is_default = True
    """Lets a framework use its own shortcuts: a vectorised gather, or a faster function with the same results."""

    def bound_to(self, framework: Framework | str) -> CollateFunction:
        """Return the default collate function of one framework: the loader's, or "numpy" or "torch"."""
        name = framework if isinstance(framework, str) else framework.name
        if arrays_named(name).name == "numpy":
            return collate_numpy
        torch_data = require("torch.utils.data", extra="torch", purpose="Collating into torch tensors")
        collate: CollateFunction = torch_data.default_collate
        return collate

    def __call__(self, samples: Sequence[object]) -> Any:
        return self.bound_to(framework_of(samples))(samples)

    def __reduce__(self) -> str:
        return "default"

    def __repr__(self) -> str:
        return "feedline.collate.default"


default = Default()
"""Stack the samples of a batch field by field.

In `feedline.DataLoader` this is torch's `default_collate`. In `feedline.Loader`, or if you call it yourself with
samples that are not tensors:

- arrays of one shape are stacked; numbers become an array; strings and bytes become a list;
- dicts, lists, tuples, named tuples and dataclasses keep their structure, with a batch in place of each value.

Example:
    >>> import numpy as np
    >>> from feedline.collate import default
    >>> default([{"point": np.array([0, 1]), "name": "a"}, {"point": np.array([2, 3]), "name": "b"}])
    {'point': array([[0, 1],
           [2, 3]]), 'name': ['a', 'b']}
"""


def collate_numpy(samples: Sequence[object]) -> object:
    """Make a batch of NumPy arrays; see `default`.

    Raises:
        CollateError: samples differ in shape or fields, or contain values that cannot be stacked.
        EmptyBatch: there are no samples.
    """
    if len(samples) == 0:
        raise no_samples()
    return _collate(samples, ())


def _collate(values: Sequence[object], path: Path) -> object:
    first = values[0]
    if isinstance(first, np.ndarray):
        return stack(values, path)
    if isinstance(first, (str, bytes)):
        return list(values)
    if isinstance(first, DeferredField):
        return type(first).collate_numpy(values, fields.inside(path))
    if isinstance(first, (int, float, complex, np.generic)):
        return _collate_numbers(values, path)
    names = fields.shared_names(values, path)
    if names is not None:
        return fields.build(first, {name: _collate(fields.column(values, name, path), (*path, name)) for name in names})
    if hasattr(first, "__array__"):  # a torch tensor, an image
        return stack(values, path)
    raise _cannot_stack(values, 0, path)


_NUMERIC = "biufcmMV"


def _collate_numbers(values: Sequence[object], path: Path) -> NDArray[np.generic]:
    try:
        numbers = np.array(values)
    except ValueError:  # some are sequences
        numbers = None
    if numbers is not None and numbers.ndim == 1 and numbers.dtype.kind in _NUMERIC:
        rounded = numbers.dtype.kind == "f" and all(isinstance(value, int) for value in values)
        if not rounded:  # NumPy converts integers without a common type to floats
            return numbers
    for position, value in enumerate(values):
        if not isinstance(value, (int, float, complex, np.generic)):
            raise _cannot_stack(values, position, path)
    raise CollateError(
        f"The numbers{fields.inside(path)} do not fit into one 64-bit integer type: {list(values)[:4]}... Return them "
        "as strings or floats."
    )


def _cannot_stack(values: Sequence[object], position: int, path: Path) -> CollateError:
    value = values[position]
    what, advice = f"a {type(value).__name__}", "Return arrays, numbers or strings, or use your own collate function."
    if value is None:
        what, advice = "None", fields.instead_of_none(path)
    return CollateError(
        f"Sample {position} of the batch has {what}{fields.inside(path)}, which cannot become part of a batch of "
        f"arrays (sample 0 has a {type(values[0]).__name__}). {advice}",
        position,
    )
