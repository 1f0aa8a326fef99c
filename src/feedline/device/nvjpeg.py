"""nvJPEG: decodes JPEG files on an NVIDIA GPU, through the C interface of NVIDIA's library.

The library comes with torchvision, with the package nvidia-nvjpeg and with the CUDA toolkit. feedline calls it directly
rather than through `torchvision.io.decode_jpeg`. That function decodes one batch at a time per program, which on an
H200 takes as long as a training step of ResNet-18: training then waits whenever anything else is late. Here each thread
has a decoder of its own, and a batch is decoded into one block of memory without a Python object per image.

A decoder must not be used by two threads at once, so threads borrow decoders from a pool. ctypes releases the GIL
during a call, which returns after all files have been decoded.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_HARDWARE, _ON_CORES = 3, 2
"""nvJPEG's backends: dedicated decoding units (A100, H100, L4 and later), and kernels on any GPU."""
_PLANES = 3
"""The output format with one plane each for red, green and blue."""
_CHANNELS = 4
"""Planes in nvJPEG's description of an image."""

_Numbers = NDArray[np.int64]


def is_available() -> bool:
    """True if nvJPEG is installed, and torch has a GPU."""
    return library() is not None and torch.cuda.is_available()


# Any: the library, or None.
@functools.cache
def library() -> Any:
    """Return nvJPEG with the types of its functions declared; None if it is not installed."""
    for path in _candidates():
        try:
            found = ctypes.CDLL(path)
        except OSError:
            continue
        pointer, number = ctypes.c_void_p, ctypes.c_int
        found.nvjpegCreateEx.argtypes = [number, pointer, pointer, ctypes.c_uint, pointer]
        found.nvjpegJpegStateCreate.argtypes = [pointer, pointer]
        found.nvjpegJpegStateDestroy.argtypes = [pointer]
        found.nvjpegDestroy.argtypes = [pointer]
        found.nvjpegDecodeBatchedInitialize.argtypes = [pointer, pointer, number, number, number]
        found.nvjpegDecodeBatched.argtypes = [pointer] * 6
        return found
    return None


def _candidates() -> Iterator[str]:
    for package, pattern in (
        ("torchvision", "../torchvision.libs/libnvjpeg*.so*"),
        ("nvidia", "*/lib/libnvjpeg.so*"),
    ):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            yield from map(str, sorted(Path(folder).glob(pattern)))
    yield from (f"libnvjpeg.so{version}" for version in (".13", ".12", ".11", ""))  # of the system


def decode(files: torch.Tensor, offsets: _Numbers, out: torch.Tensor, places: _Numbers, sizes: _Numbers) -> list[int]:
    """Decode JPEG files on the current stream of the current device.

    Do not reuse the memory of `files` and `out` before everything that uses the result has finished: nvJPEG has streams
    of its own, which wait for nothing that is pending on the current one.

    Args:
        files: the files, concatenated, in host memory (uint8).
        offsets: where each file begins, and where the last one ends.
        out: memory on the device (uint8), to which the red, green and blue plane of each image are written.
        places: where each image begins in `out`.
        sizes: width and height of each image.

    Returns:
        The numbers of the files that could not be decoded.
    """
    idle = _idle[torch.cuda.current_device()]
    try:
        decoder = idle.pop()
    except IndexError:
        decoder = _Decoder()
    sources = files.data_ptr() + offsets[:-1]
    targets = np.zeros((len(sources), 2 * _CHANNELS), np.int64)
    areas = sizes[:, 0] * sizes[:, 1]
    for color in range(3):
        targets[:, color] = out.data_ptr() + places + color * areas
        targets[:, _CHANNELS + color] = sizes[:, 0]
    failed: list[int] = []
    pending = [(0, len(sources))]
    while pending:
        first, last = pending.pop()
        if decoder.decode(sources[first:last], np.diff(offsets[first : last + 1]), targets[first:last]):
            continue
        decoder = _Decoder()  # the state of the other one is unknown
        if last - first == 1:
            failed.append(first)
        else:  # nvJPEG does not name the file that failed
            middle = (first + last) // 2
            pending += [(first, middle), (middle, last)]
    idle.append(decoder)
    return sorted(failed)


class _Decoder:
    """A decoder for one batch at a time, on the device that is current when it is created."""

    def __init__(self) -> None:
        self._library = library()
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._count = 0
        for backend in (_HARDWARE, _ON_CORES):
            code = self._library.nvjpegCreateEx(backend, None, None, 0, ctypes.byref(self._handle))
            if code == 0:
                break
        code = code or self._library.nvjpegJpegStateCreate(self._handle, ctypes.byref(self._state))
        if code != 0:
            raise RuntimeError(
                f"nvJPEG cannot be used on this GPU (status {code}). Its memory may be full; otherwise the driver may "
                'be too old for the library. Decode on the CPU instead: feedline.images.Compose(..., decode="cpu").'
            )

    def decode(self, sources: _Numbers, lengths: _Numbers, targets: _Numbers) -> bool:
        """Decode files given by their addresses and lengths; False if one of them failed."""
        count = len(sources)
        if count != self._count:
            self._count = count
            if self._library.nvjpegDecodeBatchedInitialize(self._handle, self._state, count, 1, _PLANES) != 0:
                return False
        sources, lengths, targets = map(np.ascontiguousarray, (sources, lengths, targets))
        stream = torch.cuda.current_stream()
        code: int = self._library.nvjpegDecodeBatched(
            self._handle, self._state, *(array.ctypes.data for array in (sources, lengths, targets)), stream.cuda_stream
        )
        return code == 0

    def __del__(self) -> None:
        # At interpreter exit, CUDA may be gone already; the process returns everything anyway.
        if self._state.value is not None and not sys.is_finalizing():
            self._library.nvjpegJpegStateDestroy(self._state)
            self._library.nvjpegDestroy(self._handle)


_idle: defaultdict[int, deque[_Decoder]] = defaultdict(deque)
"""Decoders that no thread is using, by device. There are as many as were ever in use at the same time."""
