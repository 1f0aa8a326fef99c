"""torch: how tensors are collated into slots, sent, gathered, and how a worker becomes torch's worker."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.multiprocessing.reductions import reduce_tensor as reduce_shared
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from feedline import memory
from feedline.abc.framework import Gather, Reducer
from feedline.frameworks.torch_gather import gather_for
from feedline.frameworks.torch_memory import room
from feedline.types import WorkerIdentity, WorkerSpec

_tensor_collate = torch_collate.default_collate_fn_map[torch.Tensor]


class TorchFramework:
    """Tensors in, tensors out, with torch's rules."""

    name = "torch"

    def gather_for(self, dataset: Any, collate: Callable[[Any], Any]) -> Gather | None:
        if collate is not torch_collate.default_collate or not _registrations_untouched():
            return None
        return gather_for(dataset)

    def bind_collate(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        bind = getattr(collate, "bound_to", None)
        if bind is not None:
            bound: Callable[[Any], Any] = bind("torch")
            return bound
        return default_collate if collate is torch_collate.default_collate else collate

    def reducers(self) -> dict[type, Reducer]:
        return {torch.Tensor: _reduce_tensor}

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


def collate_tensors(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Stack tensors as torch's own function does, but into the slot of the current task.

    Outside a task this is torch's function. Inside one, torch's would make a new shared-memory file per tensor.
    """
    current = memory.current()
    elem = batch[0]
    if current is None or elem.is_nested or elem.layout is not torch.strided or elem.device.type != "cpu":
        result: torch.Tensor = _tensor_collate(batch, collate_fn_map=collate_fn_map)
        return result
    if type(elem) is not torch.Tensor or elem.is_quantized:
        return torch.stack(list(batch), 0)
    if any(tensor.dtype != elem.dtype or tensor.requires_grad for tensor in batch):
        return torch.stack(list(batch), 0)
    return torch.stack(list(batch), 0, out=room((len(batch), *elem.shape), elem))


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
        return torch.tensor(batch)
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


# -- sending ---------------------------------------------------------------------------------------------------------

_DTYPES = [
    getattr(torch, name)
    for name in (
        "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 uint16 uint32 "
        "uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
    ).split()
    if hasattr(torch, name)
]
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


def _reduce_tensor(tensor: torch.Tensor, writer: memory.Writer) -> Any:
    """Place a tensor in the slot and describe it in a few small numbers."""
    if tensor.requires_grad:
        if not tensor.is_leaf:
            raise RuntimeError(
                "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
                "crossing process boundaries.  If you just want to transfer the data, call detach() on the tensor "
                "before serializing (e.g., putting it on the queue)."
            )
        return _with_grad, (tensor.detach(),)
    code = _DTYPE_CODES.get(tensor.dtype)
    if get_spawning_popen() is not None and tensor.is_shared():  # part of the dataset, and meant to be seen by several processes: torch's own way keeps it so
        return reduce_shared(tensor)
    if code is None or tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
        return _foreign(tensor)
    shape = tuple(tensor.shape)
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return _empty_tensor, (code, shape)
    strides = None
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        dense = tensor.permute(order)
        if dense.is_contiguous():  # channels_last and transposes keep their memory order
            strides = tensor.stride()
            tensor = dense
        else:
            tensor = tensor.contiguous()
    offset = writer.offset_of(tensor.data_ptr(), size)
    if offset is None:
        offset = writer.place(size)
        torch.frombuffer(writer.view, dtype=tensor.dtype, count=tensor.numel(), offset=offset).copy_(tensor.view(-1))
    return _read_tensor, ((code, offset, shape) if strides is None else (code, offset, shape, strides))


def _read_tensor(code: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Any:
    count = 1
    for length in shape:
        count *= length
    flat = torch.frombuffer(memory.being_read(), dtype=_DTYPES[code], count=count, offset=offset)
    if strides is not None:
        return flat.as_strided(shape, strides)
    return flat.view(shape) if len(shape) != 1 else flat


def _empty_tensor(code: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=_DTYPES[code])


def _with_grad(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.requires_grad_()


def _foreign(tensor: torch.Tensor) -> Any:
    """Reduce what is not a plain CPU tensor: on a device by torch's own sharing, otherwise by its parts."""
    if tensor.device.type not in ("cpu", "meta"):
        return reduce_shared(tensor)
    return tensor.__reduce_ex__(5)


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

