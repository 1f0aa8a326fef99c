"""Slots in pinned memory: copies to the GPU start from them directly, at the full rate of the link.

Pages of a slot are registered with CUDA when the slot first holds a batch, and again when a batch outgrows what was
registered. When the training loop drops a batch, an event is recorded for all streams of the current device (before
CUDA 12.5: for its current stream); the slot is not written again before that event has happened, so a copy with
`non_blocking=True` is not overtaken by the next batch.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

import torch

from feedline.errors import TransportError
from feedline.transport.arena import Arena
from feedline.transport.slot import Device

_GRANULE = 2 << 20
"""Registration is rounded up to this, so that batches of nearly the same size do not register again and again."""


class SlotPinner(Device):
    """Keeps the slots of one arena registered with CUDA."""

    def __init__(self, arena: Arena) -> None:
        self._base = arena.address
        self._slot_bytes = arena.slot_bytes
        self._registered: dict[int, int] = {}
        self._events: dict[tuple[int, int], Any] = {}
        self._last: dict[int, Any] = {}
        arena.follow(self)
        weakref.finalize(arena.mapping, _unregister, self._base, self._slot_bytes, self._registered).atexit = False

    def on_growth(self, slot: int, size: int) -> None:
        wanted = min(-(-(size + size // 8) // _GRANULE) * _GRANULE, self._slot_bytes)
        known = self._registered.get(slot, 0)
        if size <= known:
            return
        address = self._base + slot * self._slot_bytes
        runtime: Any = torch.cuda.cudart()
        if known:
            runtime.cudaHostUnregister(address)
            del self._registered[slot]
        code = int(runtime.cudaHostRegister(address, wanted, 0))
        if code != 0:
            raise TransportError(
                f"CUDA refused to pin {wanted >> 20} MiB for batches (error {code}). The limit on locked memory or the "
                "memory of this container is the usual cause: use pin_memory=False, a smaller batch or fewer workers."
            )
        self._registered[slot] = wanted

    def on_release(self, slot: int) -> None:
        device = torch.cuda.current_device()
        event = self._events.get((slot, device))
        if event is None:
            event = self._events[slot, device] = torch.cuda.Event()
        event.record()
        _record_everything(event)
        self._last[slot] = event

    def may_reuse(self, slot: int) -> bool:
        event = self._last.get(slot)
        return event is None or bool(event.query())

    def shrink(self, slot: int) -> bool:
        # Pages that are registered and not the file's any more would still be what the device copies from.
        if not self.may_reuse(slot):
            return False
        if self._registered.pop(slot, 0):
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(self._base + slot * self._slot_bytes)
        return True


def _record_everything(event: Any) -> None:
    """Let an event also stand for what other streams of the current device have under way.

    The copy may have been started on another stream than the one that is current when the batch is dropped. Drivers
    from CUDA 12.5 on can record an event for a whole context; with older ones the event stands for the current stream.
    """
    driver = _driver()
    if driver is None:
        return
    context = ctypes.c_void_p()
    if driver.cuCtxGetCurrent(ctypes.byref(context)) == 0 and context.value:
        driver.cuCtxRecordEvent(context, ctypes.c_void_p(event.cuda_event))


@functools.cache
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if hasattr(driver, "cuCtxRecordEvent") else None


def _unregister(base: int, slot_bytes: int, registered: dict[int, int]) -> None:
    runtime: Any = torch.cuda.cudart()
    for slot in registered:
        runtime.cudaHostUnregister(base + slot * slot_bytes)
