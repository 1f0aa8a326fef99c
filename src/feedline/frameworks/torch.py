"""torch: how tensors are collated into slots, sent, gathered, and how a worker becomes torch's worker."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import numpy.random  # noqa: F401  loaded on first use otherwise, which would be in every forked worker
import torch
import torch.utils.data
from torch.multiprocessing.reductions import reduce_tensor as reduce_shared
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from feedline import memory
from feedline.abc.framework import Gather, Reducer
from feedline.frameworks.torch_gather import gather_for
from feedline.frameworks.torch_memory import AS_NUMPY, room
from feedline.types import WorkerIdentity, WorkerSpec

_tensor_collate = torch_collate.default_collate_fn_map[torch.Tensor]


class TorchFramework:
    """Tensors in, tensors out, with torch's rules."""

    name = "torch"

    def gather_for(self, dataset: Any, collate: Callable[[Any], Any]) -> Gather | None:
        if not _is_default(collate) or not _registrations_untouched():
            return None
        return gather_for(dataset)

    def bind_collate(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if _is_default(collate):
            return default_collate
        bind = getattr(collate, "bound_to", None)
        if bind is None:
            return collate
        bound: Callable[[Any], Any] = bind(self)
        return bound

    def reducers(self) -> dict[type, Reducer]:
        return {torch.Tensor: _reduce_tensor}

    def describe(self, batch: Any, writer: memory.Writer) -> Any:
        kind = type(batch)
        if kind is torch.Tensor:
            return _place(batch, writer)
        values = batch.values() if kind is dict else batch
        if kind is not list and kind is not tuple and (kind is not dict or any(type(key) is not str for key in batch)):
            return None
        leaves = []
        for value in values:
            leaf = _place(value, writer) if type(value) is torch.Tensor else None
            if leaf is None:
                return None
            leaves.append(leaf)
        return [leaves, kind is tuple] if kind is not dict else [leaves, list(batch)]

    def rebuild(self, description: Any, buffer: Any) -> Any:
        if type(description) is tuple:
            return _read(description, buffer)
        leaves, form = description
        tensors = [_read(leaf, buffer) for leaf in leaves]
        if form is False:
            return tensors
        return tuple(tensors) if form is True else dict(zip(form, tensors, strict=True))

    def open_worker(self, worker: WorkerIdentity, spec: WorkerSpec) -> Any:
        install_collate()
        dataset = worker.dataset
        if worker.threaded:
            dataset = self.reset_worker(dataset, spec, spec.shared_seed)
            set_thread_worker(_worker_info(worker, dataset))
            return dataset
        torch.set_num_threads(1)
        random.seed(worker.seed)
        torch.manual_seed(worker.seed)
        np.random.seed(torch_worker._generate_state(spec.base_seed, worker.id))
        dataset = self.reset_worker(dataset, spec, spec.shared_seed)
        torch_worker._worker_info = _worker_info(worker, dataset)
        return dataset

    def reset_worker(self, dataset: Any, spec: WorkerSpec, shared_seed: int | None) -> Any:
        if shared_seed is None:
            return dataset
        from torch.utils.data.graph_settings import apply_random_seed

        return apply_random_seed(dataset, torch.Generator().manual_seed(shared_seed))

    def prefers_lists(self) -> bool:
        return True


def _worker_info(worker: WorkerIdentity, dataset: Any) -> Any:
    info = torch_worker.WorkerInfo
    fields: dict[str, Any] = dict(id=worker.id, num_workers=worker.count, seed=worker.seed, dataset=dataset)
    if worker.threaded and "worker_method" in getattr(info, "__dataclass_fields__", {}):
        fields["worker_method"] = "thread"
    return info(**fields)


# -- collate ---------------------------------------------------------------------------------------------------------


def _is_default(collate: Callable[[Any], Any]) -> bool:
    """True for torch's default collate function and for `feedline.collate.default`, which stands for it here."""
    return collate is torch_collate.default_collate or getattr(collate, "is_default", False)


def collate_tensors(batch: tuple[torch.Tensor, ...] | list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Stack tensors as torch's own function does, but into the slot of the current task.

    Outside a task this is torch's function. Inside one, torch's would make a new shared-memory file per tensor.
    """
    current = memory.current()
    elem = batch[0]
    if current is None or not elem.is_cpu or elem.layout is not torch.strided or elem.is_nested:
        result: torch.Tensor = _tensor_collate(batch, collate_fn_map=collate_fn_map)
        return result
    out = room((len(batch), *elem.shape), elem) if type(elem) is torch.Tensor and not elem.is_quantized else None
    if out is None:
        return torch.stack(batch, 0)
    if not current.crosses and any(tensor.dtype != elem.dtype or tensor.requires_grad for tensor in batch):
        return torch.stack(batch, 0)  # torch has no target either when the batch stays in its process
    return torch.stack(batch, 0, out=out)


def install_collate() -> None:
    """Let every use of torch's `default_collate` in this process write into the current slot.

    A user's own registration for tensors is left alone.
    """
    if torch_collate.default_collate_fn_map.get(torch.Tensor) is _tensor_collate:
        torch_collate.default_collate_fn_map[torch.Tensor] = collate_tensors
        _known_registrations.clear()
        _known_registrations.update(torch_collate.default_collate_fn_map)


_known_registrations = dict(torch_collate.default_collate_fn_map)


def _registrations_untouched() -> bool:
    return torch_collate.default_collate_fn_map == _known_registrations


def default_collate(batch: Any) -> Any:
    """Do what torch's `default_collate` does, faster for the usual kinds of samples."""
    if not _registrations_untouched():
        return torch_collate.default_collate(batch)
    return _collate_known(batch)


def _collate_known(batch: Sequence[Any]) -> Any:
    elem = batch[0]
    kind = type(elem)
    if kind is torch.Tensor:
        return collate_tensors(batch)
    if kind is int:
        return _collate_ints(batch)
    if kind is float:
        return torch.tensor(batch, dtype=torch.float64)
    if kind is tuple or kind is list:
        size = len(elem)
        for other in batch:
            if len(other) != size:
                raise RuntimeError("each element in list of batch should be of equal size")
        return [_collate_known(column) for column in zip(*batch, strict=True)]
    if kind is dict:
        return {key: _collate_known([sample[key] for sample in batch]) for key in elem}
    if kind is np.ndarray and elem.dtype.kind in "biufc":
        return collate_tensors([torch.as_tensor(array) for array in batch])
    return torch_collate.collate(batch, collate_fn_map=torch_collate.default_collate_fn_map)


def _collate_ints(batch: Sequence[Any]) -> torch.Tensor:
    """Do what `torch.tensor` does with integers, at a fifth of its price: NumPy reads a list much faster."""
    values = np.array(batch)
    if values.dtype is not _INT64 or values.ndim != 1:
        return torch.tensor(batch)
    current = memory.current()
    place = current.allocate(values.nbytes) if current is not None else None
    if place is not None:
        target = np.ndarray(values.shape, _INT64, *place)
        target[:] = values
        values = target
    return torch.from_numpy(values)


_INT64 = np.dtype(np.int64)


# -- sending ---------------------------------------------------------------------------------------------------------

_OTHER_DTYPES = "bfloat16 uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split()
_DTYPES = [*AS_NUMPY, *(getattr(torch, name) for name in _OTHER_DTYPES if hasattr(torch, name))]
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_NUMPY_BY_CODE = list(AS_NUMPY.values())

Leaf = tuple[int, int, tuple[int, ...]]
"""A contiguous tensor in a slot: dtype code, offset, shape."""


def _place(tensor: torch.Tensor, writer: memory.Writer) -> Leaf | None:
    """Put a plain tensor into the slot if it is not there already; None if it is not plain."""
    code = _DTYPE_CODES.get(tensor.dtype)
    if code is None or not tensor.is_cpu or tensor.requires_grad or tensor.layout is not torch.strided:
        return None
    if tensor.is_nested or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return None
    shape = tuple(tensor.shape)
    size = tensor.nbytes
    if size == 0:
        return code, -1, shape
    offset = writer.offset_of(tensor.data_ptr(), size)
    if offset is None:
        offset = writer.place(size)
        target = torch.frombuffer(writer.view, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        target.copy_(tensor.view(-1))
    return code, offset, shape


def _read(leaf: Leaf, buffer: Any) -> torch.Tensor:
    """Make the tensor that `_place` put into a slot, as a view."""
    code, offset, shape = leaf
    if offset < 0:
        return torch.empty(shape, dtype=_DTYPES[code])
    if code < len(_NUMPY_BY_CODE):
        return torch.from_numpy(np.ndarray(shape, _NUMPY_BY_CODE[code], buffer, offset))
    count = 1
    for length in shape:
        count *= length
    return torch.frombuffer(buffer, dtype=_DTYPES[code], count=count, offset=offset).view(shape)


def _reduce_tensor(tensor: torch.Tensor, writer: memory.Writer) -> Any:
    """Describe a tensor for a pickle: a few small numbers, and the data in the slot."""
    if get_spawning_popen() is not None and tensor.is_shared():  # part of the dataset, and meant for several processes
        return reduce_shared(tensor)
    leaf = _place(tensor, writer)
    if leaf is not None:
        return _read_pickled, (leaf,)
    plain = tensor.is_cpu and not tensor.requires_grad and tensor.layout is torch.strided and not tensor.is_nested
    if not plain or tensor.dtype not in _DTYPE_CODES:
        return _reduce_special(tensor)
    tensor = tensor.resolve_conj().resolve_neg()
    shape, strides = tuple(tensor.shape), tensor.stride()
    span = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if span <= tensor.numel():  # transposed, channels_last, expanded, overlapping: the memory goes as it is
        return _read_pickled, (_place(tensor.as_strided((span,), (1,)), writer), shape, strides)
    return _read_pickled, (_place(tensor.contiguous(), writer),)  # a view that skips elements: without the gaps


def _read_pickled(leaf: Leaf, shape: tuple[int, ...] | None = None, strides: tuple[int, ...] = ()) -> torch.Tensor:
    tensor = _read(leaf, memory.being_read())
    return tensor if shape is None else tensor.as_strided(shape, strides)


def _reduce_special(tensor: torch.Tensor) -> Any:
    """Reduce what is not a plain tensor: with gradient, on a device, sparse, nested or quantised."""
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
    if tensor.layout is torch.sparse_coo:  # torch's own pickling of sparse tensors keeps each of them alive for good
        return _sparse, (tensor._indices(), tensor._values(), tensor.shape, tensor.is_coalesced())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        return _compressed, (str(tensor.layout).removeprefix("torch."), *parts, tensor.shape)
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
        return _compressed, (str(tensor.layout).removeprefix("torch."), *parts, tensor.shape)
    return tensor.__reduce_ex__(5)  # by its parts, which are plain tensors where they are large


def _sparse(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, coalesced: bool) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)


def _compressed(
    layout: str, outer: torch.Tensor, inner: torch.Tensor, values: torch.Tensor, shape: torch.Size
) -> torch.Tensor:
    return torch.sparse_compressed_tensor(
        outer, inner, values, shape, layout=getattr(torch, layout), check_invariants=False
    )


def _with_grad(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.requires_grad_()


# -- thread workers --------------------------------------------------------------------------------------------------


def set_thread_worker(info: Any) -> None:
    """Make `torch.utils.data.get_worker_info()` answer `info` on this thread, None to make it forget.

    torch keeps the answer in a module global, which threads cannot share, and programs hold direct references to the
    function. So its code is exchanged, once, for code that asks the thread first; outside feedline's threads the
    answer is what it was.
    """
    if "_feedline_thread" not in torch_worker.__dict__:
        torch_worker._feedline_thread = _ThreadInfo()  # type: ignore[attr-defined]
        torch_worker.get_worker_info.__code__ = _get_worker_info.__code__
    torch_worker._feedline_thread.info = info  # type: ignore[attr-defined]


class _ThreadInfo(threading.local):
    info: Any = None


def _get_worker_info() -> Any:
    return _feedline_thread.info or _worker_info  # type: ignore[name-defined]  # noqa: F821  (torch's globals)

