"""Slots in pinned memory: copies to the GPU start from them directly, at the full rate of the link.

The pages of a slot are registered with CUDA when the slot first holds a batch, and again when a batch outgrows the
registered size. When the training loop drops a batch, an event is recorded for all streams of every device that the
program uses (before CUDA 12.5: for the current stream of each). The slot is not written again before these events have
completed, so the next batch never overwrites the source of a copy with `non_blocking=True`, on any device.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from feedline.errors import TransportError
from feedline.memory.arena import Arena
from feedline.memory.slot_table import Device

_GRANULE = 2 << 20
"""Registration is rounded up to this size, so that batches of similar sizes do not register again and again."""


class SlotPinner(Device):
    """Keeps the slots of one arena registered with CUDA."""

    def __init__(self, arena: Arena) -> None:
        self._base = arena.address
        self._slot_bytes = arena.slot_bytes
        self._registered: dict[int, int] = {}
        self._events: dict[tuple[int, int], torch.cuda.Event] = {}
        self._last: dict[int, list[torch.cuda.Event]] = {}
        arena.follow(self)
        weakref.finalize(arena.mapping, _unregister, self._base, self._slot_bytes, self._registered).atexit = False

    def on_growth(self, slot: int, size: int) -> None:
        wanted = min(-(-(size + size // 8) // _GRANULE) * _GRANULE, self._slot_bytes)
        known = self._registered.get(slot, 0)
        if size <= known:
            return
        address = self._base + slot * self._slot_bytes
        runtime = torch.cuda.cudart()
        if known:
            runtime.cudaHostUnregister(address)
            del self._registered[slot]
        code = int(runtime.cudaHostRegister(address, wanted, 0))
        if code != 0:
            raise TransportError(
                f"CUDA refused to pin {wanted >> 20} MiB for batches (error {code}). The usual cause is the limit on "
                "locked memory or on the memory of this container. Use pin_memory=False, a smaller batch or fewer "
                "workers."
            )
        self._registered[slot] = wanted

    def on_release(self, slot: int) -> None:
        start = self._base + slot * self._slot_bytes
        if any(start <= address < start + self._slot_bytes for address in _known.settled):
            self._last.pop(slot, None)
            return
        self._last[slot] = [self._record(slot, device) for device in _devices_in_use()]

    def _record(self, slot: int, device: int) -> torch.cuda.Event:
        event = self._events.get((slot, device))
        if event is None:
            event = self._events[slot, device] = torch.cuda.Event()
        if device == torch.cuda.current_device():
            _record_everything(event)
        else:
            with torch.cuda.device(device):
                _record_everything(event)
        return event

    def may_reuse(self, slot: int) -> bool:
        return all(event.query() for event in self._last.get(slot, ()))

    def shrink(self, slot: int) -> bool:
        # The device would still copy from registered pages after they no longer belong to the file.
        if not self.may_reuse(slot):
            return False
        if self._registered.pop(slot, 0):
            runtime = torch.cuda.cudart()
            runtime.cudaHostUnregister(self._base + slot * self._slot_bytes)
        return True


class _Known(threading.local):
    settled: Sequence[int] = ()


_known = _Known()


@contextmanager
def settled(addresses: Sequence[int]) -> Iterator[None]:
    """Within this context, slots with these addresses are free as soon as they are dropped: no copies are pending."""
    before, _known.settled = _known.settled, addresses
    try:
        yield
    finally:
        _known.settled = before


def _devices_in_use() -> list[int]:
    """Return the devices that this process has started to use: copies may go to any of them."""
    count, current = torch.cuda.device_count(), torch.cuda.current_device()
    driver = _driver()
    if count == 1 or driver is None:
        return [current]
    return [device for device in range(count) if device == current or _is_active(driver, device)]


def _is_active(driver: ctypes.CDLL, device: int) -> bool:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    code = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    return bool(code != 0 or active.value)  # if unknown, it may be in use


def _record_everything(event: torch.cuda.Event) -> None:
    """Record an event for the current stream of the current device, and for pending work on its other streams.

    The copy may have started on a stream other than the one that is current when the batch is dropped. Drivers from
    CUDA 12.5 on can record an event for a whole context; with older ones, the event covers only the current stream.
    """
    event.record()
    driver = _driver()
    if driver is None or not hasattr(driver, "cuCtxRecordEvent"):
        return
    context = ctypes.c_void_p()
    if driver.cuCtxGetCurrent(ctypes.byref(context)) == 0 and context.value:
        driver.cuCtxRecordEvent(context, ctypes.c_void_p(event.cuda_event))


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _unregister(base: int, slot_bytes: int, registered: dict[int, int]) -> None:
    runtime = torch.cuda.cudart()
    for slot in registered:
        runtime.cudaHostUnregister(base + slot * slot_bytes)
