"""How tensors are sent to another process: the data in a slot, a few small numbers in the header.

A plain tensor (on the CPU, contiguous) becomes a leaf: dtype, offset, shape. Everything else that torch's loader
supports is sent in parts: sparse tensors as indices and values, views with their strides, leaves with their gradient
flag.
"""

from __future__ import annotations

from multiprocessing.context import get_spawning_popen

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import reduce_storage as share_storage
from torch.multiprocessing.reductions import reduce_tensor as reduce_shared

from feedline.abc import memory
from feedline.frameworks.torch_memory import AS_NUMPY, numpy_type, tensor_of

_OTHERS = "bfloat16 uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
_DTYPES = [*AS_NUMPY, *(getattr(torch, name) for name in _OTHERS.split() if hasattr(torch, name))]
_NUMPY_BY_CODE = list(map(numpy_type, _DTYPES))
_VIEWED_AS = [None if dtype in AS_NUMPY else dtype for dtype in _DTYPES]
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}

Leaf = tuple[int, int, tuple[int, ...]]
"""A contiguous tensor in a slot: dtype code, offset, shape."""


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
    if size == 0:
        return code, -1, shape
    return code, writer.copy(tensor.data_ptr(), size, lasting=lasting), shape


def read(leaf: Leaf, reader: memory.Reader) -> torch.Tensor:
    """Recreate the tensor that `place` put into a slot, over the memory that the reader returns."""
    code, offset, shape = leaf
    if offset < 0:
        return torch.empty(shape, dtype=_DTYPES[code])
    return tensor_of(reader.array(offset, shape, _NUMPY_BY_CODE[code]), _VIEWED_AS[code])


def array_in(view: NDArray[np.uint8], leaf: Leaf) -> tuple[NDArray[np.generic], torch.dtype | None]:
    """Return the array of a leaf in `view`, and the type to view its tensor as if NumPy lacks that type."""
    code, offset, shape = leaf
    dtype = _NUMPY_BY_CODE[code]
    array: NDArray[np.generic] = np.empty(shape, dtype) if offset < 0 else np.ndarray(shape, dtype, view, offset)
    return array, _VIEWED_AS[code]


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
    span = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
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
    assert memory.announced.to_read is not None
    tensor = read(leaf, memory.announced.to_read)
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
