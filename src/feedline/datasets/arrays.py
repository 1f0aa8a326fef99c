"""Arrays as a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from feedline._optional import is_tensor
from feedline.abc.columnar import Columnar
from feedline.datasets.array_file import ArrayFile, find_folder, find_mapped, find_npy, find_npz
from feedline.datasets.form import Fields, Form, names_in
from feedline.datasets.paths import checked_path
from feedline.datasets.source import checked_transform
from feedline.errors import BadOption, SourceError


class ArrayDataset(Columnar):
    """A dataset whose samples are rows of arrays, in memory or in files.

    With the default collate function a loader of feedline makes a batch of it in one vectorised step. Arrays are not
    copied; worker processes share them. Files are mapped into memory by every process that reads them, when it first
    does: pickled, the dataset is a path. Arrays that NumPy mapped (`numpy.load(..., mmap_mode="r")`) travel so, too.

    Args:
        arrays: a NumPy array or torch tensor, a tuple of these, or a dict of these. A sample has the same form. In
            place of an array, the path of a .npy file. Or the path of a .npz file or of a folder of .npy files, for
            dicts with all arrays that are in it.
        fields: which arrays, if there are several with names, and in what form: see `HDF5Dataset`. All by default.
        transform: applied to each sample; batches are then made sample by sample.

    Raises:
        BadOption: something is no array, the arrays differ in length, or a file holds what cannot be mapped.
        CorruptSource: a file is not whole.
        SourceError: a file is not there.

    Example:
        >>> import numpy as np
        >>> from feedline.datasets import ArrayDataset
        >>> dataset = ArrayDataset({"x": np.zeros((100, 3), np.float32), "y": np.arange(100)})
        >>> dataset
        ArrayDataset(100 samples of {'x': float32[3], 'y': int64[]})
        >>> int(dataset[7]["y"])
        7
    """

    # Any, in this file: arrays and tensors have no common type, and a table is one, a tuple or a dict of them.
    def __init__(self, arrays: Any, fields: Fields = None, *, transform: Callable[[Any], Any] | None = None) -> None:
        table = _found(arrays, fields)
        if fields is not None:
            if not isinstance(table, dict):
                raise BadOption(f"fields={fields!r} chooses among arrays with names, but these have none.")
            form = Form.of(fields, table, str(arrays) if _is_path(arrays) else "the dict")
            table = form.build([table[name] for name in form.names])
        self._length = _check(table)
        self._table = table
        self._opened: Any = None
        self.transform = checked_transform(transform)

    @property
    def arrays(self) -> Any:
        """The arrays, in the form of a sample. Files are mapped now, unless they are already."""
        if self._opened is None:
            self._opened = _each(self._table, lambda one: one.mapped() if isinstance(one, ArrayFile) else one)
        return self._opened

    def close(self) -> None:
        """Let go of mapped files. They are mapped again when a sample is read."""
        self._opened = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        arrays = self.arrays
        if isinstance(arrays, tuple):
            sample: Any = tuple([_row(array, index) for array in arrays])
        elif isinstance(arrays, dict):
            sample = {name: _row(array, index) for name, array in arrays.items()}
        else:
            sample = _row(arrays, index)
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return the samples of several indices; torch's loader asks in this way as well."""
        return [self[index] for index in indices]

    def columns(self) -> Any:
        return None if self.transform is not None or self._has_own_samples else self.arrays

    @property
    def _has_own_samples(self) -> bool:
        """True if a user's subclass has its own idea of a sample."""
        kind = type(self)
        return kind.__getitem__ is not ArrayDataset.__getitem__ or kind.__getitems__ is not ArrayDataset.__getitems__

    @property
    def hands_on_images(self) -> bool:
        """True if images come out as a transform of feedline's returned them: see `feedline.images.placement`."""
        return getattr(self.transform, "defers", False) and not self._has_own_samples

    def __getstate__(self) -> dict[str, Any]:
        # What is in a file travels as the place where it is.
        return {**self.__dict__, "_table": _each(self._table, lambda one: find_mapped(one) or one), "_opened": None}

    def __repr__(self) -> str:
        table = self._table
        keys, is_one = tuple(table) if isinstance(table, dict) else None, not isinstance(table, (dict, tuple))
        arrays = table.values() if isinstance(table, dict) else [table] if is_one else table
        form = Form((), keys, is_one).describe([_form(array) for array in arrays])
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"{type(self).__name__}({self._length} samples of {form}{transform})"


