"""NumPy batches on JAX devices, copied ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from feedline.abc.deferred import Target
from feedline.device.structure import mapped
from feedline.errors import BadOption


# Any: batches of any structure.
class JaxTarget(Target):
    """A device, or a sharding over several. JAX copies asynchronously, and keeps its sources alive meanwhile.

    Args:
        device: the destination of arrays.
        transform: called with each batch on the device, ahead of time; a function compiled by `jax.jit` does not block.
    """

    def __init__(self, device: object, transform: Callable[[Any], object] | None = None) -> None:
        if not isinstance(device, (jax.Device, jax.sharding.Sharding)):
            raise BadOption(
                f"device={device!r} is not a JAX device. Pass one of jax.devices(), or a sharding. For torch batches, "
                "use feedline.DataLoader."
            )
        self._device = device
        self._transform = transform

    def begin(self, batch: object) -> object:
        on_device = mapped(batch, (np.ndarray,), self._put)
        return on_device if self._transform is None else self._transform(on_device)

    def _put(self, array: NDArray[np.generic]) -> object:
        return array if array.dtype.hasobject or array.dtype.kind in "SUMmV" else jax.device_put(array, self._device)

    def deliver(self, begun: object) -> object:
        return begun
