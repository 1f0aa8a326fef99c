"""Tensors in slots: made there, or sent to another process with the data in a slot and a few numbers in the header.

A plain tensor (on the CPU, row by row) becomes a leaf: dtype, offset, shape. Everything else that torch's loader
supports is sent in parts: sparse tensors as indices and values, views with their strides, leaves with their gradient
flag.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import reduce_storage as share_storage
from torch.multiprocessing.reductions import reduce_tensor as reduce_shared

from feedline.abc import memory

_NAMES = "float32 float64 float16 int64 int32 int16 int8 uint8 bool complex64 complex128"
AS_NUMPY = {getattr(torch, name): np.dtype(name) for name in _NAMES.split()}
"""The types that NumPy also has. Making a view through NumPy takes half the time of making it with torch."""


def numpy_type(dtype: torch.dtype) -> np.dtype[np.generic]:
    """Return NumPy's type for the same bytes: for a type that NumPy lacks, integers of its size."""
    return AS_NUMPY.get(dtype) or np.dtype(f"i{dtype.itemsize}")


_OTHERS = (
    "bfloat16 complex32 uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
_DTYPES = [*AS_NUMPY, *(getattr(torch, name) for name in _OTHERS.split() if hasattr(torch, name))]
_NUMPY_BY_CODE = list(map(numpy_type, _DTYPES))
_VIEWED_AS = [None if dtype in AS_NUMPY else dtype for dtype in _DTYPES]
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}

Leaf = tuple[int, int, tuple[int, ...]]
"""A tensor with the strides of a new one, in a slot: dtype code, offset, shape."""

_mode_count = torch._C._len_torch_dispatch_stack


def slot_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """Return an uninitialised tensor in the slot of the current task, or None if there is no slot or no space in it."""
    current = memory.on_this_thread.memory
    size = math.prod(shape) * dtype.itemsize
    place = None if current is None or size == 0 else current.allocate(size)
    return None if place is None else tensor_of(np.ndarray(shape, numpy_type(dtype), *place), dtype)


