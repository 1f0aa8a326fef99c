"""Batches of torch on a device: copied, and whatever else is done to them, on a stream beside the training loop's.

On CUDA a batch is copied by a side stream. The training loop's stream waits for the event that says it is there; the
processor waits for nothing. Each tensor is recorded on the training loop's stream when it is handed over, so that its
memory is not used for the next batch before that stream is done with it.

What a copy reads from is kept until it is through, because the next batch is written there. Then it is given back to
the workers without another event: see `feedline.device.pinning.settled`.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from feedline.abc.deferred import DeferredBatch, Placement
from feedline.abc.target import Target
from feedline.device.pinning import settled
from feedline.device.structure import mapped
from feedline.errors import BadOption, PerformanceWarning, warn_user

_THREADS = 2
"""Threads that have a GPU decode images."""


# Any, throughout: batches of whatever structure.
@dataclass(slots=True)
class Sources:
    """What a copy reads from."""

    held: list[Any]
    addresses: list[int]
    """Of the tensors that were copied."""

    def drop(self) -> None:
        """Let go of it: the copy is through."""
        with settled(self.addresses):
            self.held.clear()


class TorchTarget(Target):
    """A device without streams: the processor, MPS and others. Batches are moved when they are handed over.

    Args:
        device: where they go.
        transform: called with each batch, there.
    """

    ahead = 0

    def __init__(self, device: torch.device, transform: Callable[[Any], Any] | None = None) -> None:
        self._device = device
        self._transform = transform

    def begin(self, batch: Any) -> Any:
        return batch

    def deliver(self, begun: Any) -> Any:
        batch = begun if self._device.type == "cpu" else moved(begun, self._move)
        return batch if self._transform is None else self._transform(batch)

    def _move(self, value: Any) -> Any:
        return value.to(self._device, non_blocking=True)


class CudaTarget(Target):
    """A GPU.

    Args:
        device: which.
        transform: called with each batch on the side stream, where the batch is.
    """

    def __init__(self, device: torch.device, transform: Callable[[Any], Any] | None = None) -> None:
        self._device = device
        self._transform = transform
        self.threads = 0
        """Threads that get batches ready, once images come to be decoded, which keeps a processor busy; copies and
        kernels do not."""
        self.ahead = 2
        self._streams: deque[Any] = deque(torch.cuda.Stream(device) for _ in range(_THREADS))
        self._kept: deque[tuple[Any, Sources]] = deque()
        """What copies read from, and kernels of the side stream, with the event that says that they are through."""

    def begin(self, batch: Any) -> Any:
        self._drop_what_is_through()
        stream = self._streams.pop()  # of its own while another thread begins a batch, too
        sources = Sources([batch], [])
        late = False

        def move(value: Any) -> Any:
            nonlocal late
            if isinstance(value, DeferredBatch):
                if value.is_encoded and not self.threads:
                    _check_queues()
                    self.threads, self.ahead = _THREADS, _THREADS + 1
                return value.finish_on(self._device, sources)
            if not _can_be_recorded(value):
                late = True
                return value
            if type(value) is torch.Tensor:
                sources.addresses.append(value.data_ptr())
            return value.to(self._device, non_blocking=True)

        try:
            with torch.cuda.stream(stream):
                on_device = moved(batch, move)
                if self._transform is not None and not late:
                    on_device = self._transform(on_device)
                event = torch.cuda.Event()
                event.record(stream)
        finally:
            self._streams.appendleft(stream)
        if late:
            sources.addresses.clear()  # of the same slots, from which another stream will copy
        self._kept.append((event, sources))
        return on_device, event, late

    def deliver(self, begun: Any) -> Any:
        batch, event, late = begun
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        record(batch, stream)
        if not late:
            return batch
        # Objects that do not say which tensors they hold are copied by the training loop's own stream.
        batch = moved(batch, lambda value: value.to(self._device, non_blocking=True))
        return batch if self._transform is None else self._transform(batch)

    def _drop_what_is_through(self) -> None:
        """Give back what copies have been made of. Another thread may do so as well."""
        while self._kept:
            try:
                event, sources = self._kept.popleft()
            except IndexError:  # the other thread was faster
                return
            if not event.query():
                self._kept.appendleft((event, sources))
                return
            sources.drop()

    def close(self) -> None:
        """Wait for the copies that are under way, and let go of what they read from."""
        while self._kept:
            event, sources = self._kept.popleft()
            event.synchronize()
            sources.drop()


def moved(batch: Any, move: Callable[[Any], Any]) -> Any:
    """Return a batch of the same structure, with `move` applied to each tensor, and to whatever else can be moved."""
    return mapped(batch, (torch.Tensor, DeferredBatch), move, "to")


def _can_be_recorded(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and not value.is_nested
    return callable(getattr(value, "record_stream", None))  # such as the graphs of PyG


def record(batch: Any, stream: Any) -> None:
    """Record every tensor of a batch on a stream, so that its memory is not used again before that is done with it."""
    if isinstance(batch, torch.Tensor):
        if batch.is_cuda and _can_be_recorded(batch):
            batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            record(value, stream)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            record(value, stream)
    elif callable(getattr(batch, "record_stream", None)):
        batch.record_stream(stream)


def device_of(device: Any) -> torch.device:
    """Return the device that a user named.

    Raises:
        BadOption: there is no such device.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as exc:
        why = str(exc).partition("\n")[0].partition(" - got")[0]
        raise BadOption(
            f"device={device!r} is no device of torch ({why}). Give for example 'cuda', 'cuda:1', 'cpu' or None."
        ) from exc
    if found.type == "cuda":
        widen_queues()
        if not torch.cuda.is_available():
            raise BadOption(
                f"device={device!r} was asked for, but torch finds no GPU: {_why_no_gpu()} A script that is to run "
                "with and without a GPU writes device='cuda' if torch.cuda.is_available() else 'cpu'."
            )
        count = torch.cuda.device_count()
        index: int | None = found.index
        if index is None:
            return torch.device("cuda", torch.cuda.current_device())
        if index >= count:
            raise BadOption(f"device={device!r} does not exist: this machine has {count} GPUs, counted from 0.")
    return found


