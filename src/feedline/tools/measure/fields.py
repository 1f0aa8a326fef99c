"""The fields of samples and batches: their names, sizes, lengths and labels."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.system.optional import is_tensor

_DEPTH = 16
LONG_LIST = 32
"""A list with at least this many items counts as one value, such as a tokenised text. A guess."""
_LABELLED = 64
_MOST_CLASSES = 0.25
"""Integers of at least this many samples are class labels if at most this share of them differ. A guess."""


# Any, throughout: samples and their fields are any objects.
def leaves(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each field of a sample or batch, nested fields included."""
    if depth == _DEPTH:  # a sample may even hold itself
        yield name, value
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield from leaves(held, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, (list, tuple)) and len(value) < LONG_LIST:
        for place, held in enumerate(value):
            yield from leaves(held, f"{name or 'sample'}[{place}]", depth + 1)
    else:
        yield name or "sample", value


def field_in(whole: str, name: str) -> str:
    """Return the expression for a field of a sample or batch, from the name that `leaves` gives it.

    Example:
        >>> field_in("batch", "sample"), field_in("batch", "sample[0]"), field_in("batch", "boxes[1].id")
        ('batch', 'batch[0]', 'batch["boxes"][1]["id"]')
    """
    steps = re.findall(r"\[\d+\]|[^.\[]+", name.removeprefix("sample"))
    return whole + "".join(step if step.startswith("[") else f'["{step}"]' for step in steps)


def as_array(value: Any) -> NDArray[np.generic] | None:
    """Return an array or CPU tensor as an array, without a copy; None for anything else."""
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value
    if is_tensor(value) and value.is_cpu and not value.is_sparse:
        try:
            array: NDArray[np.generic] = value.detach().numpy()
            return array
        except (RuntimeError, TypeError):  # a type that NumPy does not have
            return None
    return None


def size_of(sample: object) -> int:
    """Return the size of a sample in bytes: exact for arrays, rough for other objects."""
    count = 0
    for _, value in leaves(sample):
        array = as_array(value)
        if array is not None:
            count += array.nbytes
        elif isinstance(value, (str, bytes, bytearray)):
            count += len(value)
        else:
            count += 8 * len(value) if isinstance(value, (list, tuple, set, frozenset)) else 8
    return count


def digest_of(sample: object) -> dict[str, int]:
    """Return a checksum of each field that is an array."""
    arrays = ((name, as_array(value)) for name, value in leaves(sample))
    return {name: zlib.adler32(array.tobytes()) for name, array in arrays if array is not None}


def image_size(sample: object) -> tuple[int, int] | None:
    """Return the height and width of the largest image in a sample: of its two- and three-dimensional values."""
    sizes = []
    for _, value in leaves(sample):
        shape = getattr(value, "shape", None)
        if shape is None and hasattr(value, "getbands"):  # an image of Pillow
            shape = value.size[::-1]
        if isinstance(shape, tuple) and len(shape) in (2, 3):
            sides = list(map(int, shape))
            if len(sides) == 3:
                sides.pop(0 if sides[0] <= sides[-1] else -1)
            sizes.append((sides[0], sides[1]))
    return max(sizes, key=lambda sides: sides[0] * sides[1], default=None)


def lengths_of(sample: object) -> dict[str, tuple[int, int]]:
    """Return the length and size of each field that may be padded."""
    found = {}
    for name, value in leaves(sample):
        array = as_array(value)
        if array is not None and 1 <= array.ndim <= 2:  # with more axes: images, which are cropped
            found[name] = (array.shape[0], array.size)
        elif isinstance(value, (list, tuple)):
            found[name] = (len(value), len(value))
    return found


def varying(lengths: Mapping[str, list[tuple[int, int]]]) -> tuple[tuple[int, ...], str]:
    """Return the lengths and name of the largest field whose samples differ in length."""
    differing = [(name, found) for name, found in lengths.items() if len({length for length, _ in found}) > 1]
    name, largest = max(differing, key=lambda pair: sum(size for _, size in pair[1]), default=("sample", []))
    return tuple(length for length, _ in largest), name


def classes_of(sample: object) -> dict[str, int]:
    """Return the fields of a sample that are one whole number."""
    found = {}
    for name, value in leaves(sample):
        array = np.asarray(value) if isinstance(value, (int, np.integer)) else as_array(value)
        if array is not None and array.size == 1 and array.ndim <= 1 and array.dtype.kind in "iu":
            found[name] = int(array.reshape(-1)[0])
    return found


def sorted_labels(labels: Mapping[str, Mapping[int, int]]) -> str:
    """Return the field of class labels in which equal ones follow each other; empty if there is none.

    Args:
        labels: the whole numbers in some samples, by field and index.

    Example:
        >>> sorted_labels({"y": {index: index // 50 for index in range(100)}})
        'y'
        >>> sorted_labels({"y": {index: index % 2 for index in range(100)}})
        ''
    """
    for name, values in labels.items():
        ordered = [values[index] for index in sorted(values)]
        classes, runs = len(set(ordered)), len(list(itertools.groupby(ordered)))
        if len(ordered) >= _LABELLED and 1 < classes <= _MOST_CLASSES * len(ordered) and runs == classes:
            return name
    return ""
