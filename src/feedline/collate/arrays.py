"""NumPy arrays and torch tensors for collate functions.

Collate functions work on NumPy arrays wherever possible, also for torch: a tensor and an array share their memory, and
NumPy copies small pieces several times faster. The same code processes tensors that NumPy cannot express (bfloat16, on
a device, with gradient).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.collate import fields
from feedline.collate.fields import Path
from feedline.errors import BadOption, CollateError
from feedline.system.failures import words
from feedline.system.optional import is_tensor, require


class Arrays:
    """The arrays of one framework; NumPy unless overridden. `Any`: an array of any library."""

    name = "numpy"

    def adopt(self, array: object) -> Any:
        """Return an array or tensor as an array of this framework, without a copy where possible."""
        return np.asarray(array)

    def workable(self, values: Sequence[object]) -> list[Any]:
        """Convert arrays, tensors or lists of numbers to arrays or tensors that `empty` and slicing support."""
        return [np.asarray(value) for value in values]

    def empty(self, shape: tuple[int, ...], like: Sequence[Any]) -> Any:
        """Create an array that can hold values of `like`, in the slot of the current task if there is one."""
        return memory.empty(shape, np.result_type(*dtypes_of(like)))

    def holds(self, array: Any, value: float) -> bool:
        """True if `array` can store `value` without changing it."""
        kind = array.dtype.kind
        if kind == "b":
            return value in (0, 1)
        if kind not in "iu":
            return True
        limits = np.iinfo(array.dtype)
        return value == value // 1 and limits.min <= value <= limits.max


class TorchArrays(Arrays):
    """Tensors of torch, through NumPy where possible."""

    name = "torch"

    def __init__(self) -> None:
        self._torch = require("torch", extra="torch", purpose="Collating into torch tensors")

    def __reduce__(self) -> tuple[object, ...]:
        return TorchArrays, ()

    def adopt(self, array: object) -> Any:
        if isinstance(array, self._torch.Tensor):
            return array
        if isinstance(array, np.ndarray) and array.dtype.kind not in "biufc":
            return array  # torch has no such type: strings, objects, dates
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            array = array.copy()  # torch warns about a read-only array, because its tensor would be writable
        tensor = self._torch.as_tensor(array)
        if isinstance(array, np.ndarray) and array.base is not None:  # in a slot: the storage must keep it alive
            tensor.untyped_storage()._feedline_memory = array
        return tensor

    def workable(self, values: Sequence[Any]) -> list[object]:
        kinds = (np.ndarray, self._torch.Tensor)
        arrays = [value if type(value) in kinds else self._read(value) for value in values]
        try:
            plain = [array if type(array) is np.ndarray else array.numpy() for array in arrays]
        except (TypeError, RuntimeError):  # a type that NumPy lacks; on a device, sparse, or with gradient
            plain = []
        if plain and len(dtypes_of(plain)) == 1:
            return plain
        return [self.adopt(array) for array in arrays]

    def _read(self, value: object) -> Any:
        if isinstance(value, list):
            array = np.asarray(value)
            if array.dtype in (np.int64, np.bool_):  # faster, and torch infers the same type
                return array
        return self._torch.as_tensor(value)

    def empty(self, shape: tuple[int, ...], like: Sequence[Any]) -> Any:
        kinds = dtypes_of(like)
        if isinstance(like[0], np.ndarray):
            return memory.empty(shape, kinds[0])
        dtype = kinds[0]
        for other in kinds:
            dtype = self._torch.promote_types(dtype, other)
        return self._torch.empty(shape, dtype=dtype, device=like[0].device)

    def holds(self, array: Any, value: float) -> bool:
        if isinstance(array, np.ndarray):
            return super().holds(array, value)
        if array.dtype.is_floating_point or array.dtype.is_complex:
            return True
        return bool(array.new_full((), value) == value)


def dtypes_of(arrays: Sequence[Any]) -> list[Any]:
    """Return the distinct types of arrays, ignoring empty arrays: an empty list became an array of floats."""
    kinds = dict.fromkeys(array.dtype for array in arrays if 0 not in array.shape)
    return list(kinds) or [arrays[0].dtype]


def arrays_named(name: str) -> Arrays:
    """Return the arrays of a framework by its name.

    Raises:
        BadOption: no framework has this name.
        MissingExtra: the framework is not installed.
    """
    if name == "numpy":
        return Arrays()
    if name == "torch":
        return TorchArrays()
    raise BadOption(f"{name!r} is not a framework that feedline.collate supports. Use 'numpy' or 'torch'.")


def framework_of(samples: Iterable[object]) -> str:
    """Return the framework for a batch of these samples: "torch" if the first one contains a tensor, else "numpy"."""

    def holds_tensor(value: object) -> bool:
        names = fields.names_of(value)
        parts = [] if names is None else [fields.column([value], name)[0] for name in names]
        return is_tensor(value) or any(map(holds_tensor, parts))

    first = next((sample for sample in samples if sample is not None), None)
    return "torch" if holds_tensor(first) else "numpy"


def stack(values: Sequence[object], path: Path = ()) -> NDArray[np.generic]:
    """Stack NumPy arrays of one shape, in the slot of the current task if there is one.

    Raises:
        CollateError: the shapes differ, or a value is not an array.
    """
    shape = tuple(getattr(values[0], "shape", ()))
    for position, value in enumerate(values):
        if tuple(getattr(value, "shape", shape)) != shape:
            raise shapes_differ(shape, value.shape, position, path)  # type: ignore[attr-defined]  # it has one
    arrays = [
        value if isinstance(value, np.ndarray) else _read(value, number, path) for number, value in enumerate(values)
    ]
    first = arrays[0]
    shape, dtype = first.shape, first.dtype
    for position, array in enumerate(arrays):
        if array.shape != shape:  # of a sample that became an array just now
            raise shapes_differ(shape, array.shape, position, path)
        if array.dtype != dtype:
            dtype = np.result_type(dtype, array.dtype)
    if isinstance(first, np.ma.MaskedArray):
        masked: NDArray[np.generic] = np.ma.stack(arrays)  # a slot would lose the mask
        return masked
    out = memory.empty((len(arrays), *shape), dtype)
    if not shape:
        return np.stack(arrays, out=out)
    # Faster than np.stack, with the same result for arrays of one shape.
    np.concatenate(arrays, out=out.reshape((len(arrays) * shape[0], *shape[1:])))
    return out


def _read(value: object, position: int, path: Path) -> NDArray[np.generic]:
    kind, why, advice = f"a {type(value).__name__}", "", "Return an array for every sample from the dataset."
    if value is None:
        kind, advice = "None", fields.instead_of_none(path)
    elif isinstance(value, (int, float, complex, np.generic)) or hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except (TypeError, RuntimeError, ValueError) as exc:  # a type that NumPy lacks; on a device, or with gradient
            kind, why = f"{kind} of {getattr(value, 'dtype', 'objects')}", f": {words(exc)}"
            advice = "Convert it in the dataset, for example with tensor.float() or tensor.detach().cpu()."
    raise CollateError(
        f"Sample {position} of the batch has {kind}{fields.inside(path)}, which cannot be stacked as a NumPy "
        f"array{why}. {advice}",
        None if why else position,  # the samples may be alike if NumPy cannot read one
    )


def shapes_differ(first: Sequence[int], other: Sequence[int], position: int, path: Path) -> CollateError:
    """Return the error for arrays that cannot be stacked."""
    return CollateError(
        f"Samples 0 and {position} of the batch have shapes {tuple(first)} and {tuple(other)}{fields.inside(path)}, "
        "and only arrays of one shape can be stacked. Resize or crop them in the dataset, or use "
        "feedline.collate.pad() for sequences, feedline.collate.detection() for images, or your own collate function.",
        position,
    )