_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def widen_queues() -> None:
    """Let streams have queues of their own on the GPU, if CUDA has not begun and nobody has said how many.

    All streams of a process share eight of them by default. In one that it shares with the training loop, nvJPEG waits
    for the kernels of a whole step several times in a batch: on an H200, ResNet-18 then gets 72 % of the images that it
    could train with, instead of 93 %.
    """
    if not torch.cuda.is_initialized():
        os.environ.setdefault(_QUEUES, "32")


def _check_queues() -> None:
    if _QUEUES not in os.environ:
        warn_user(
            "The GPU decodes images, but CUDA was in use before the loader was made, so that decoding may have to wait "
            f"in one queue with the training. Make the loader before anything is put on the GPU, or set {_QUEUES}=32 "
            "in the environment of the program.",
            PerformanceWarning,
        )


def _why_no_gpu() -> str:
    built: Any = torch.version
    if built.cuda is None and getattr(built, "hip", None) is None:
        return f"torch {torch.__version__} was built without CUDA."
    return "the driver is missing, or CUDA_VISIBLE_DEVICES hides it."


def is_cuda(device: Any) -> bool:
    """True for a GPU of NVIDIA, or of AMD, which torch calls so, too."""
    return isinstance(device, torch.device) and device.type == "cuda"


def target_for(device: torch.device | None, transform: Callable[[Any], Any] | None) -> Target | None:
    """Return what gets batches ready for a device; None if nothing is to be done about them."""
    if device is None:
        return None if transform is None else TorchTarget(torch.device("cpu"), transform)
    if not is_cuda(device):
        return TorchTarget(device, transform)
    return CudaTarget(device, transform)


def placement_on(device: torch.device | None) -> Placement:
    """Return what of the work on images is left to a device, if they are put together by feedline."""
    if not is_cuda(device):
        return Placement.COLLATE
    return Placement.DECODE if can_decode() else Placement.DEVICE


@functools.cache
def can_decode() -> bool:
    """True if there is a decoder for JPEG on the GPU."""
    try:
        from torchvision.io import decode_jpeg  # noqa: F401
    except (ImportError, RuntimeError):  # it is not installed, or does not fit this torch
        return False
    return torch.cuda.is_available()