def tensor_of(array: NDArray[np.generic], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor that keeps its memory alive, even if torch replaces the memory of its storage.

    `share_memory_()`, and sending a tensor through a queue, replace the memory of a storage and free the old one,
    although `tensor.numpy()` and other views still refer to it. So the storage itself holds the array it was made from:
    behind every such view is a tensor that holds the storage. Test: tests/frameworks/test_torch_tensors.py

    Args:
        array: the memory.
        dtype: the type of the tensor, if it is one that NumPy lacks.
    """
    tensor = torch.from_numpy(array)
    tensor.untyped_storage()._feedline_memory = array  # type: ignore[attr-defined]
    return tensor if dtype is None or dtype in AS_NUMPY else tensor.view(dtype)


def place(tensor: torch.Tensor, writer: memory.Writer, *, lasting: bool = True) -> Leaf | None:
    """Put a plain tensor into the slot if it is not there already; None if it is not plain.

    Pass `lasting=False` if its memory may be reused before the batch is written.
    """
    code = _DTYPE_CODES.get(tensor.dtype)
    if code is None or not tensor.is_cpu or tensor.requires_grad or tensor.layout is not torch.strided:
        return None
    if tensor.is_nested or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return None
    shape = tuple(tensor.shape)
    size = tensor.nbytes
    if (size == 0 or 1 in shape) and not memory.is_row_major(shape, tensor.stride()):  # though it is contiguous
        return None
    if size == 0:
        return code, -1, shape
    return code, writer.copy(tensor.data_ptr(), size, lasting=lasting), shape


def read(leaf: Leaf, reader: memory.Reader) -> torch.Tensor:
    """Recreate the tensor that `place` put into a slot, over the memory that the reader returns."""
    code, offset, shape = leaf
    if offset < 0:
        return torch.empty(shape, dtype=_DTYPES[code])
    return tensor_of(reader.array(offset, shape, _NUMPY_BY_CODE[code]), _VIEWED_AS[code])


def reduce_tensor(tensor: torch.Tensor, writer: memory.Writer) -> object:
    """Describe a tensor for a pickle: a few small numbers, and the data in the slot."""
    dense = tensor.layout is torch.strided and not tensor.is_nested
    if dense and get_spawning_popen() is not None and tensor.is_shared():  # the program shares it between processes
        return reduce_shared(tensor)
    leaf = place(tensor, writer)
    if leaf is not None:
        return _read_pickled, (leaf,)
    plain = dense and tensor.is_cpu and not tensor.requires_grad
    if not plain or tensor.is_quantized:
        return _reduce_special(tensor)
    if tensor.dtype not in _DTYPE_CODES:  # torch's own pickling does not support these either: send their bytes
        flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
        return _retyped, (flat.view(torch.uint8), tensor.dtype, tensor.shape)
    lasting = not tensor.is_conj() and not tensor.is_neg()
    tensor = tensor.resolve_conj().resolve_neg()
    shape, strides = tuple(tensor.shape), tensor.stride()
    last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    span = 1 + last if tensor.numel() else 0
    # Transposed, channels_last, expanded, overlapping: send the memory as it is, also for views of memory already sent.
    if span <= tensor.numel() or writer.offset_of(tensor.data_ptr(), span * tensor.element_size()) is not None:
        return _read_pickled, (place(tensor.as_strided((span,), (1,)), writer, lasting=lasting), shape, strides)
    return _read_pickled, (place(tensor.contiguous(), writer, lasting=False),)  # skips elements: omit the gaps


def reduce_storage(storage: torch.UntypedStorage, writer: memory.Writer) -> object:
    """Describe a storage for a pickle as its bytes; pickle itself does not support storages."""
    if get_spawning_popen() is not None and storage.is_shared():  # the program shares it between processes
        return share_storage(storage)
    return torch.Tensor.untyped_storage, (torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage),)


def _read_pickled(leaf: Leaf, shape: tuple[int, ...] | None = None, strides: tuple[int, ...] = ()) -> torch.Tensor:
    assert memory.on_this_thread.being_read is not None
    tensor = read(leaf, memory.on_this_thread.being_read)
    return tensor if shape is None else tensor.as_strided(shape, strides)


def _retyped(data: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return data.view(dtype).view(shape)


def _reduce_special(tensor: torch.Tensor) -> object:
    """Reduce a tensor that is not plain: with gradient, on a device, sparse, nested or quantised."""
    if tensor.requires_grad:
        if not tensor.is_leaf:
            raise RuntimeError(
                "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
                "crossing process boundaries.  If you just want to transfer the data, call detach() on the tensor "
                "before serializing (e.g., putting it on the queue)."
            )
        return _with_grad, (tensor.detach(),)
    if tensor.device.type not in ("cpu", "meta"):
        return reduce_shared(tensor)
    if tensor.layout is torch.sparse_coo:  # torch's own pickling of sparse tensors leaks each of them
        return _sparse, (tensor._indices(), tensor._values(), tensor.shape, tensor.is_coalesced())
    return tensor.__reduce_ex__(5)  # in parts, which are plain tensors if they are large


def _sparse(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, coalesced: bool) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)


def _with_grad(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.requires_grad_()


def describe(batch: Any, writer: memory.Writer) -> Any:
    """See `feedline.abc.framework.Framework`: places a tensor, or a list, tuple or dict of them."""
    kind = type(batch)
    if kind is torch.Tensor:
        return place(batch, writer)
    values = batch.values() if kind is dict else batch
    if kind is not list and kind is not tuple and (kind is not dict or any(type(key) is not str for key in batch)):
        return None
    if len({id(value) for value in values}) != len(batch):
        return None  # one tensor in two places: a pickle keeps it one object
    leaves = []
    for value in values:
        leaf = place(value, writer) if type(value) is torch.Tensor else None
        if leaf is None:
            return None
        leaves.append(leaf)
    return [leaves, kind is tuple] if kind is not dict else [leaves, list(batch)]


def rebuild(description: Any, reader: memory.Reader) -> Any:
    """Recreate what `describe` has placed."""
    if type(description) is tuple:
        return read(description, reader)
    leaves, form = description
    return _formed([read(leaf, reader) for leaf in leaves], form)


def makes_usual_arrays() -> bool:
    """False in modes of torch: FakeTensorMode rejects tensors from outside; those of inference mode cannot train."""
    return not _mode_count() and not torch.is_inference_mode_enabled()


def copier(description: Any, view: NDArray[np.uint8]) -> Callable[[], object]:
    """Return a function that recreates what `describe` has placed from the contents of `view`."""
    single = type(description) is tuple
    leaves, form = ([description], False) if single else description
    arrays = [_array_in(view, leaf) for leaf in leaves]

    def copy() -> object:
        if _mode_count():
            return None
        tensors = [tensor_of(array.copy(), dtype) for array, dtype in arrays]
        return tensors[0] if single else _formed(tensors, form)

    return copy


def _array_in(view: NDArray[np.uint8], leaf: Leaf) -> tuple[NDArray[np.generic], torch.dtype | None]:
    """Return the array of a leaf in `view`, and the type to view its tensor as if NumPy lacks that type."""
    code, offset, shape = leaf
    dtype = _NUMPY_BY_CODE[code]
    array: NDArray[np.generic] = np.empty(shape, dtype) if offset < 0 else np.ndarray(shape, dtype, view, offset)
    return array, _VIEWED_AS[code]


def _formed(tensors: list[torch.Tensor], form: bool | list[str]) -> object:
    """Return tensors in their container: a list (`form` is False), a tuple (True) or a dict with these keys."""
    if form is False:
        return tensors
    return tuple(tensors) if form is True else dict(zip(form, tensors, strict=True))