def _form(array: Any) -> str:
    dtype = str(array.dtype).removeprefix("torch.")
    return f"{dtype}[{', '.join(map(str, array.shape[1:]))}]"


def _row(array: Any, index: Any) -> Any:
    """Return a row; of a mapped array a copy, which may be written to and outlives the file."""
    row = array[index]
    if isinstance(row, np.ndarray) and (not row.flags.writeable or isinstance(row, np.memmap)):
        return np.array(row)
    return row.item() if isinstance(row, (np.str_, np.bytes_)) else row  # strings as every other source has them


def _each(table: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to every array of a table."""
    if isinstance(table, tuple):
        return tuple(map(function, table))
    if isinstance(table, dict):
        return {name: function(array) for name, array in table.items()}
    return function(table)


def _found(given: Any, fields: Fields) -> Any:
    """Return the table that a user means, with files in place of paths; None for files of fields that are not meant."""
    if _is_path(given):
        path = os.path.abspath(os.path.expanduser(checked_path(given)))
        wanted = names_in(fields)
        if os.path.isdir(path):
            return find_folder(path, wanted)
        return find_npz(path, wanted) if path.endswith(".npz") else _npy(path)
    if isinstance(given, (tuple, dict)):
        return _each(
            given, lambda one: _npy(os.path.abspath(os.path.expanduser(checked_path(one)))) if _is_path(one) else one
        )
    return given


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)


def _npy(path: str) -> ArrayFile:
    if path.endswith(".npz") or os.path.isdir(path):
        raise BadOption(
            f"{path} holds several arrays, and stands where one is wanted. Give it alone, and choose with fields=."
        )
    if not path.endswith(".npy"):
        if not os.path.exists(path):
            raise SourceError(
                f"There is nothing at {path}. An ArrayDataset is made of a .npy or .npz file, or of a folder of .npy "
                "files."
            )
        raise BadOption(
            f"{path} is neither a .npy or .npz file nor a folder of .npy files. Files of bare numbers are mapped by "
            "numpy.memmap."
        )
    return find_npy(path)


def is_array(value: Any) -> bool:
    """True for NumPy arrays and torch tensors."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_arrays(value: Any) -> bool:
    """True for what an `ArrayDataset` can be made of, whatever its lengths: an array, or a tuple or dict of arrays."""
    if isinstance(value, (tuple, dict)):
        parts = value if isinstance(value, tuple) else value.values()
        return len(value) > 0 and all(map(is_array, parts))
    return is_array(value)


def _check(table: Any) -> int:
    """Return the length that all arrays have."""
    if isinstance(table, dict):
        named = [(f"array {name!r}", array) for name, array in table.items()]
    elif isinstance(table, tuple):
        named = [(f"array {number}", array) for number, array in enumerate(table)]
    else:
        named = [("the array", table)]
    if not named:
        raise BadOption("An ArrayDataset needs at least one array, but was given an empty container.")
    for name, array in named:
        if not is_array(array) and not isinstance(array, ArrayFile):
            raise BadOption(
                f"An ArrayDataset is made of NumPy arrays or torch tensors, but {name} is a {type(array).__name__}. "
                "Give one array, a tuple of arrays or a dict of arrays; numpy.asarray makes one of a list."
            )
        if len(array.shape) == 0:
            raise BadOption(f"{name.capitalize()} has no axis to take samples from: it holds a single number.")
    first, length = named[0][0], int(named[0][1].shape[0])
    for name, array in named:
        if array.shape[0] != length:
            raise BadOption(
                f"The arrays of a dataset need the same length, but {first} has {length} and {name} has "
                f"{array.shape[0]} samples (shapes {tuple(named[0][1].shape)} and {tuple(array.shape)}). The first "
                "axis counts the samples: cut or transpose the arrays so that it agrees."
            )
    return length
