"""Arrays as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from feedline._optional import is_tensor
from feedline.abc.columnar import Columnar
from feedline.errors import BadOption


class ArrayDataset(Columnar):
    """A dataset whose samples are rows of arrays.

    With the default collate function a loader of feedline makes a batch of it in one vectorised step. The arrays are
    not copied; worker processes share them. Memory-mapped arrays (`numpy.load(..., mmap_mode="r")`) are welcome.

    Args:
        arrays: a NumPy array or torch tensor, a tuple of these, or a dict of these. A sample has the same form.
        transform: applied to each sample; batches are then made sample by sample.

    Raises:
        BadOption: something is no array, or the arrays differ in length.

    Example:
        >>> import numpy as np
        >>> from feedline.datasets import ArrayDataset
        >>> dataset = ArrayDataset({"x": np.zeros((100, 3), np.float32), "y": np.arange(100)})
        >>> dataset
        ArrayDataset(100 samples of {'x': float32[3], 'y': int64[]})
        >>> int(dataset[7]["y"])
        7
    """

    def __init__(self, arrays: Any, *, transform: Callable[[Any], Any] | None = None) -> None:
        if transform is not None and not callable(transform):
            raise BadOption(f"transform={transform!r} is not a function that takes a sample and returns another.")
        self._length = _check(arrays)
        self.arrays = dict(arrays) if isinstance(arrays, dict) else arrays
        self.transform = transform

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        arrays = self.arrays
        if isinstance(arrays, tuple):
            sample: Any = tuple([array[index] for array in arrays])
        elif isinstance(arrays, dict):
            sample = {name: array[index] for name, array in arrays.items()}
        else:
            sample = arrays[index]
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return the samples of several indices; torch's loader asks in this way as well."""
        return [self[index] for index in indices]

    def columns(self) -> Any:
        kind = type(self)
        own_samples = (
            kind.__getitem__ is not ArrayDataset.__getitem__ or kind.__getitems__ is not ArrayDataset.__getitems__
        )
        return None if self.transform is not None or own_samples else self.arrays

    def __repr__(self) -> str:
        arrays = self.arrays
        if isinstance(arrays, tuple):
            form = f"({', '.join(map(_form, arrays))}{',' if len(arrays) == 1 else ''})"
        elif isinstance(arrays, dict):
            form = f"{{{', '.join(f'{name!r}: {_form(array)}' for name, array in arrays.items())}}}"
        else:
            form = _form(arrays)
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"{type(self).__name__}({self._length} samples of {form}{transform})"


def _form(array: Any) -> str:
    dtype = str(array.dtype).removeprefix("torch.")
    return f"{dtype}[{', '.join(map(str, array.shape[1:]))}]"


def is_array(value: Any) -> bool:
    """True for NumPy arrays and torch tensors."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_arrays(value: Any) -> bool:
    """True for what an `ArrayDataset` can be made of, whatever its lengths: an array, or a tuple or dict of arrays."""
    if isinstance(value, (tuple, dict)):
        parts = value if isinstance(value, tuple) else value.values()
        return len(value) > 0 and all(map(is_array, parts))
    return is_array(value)


def _check(arrays: Any) -> int:
    """Return the length that all arrays have."""
    if isinstance(arrays, dict):
        named = [(f"array {name!r}", array) for name, array in arrays.items()]
    elif isinstance(arrays, tuple):
        named = [(f"array {number}", array) for number, array in enumerate(arrays)]
    else:
        named = [("the array", arrays)]
    if not named:
        raise BadOption("An ArrayDataset needs at least one array, but was given an empty container.")
    for name, array in named:
        if not is_array(array):
            raise BadOption(
                f"An ArrayDataset is made of NumPy arrays or torch tensors, but {name} is a {type(array).__name__}. "
                "Give one array, a tuple of arrays or a dict of arrays; numpy.asarray makes one of a list."
            )
        if array.ndim == 0:
            raise BadOption(f"{name.capitalize()} has no axis to take samples from: it holds a single number.")
    first, length = named[0][0], len(named[0][1])
    for name, array in named:
        if len(array) != length:
            raise BadOption(
                f"The arrays of a dataset need the same length, but {first} has {length} and {name} has {len(array)} "
                f"samples (shapes {tuple(named[0][1].shape)} and {tuple(array.shape)}). The first axis counts the "
                "samples: cut or transpose the arrays so that it agrees."
            )
    return length
