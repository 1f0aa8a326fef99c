"""Labels: which class each sample belongs to.

Users keep labels in lists, arrays and tensors, of integers or strings. This module converts them to small integers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.system.optional import is_tensor


def classes_of(labels: object, name: str = "labels") -> tuple[NDArray[np.int64], NDArray[np.generic]]:
    """Return the class of each sample as a number from 0, and the label of each class, in sorted order.

    Args:
        labels: a sequence, array or tensor with one label per sample: integers, strings, or anything that sorts.
        name: the name of the argument.

    Raises:
        BadOption: they are not labels, or some are missing (NaN, None).

    Example:
        >>> numbers, names = classes_of(["dog", "cat", "dog"])
        >>> numbers.tolist(), names.tolist()
        ([1, 0, 1], ['cat', 'dog'])
    """
    array = _array_of(labels, name)
    missing = np.flatnonzero(array != array)  # NaN, also among objects
    if len(missing):
        raise BadOption(
            f"{name}[{missing[0]}] is {array[missing[0]]!r}: {len(missing)} of {len(array)} samples have no label. "
            "Leave these samples out, or give them a label of their own."
        )
    try:
        names, numbers = np.unique(array, return_inverse=True)
    except TypeError as exc:
        kinds = ", ".join(sorted({type(label).__name__ for label in array.tolist()}))
        raise BadOption(f"{name} holds values that cannot be sorted ({kinds}). Use integers or strings.") from exc
    return numbers.astype(np.int64, copy=False), names


def refuse_dataset(name: str, value: Any, line: str) -> None:
    """Reject a dataset given where one value per sample is expected, before reading all of its samples.

    The message names the argument, and the line of code that gets such values from an unknown dataset.
    """
    kind = type(value)
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(value, torch_data.Dataset):
        is_array = hasattr(kind, "__array__") or isinstance(value, (str, bytes, Mapping))
        if is_array or not hasattr(kind, "__getitem__") or not hasattr(kind, "__len__") or len(value) == 0:
            return
        first = value[0]
        if not isinstance(first, (tuple, Mapping)) and (isinstance(value, list) or np.ndim(first) == 0):
            return
    names = (name, "targets") if name == "labels" else (name,)  # attributes that conventionally hold such values
    own = next((own for own in names if hasattr(value, own)), None)
    raise BadOption(
        f"{name} is a {kind.__name__}, which is a dataset. Give a list, array or tensor with one value for each "
        f"sample, in the order of the dataset, such as {line if own is None else f'dataset.{own}'}."
    )


def _array_of(labels: Any, name: str) -> NDArray[np.generic]:
    refuse_dataset(name, labels, "[label for _, label in dataset]")
    if is_tensor(labels):
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__") or not hasattr(labels, "__getitem__"):
        raise BadOption(f"{name}={labels!r} is not a sequence, array or tensor with one label per sample.")
    try:
        array = np.asarray(labels)
    except ValueError as exc:  # lists of lists of different lengths
        raise BadOption(f"{name} is not one label per sample: {str(exc).rstrip('.')}.") from exc
    if array.ndim != 1:
        raise BadOption(
            f"{name} has the shape {array.shape}, but one label per sample is needed. "
            "One-hot labels become numbers with argmax(1)."
        )
    if array.dtype.kind in "US" and not isinstance(labels, np.ndarray):
        kinds = {type(label) for label in labels}
        if len(kinds) > 1:  # NumPy converted numbers to strings: 1 and "1" would be one class
            array = np.asarray(labels, object)
    return array
