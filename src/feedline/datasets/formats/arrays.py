"""Arrays as a dataset."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from feedline.abc.source import Columnar
from feedline.datasets.formats.array_file import ArrayFile, RowCheck, find_folder, find_mapped, find_npy, read_npz
from feedline.datasets.framework.form import Fields, Form, check_fields, names_in
from feedline.datasets.framework.paths import checked_path
from feedline.datasets.framework.source import checked_transform
from feedline.errors import BadOption, SourceError
from feedline.types import is_array


class ArrayDataset(Columnar):
    """A dataset whose samples are rows of arrays, in memory or in files.

    feedline's loader makes a batch in one vectorised step if you use the default collate function. Arrays are not
    copied; worker processes share them. Each process maps files into memory when it first reads them: only the path is
    pickled. Arrays that NumPy mapped (`numpy.load(..., mmap_mode="r")`) are also pickled as paths.

    Args:
        arrays: a NumPy array or torch tensor, a tuple of these, or a dict of these. A sample has the same form. You
            can give the path of a .npy file in place of an array. The path of a .npz file or of a folder of .npy
            files gives dicts with all of its arrays. Arrays of a .npz file are read into memory.
        fields: which of several named arrays to use, and in what form: see `HDF5Dataset`. All by default.
        transform: applied to each sample; batches are then made sample by sample.

    Raises:
        BadOption: an argument is not an array, the arrays differ in length, or a file's arrays cannot be samples.
        CorruptSource: a file is incomplete.
        SourceError: a file does not exist.

    Example:
        >>> import numpy as np
        >>> from feedline.datasets import ArrayDataset
        >>> dataset = ArrayDataset({"x": np.zeros((100, 3), np.float32), "y": np.arange(100)})
        >>> dataset
        ArrayDataset(100 samples of {'x': float32[3], 'y': int64[]})
        >>> int(dataset[7]["y"])
        7
    """

    # Any, in this file: arrays and tensors have no common type.
    def __init__(
        self, arrays: object, fields: Fields = None, *, transform: Callable[[Any], object] | None = None
    ) -> None:
        table = _found(arrays, fields)
        if isinstance(table, (tuple, dict)) and not table:
            raise BadOption("An ArrayDataset needs at least one array, but was given an empty container.")
        if isinstance(table, dict):
            self._shape = Form.of(fields, table, str(arrays) if _is_path(arrays) else "the dict")
            self._arrays = [table[name] for name in self._shape.names]
            names = [f"array {name!r}" for name in self._shape.names]
        else:
            if fields is not None:
                raise BadOption(
                    f"fields={fields!r} selects arrays by name, but these arrays have no names. Leave it out."
                )
            self._arrays = list(table) if isinstance(table, tuple) else [table]
            names = [f"array {number}" for number in range(len(table))] if isinstance(table, tuple) else ["the array"]
            self._shape = Form(tuple(names), None, is_one=not isinstance(table, tuple))
        self._length = _check(names, self._arrays)
        self._opened: list[Any] | None = None
        self._checks: list[RowCheck] = []
        """Checksum checks, one for each open file that has checksums."""
        self.transform = checked_transform(transform)

    def _mapped(self) -> list[object]:
        if self._opened is None:
            opened = [one.mapped() if isinstance(one, ArrayFile) else one for one in self._arrays]
            checks = [
                one.row_check(array)
                for one, array in zip(self._arrays, opened, strict=True)
                if isinstance(one, ArrayFile)
            ]
            self._checks = [check for check in checks if check is not None]
            self._opened = opened
        return self._opened

    @property
    def arrays(self) -> Any:
        """The arrays, in the form of a sample. Maps the files if they are not mapped yet.

        Reading these arrays does not compare checksums; reading samples does.
        """
        return self._shape.build(self._mapped())

    def close(self) -> None:
        """Unmap files. Reading a sample maps them again."""
        self._opened, self._checks = None, []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: object) -> Any:
        arrays = self._mapped()
        if not all(check.is_complete for check in self._checks):
            self._check_rows(_rows_of(index, self._length))
        sample = self._shape.build([_row(array, index) for array in arrays])
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Iterable[object]) -> list[Any]:
        """Return the samples at several indices; torch's loader requests batches this way too."""
        return [self[index] for index in indices]

    def _check_rows(self, rows: NDArray[np.int64]) -> None:
        for check in self._checks:
            check(rows)

    def row_check(self) -> Callable[[NDArray[np.int64]], None] | None:
        self._mapped()
        return self._check_rows if self._checks else None

    def columns(self) -> Any:
        return None if self.transform is not None or self._has_own_samples else self.arrays

    @property
    def _has_own_samples(self) -> bool:
        """True if a user's subclass defines its own samples."""
        kind = type(self)
        return kind.__getitem__ is not ArrayDataset.__getitem__ or kind.__getitems__ is not ArrayDataset.__getitems__

    @property
    def hands_on_images(self) -> bool:
        """True if images keep the form that feedline's transform returned: see `feedline.abc.deferred`."""
        return getattr(self.transform, "defers", False) and not self._has_own_samples

    def __getstate__(self) -> dict[str, object]:
        # An array in a file is pickled as its location.
        arrays = [find_mapped(one) or one for one in self._arrays]
        return {**self.__dict__, "_arrays": arrays, "_opened": None, "_checks": []}

    def __repr__(self) -> str:
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        form = self._shape.describe([_form(array) for array in self._arrays])
        return f"{type(self).__name__}({self._length} samples of {form}{transform})"


