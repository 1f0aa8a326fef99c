"""What every worker process does first, whatever connects it to the training process."""

from __future__ import annotations

import ctypes
import os
import signal

from feedline.engines.runner import Runner
from feedline.types import WorkerIdentity, WorkerSpec

_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1


def settle(spec: WorkerSpec, number: int) -> Runner:
    """Become worker `number`: its signals, its heap, its dataset."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training loop, which then ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_heap_warm()
    return Runner(spec, WorkerIdentity(number, spec.worker_count, spec.base_seed + number, spec.dataset))


def keep_heap_warm() -> None:
    """Tell glibc to keep freed memory: samples and batches of the same size come again and again.

    Without this every large array is mapped anew and all its pages fault, which costs more than filling it.
    """
    if os.name != "posix":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return  # another C library: its own habits apply
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most glibc accepts
    mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(2**31 - 1).value)
