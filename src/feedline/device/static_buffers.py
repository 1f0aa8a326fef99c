"""Batches at stable addresses, for CUDA graphs: every batch is copied into the memory of the first one.

The copy runs on the training loop's stream, so it waits for everything that still reads the previous batch there.
"""

from __future__ import annotations

import torch

from feedline.abc.target import Target
from feedline.device.structure import mapped
from feedline.errors import BadOption


class StaticBuffers:
    """The memory of one loader's batches. A loader keeps it from epoch to epoch.

    Args:
        batch_size: the number of samples in a full batch, if it is known. The first batch after resuming may be the
            last of its epoch, and smaller.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        self._rows = batch_size or 0
        self._tensors: list[torch.Tensor] = []

    def __reduce__(self) -> tuple[object, ...]:
        return StaticBuffers, (self._rows,)  # a copy of the loader has memory of its own

    def filled(self, batch: object) -> object:
        """Return a batch of the same structure whose tensors lie in this memory.

        Raises:
            BadOption: its tensors do not fit there.
        """
        count = 0

        def copied(value: object) -> torch.Tensor:
            nonlocal count
            if not isinstance(value, torch.Tensor):
                raise BadOption(
                    f'device_buffers="static" needs tensors, but the batch contains a {type(value).__name__}. Return '
                    "tensors from collate_fn= or device_transform=, or leave device_buffers= out."
                )
            if count == len(self._tensors):
                self._tensors.append(_allocated(value, self._rows))
            place = self._tensors[count]
            count += 1
            return _room(place, value).copy_(value, non_blocking=True)

        return mapped(batch, (torch.Tensor,), copied, "to")


def _allocated(value: torch.Tensor, rows: int) -> torch.Tensor:
    """Return memory for tensors like this one, with at least `rows` rows."""
    if not value.ndim or not 0 < len(value) < rows or value.stride(0) * len(value) != value.numel():
        return torch.empty_like(value)
    return torch.empty_strided((rows, *value.shape[1:]), value.stride(), dtype=value.dtype, device=value.device)


def _room(place: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the memory for a tensor: only its first rows, if the batch is smaller than the first one."""
    if value.shape == place.shape and value.dtype is place.dtype:
        return place
    fits = value.ndim > 0 and place.ndim > 0 and value.shape[1:] == place.shape[1:] and len(value) <= len(place)
    if not fits or value.dtype is not place.dtype:
        raise BadOption(
            f'device_buffers="static" needs batches like the first one: a tensor of shape {tuple(value.shape)} and '
            f"{value.dtype} does not fit where that one had {tuple(place.shape)} and {place.dtype}. Pad the batches "
            "to one size, or leave device_buffers= out."
        )
    return place[: len(value)]


class StaticTarget(Target):
    """Delivers the batches of another target at stable addresses.

    Args:
        target: prepares them.
        buffers: where they go.
    """

    def __init__(self, target: Target, buffers: StaticBuffers) -> None:
        self._target = target
        self._buffers = buffers

    @property
    def ahead(self) -> int:  # type: ignore[override]  # the other target may change it
        return self._target.ahead

    @property
    def threads(self) -> int:  # type: ignore[override]
        return self._target.threads

    def begin(self, batch: object) -> object:
        return self._target.begin(batch)

    def deliver(self, begun: object) -> object:
        return self._buffers.filled(self._target.deliver(begun))

    def close(self) -> None:
        self._target.close()
