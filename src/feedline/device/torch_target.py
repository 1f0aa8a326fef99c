"""torch batches on a device: copied and transformed on a stream beside the training loop's.

On CUDA, a side stream copies a batch. The training loop's stream waits for the event that marks its end; the CPU does
not wait. Each tensor is recorded on the training loop's stream when it is delivered, so its memory is not used for the
next batch before that stream has finished with it.

The source of a copy is kept until the copy has finished, because the next batch would be written there. Then it returns
to the workers without another event: see `feedline.device.pinning.settled`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from feedline.abc.deferred import DeferredBatch, Sources, Target
from feedline.abc.memory import Placement
from feedline.device import nvjpeg
from feedline.device.pinning import settled
from feedline.device.structure import mapped
from feedline.errors import BadOption, PerformanceWarning, warn_user
from feedline.system import cuda_queues

_THREADS = 2
"""Threads that start image decoding on a GPU."""


# Any, throughout: batches of any structure.
class TorchTarget(Target):
    """A device without streams: the CPU, MPS and others. Batches are moved when they are delivered.

    Args:
        device: the destination.
        transform: called with each batch on the device.
    """

    ahead = 0

    def __init__(self, device: torch.device, transform: Callable[[Any], object] | None = None) -> None:
        self._device = device
        self._transform = transform

    def begin(self, batch: object) -> object:
        return batch

    def deliver(self, begun: object) -> object:
        batch = begun if self._device.type == "cpu" else moved(begun, self._move)
        return batch if self._transform is None else self._transform(batch)

    def _move(self, value: torch.Tensor) -> object:
        return value.to(self._device, non_blocking=True)


class CudaTarget(Target):
    """A CUDA device.

    Args:
        device: the GPU.
        transform: called with each batch on the side stream, after the copy.
    """

    def __init__(self, device: torch.device, transform: Callable[[Any], object] | None = None) -> None:
        self._device = device
        self._transform = transform
        self.threads = 0
        """Threads that prepare batches. More than 0 once there are images to decode, which keeps a CPU busy; copies and
        kernels do not.
        """
        self.ahead = 2
        self._streams = deque(torch.cuda.Stream(device) for _ in range(_THREADS))
        self._kept: deque[tuple[torch.cuda.Event, Sources]] = deque()
        """The memory that copies and kernels of the side stream read, each with the event that marks their end."""

    def begin(self, batch: object) -> object:
        self._drop_finished()
        stream = self._streams.pop()  # not shared with another thread that begins a batch
        sources = Sources([batch], [])
        late = False

        def move(value: Any) -> object:
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
            sources.addresses.clear()  # another stream will copy from the same slots
        self._kept.append((event, sources))
        return on_device, event, late

    def deliver(self, begun: Any) -> object:
        batch, event, late = begun
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        record(batch, stream)
        if not late:
            return batch
        # Objects that do not expose their tensors are copied by the training loop's own stream.
        batch = moved(batch, lambda value: value.to(self._device, non_blocking=True))
        return batch if self._transform is None else self._transform(batch)

    def _drop(self, sources: Sources) -> None:
        """Release memory that has been read."""
        with settled(sources.addresses):
            sources.held.clear()

    def _drop_finished(self) -> None:
        """Release the sources of copies that have finished. Another thread may do the same concurrently."""
        while self._kept:
            try:
                event, sources = self._kept.popleft()
            except IndexError:  # the other thread was faster
                return
            if not event.query():
                self._kept.appendleft((event, sources))
                return
            self._drop(sources)

    def close(self) -> None:
        """Wait for pending copies, and release their sources."""
        while self._kept:
            event, sources = self._kept.popleft()
            event.synchronize()
            self._drop(sources)


def moved(batch: object, move: Callable[[Any], object]) -> object:
    """Return a batch of the same structure, with `move` applied to tensors and all other objects that can be moved."""
    return mapped(batch, (torch.Tensor, DeferredBatch), move, "to")


def _can_be_recorded(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and not value.is_nested
    return callable(getattr(value, "record_stream", None))  # for example PyG graphs


def record(batch: object, stream: torch.cuda.Stream) -> None:
    """Record every tensor of a batch on a stream, so its memory is not reused before the stream is done with it."""

    def record_one(value: Any) -> None:
        if not isinstance(value, torch.Tensor) or (value.is_cuda and _can_be_recorded(value)):
            value.record_stream(stream)

    mapped(batch, (torch.Tensor,), record_one, "record_stream")


def device_of(device: Any) -> torch.device:
    """Return the torch device for the user's option.

    Raises:
        BadOption: there is no such device.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as exc:
        why = str(exc).partition("\n")[0].partition(" - got")[0]
        raise BadOption(
            f"device={device!r} is not a torch device ({why}). Pass for example 'cuda', 'cuda:1', 'cpu' or None."
        ) from exc
    if found.type == "cuda":
        cuda_queues.widen()
        if not torch.cuda.is_available():
            raise BadOption(
                f"device={device!r} was given, but torch finds no GPU: {_why_no_gpu()} In a script that runs with and "
                "without a GPU, write device='cuda' if torch.cuda.is_available() else 'cpu'."
            )
        count = torch.cuda.device_count()
        index: int | None = found.index
        if index is None:
            return torch.device("cuda", torch.cuda.current_device())
        if index >= count:
            raise BadOption(f"device={device!r} does not exist: this machine has {count} GPUs, numbered from 0.")
    return found


def _check_queues() -> None:
    if cuda_queues.are_default():
        warn_user(
            "Training may delay image decoding on the GPU: CUDA was in use before feedline.images was imported, so the "
            "two may share one queue. Import feedline.images before you put anything on the GPU, or set "
            f"{cuda_queues.VARIABLE}=32 in the environment of the program.",
            PerformanceWarning,
        )


def _why_no_gpu() -> str:
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"torch {torch.__version__} was built without CUDA."
    return "the driver is missing, or CUDA_VISIBLE_DEVICES hides it."


def is_cuda(device: object) -> bool:
    """True for an NVIDIA GPU, or an AMD GPU, which torch also calls "cuda"."""
    return isinstance(device, torch.device) and device.type == "cuda"


def target_for(device: torch.device | None, transform: Callable[[Any], object] | None) -> Target | None:
    """Return the target that prepares batches for a device; None if there is nothing to do.

    Args:
        device: the device.
        transform: called with each batch there.
    """
    is_on_cpu = device is None or device.type == "cpu"
    if is_on_cpu and transform is None:
        return None
    place = device or torch.device("cpu")
    return CudaTarget(place, transform) if is_cuda(device) else TorchTarget(place, transform)


def placement_on(device: torch.device | None) -> Placement:
    """Return which steps of images are left to a device, if feedline collates them."""
    if not is_cuda(device):
        return Placement.COLLATE
    return Placement.DECODE if nvjpeg.is_available() else Placement.DEVICE