def _rows_of(index: Any, length: int) -> NDArray[np.int64]:
    """Return the rows that an index reads, in any order; negative ones count from the end.

    Returns no rows for an invalid index, which NumPy refuses.
    """
    row = index[0] if isinstance(index, tuple) and index else index
    if isinstance(row, slice):
        return np.arange(*row.indices(length))
    if not isinstance(row, bool):
        try:
            return np.array([operator.index(row)])
        except TypeError:
            pass  # not a single number
    if row is None or row is ... or isinstance(row, (bool, np.bool_)) or (isinstance(row, tuple) and not row):
        return np.arange(length)
    rows = np.asarray(row)
    if rows.dtype == np.bool_:
        return np.unique(rows.nonzero()[0])
    return rows.reshape(-1).astype(np.int64) if rows.dtype.kind in "iu" else np.empty(0, np.int64)


def _form(array: Any) -> str:
    dtype = str(array.dtype).removeprefix("torch.")
    return f"{dtype}[{', '.join(map(str, array.shape[1:]))}]"


def _row(array: Any, index: object) -> object:
    """Return a row; copy it if the array is mapped, so that it is writable and outlives the file."""
    row = array[index]
    if isinstance(row, np.ndarray) and (not row.flags.writeable or isinstance(row, np.memmap)):
        return np.array(row)
    return row.item() if isinstance(row, (np.str_, np.bytes_)) else row  # plain strings, as in every other source


def _found(given: object, fields: Fields) -> object:
    """Return the table that the user means, with files in place of paths; None for files of unselected fields."""
    check_fields(fields)
    if _is_path(given):
        path = os.path.abspath(os.path.expanduser(checked_path(given)))
        wanted = names_in(fields)
        if os.path.isdir(path):
            return find_folder(path, wanted)
        return read_npz(path, wanted) if path.endswith(".npz") else _npy(path)
    if isinstance(given, dict):
        return {name: _one(array) for name, array in given.items()}
    return tuple(map(_one, given)) if isinstance(given, tuple) else given


def _one(given: object) -> object:
    return _npy(os.path.abspath(os.path.expanduser(checked_path(given)))) if _is_path(given) else given


def _is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)


def _npy(path: str) -> ArrayFile:
    if path.endswith(".npz") or os.path.isdir(path):
        raise BadOption(
            f"{path} contains several arrays, but one array is needed here. Pass it alone, and select with fields=."
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


def _check(names: list[str], arrays: list[Any]) -> int:
    """Return the length that all arrays share."""
    for name, array in zip(names, arrays, strict=True):
        if not is_array(array) and not isinstance(array, ArrayFile):
            raise BadOption(
                f"An ArrayDataset takes NumPy arrays or torch tensors, but {name} is a {type(array).__name__}. "
                "Pass one array, a tuple of arrays or a dict of arrays; numpy.asarray converts a list."
            )
        if len(array.shape) == 0:
            raise BadOption(f"{name.capitalize()} has no axis to take samples from: it holds a single number.")
    length = int(arrays[0].shape[0])
    for name, array in zip(names, arrays, strict=True):
        if array.shape[0] != length:
            raise BadOption(
                f"The arrays of a dataset need the same length, but {names[0]} has {length} and {name} has "
                f"{array.shape[0]} samples (shapes {tuple(arrays[0].shape)} and {tuple(array.shape)}). The first "
                "axis counts the samples: cut or transpose the arrays so that their lengths agree."
            )
    return length
