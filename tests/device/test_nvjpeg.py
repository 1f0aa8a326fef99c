"""nvJPEG's C interface: which files fail, and which decoders are reused, with a stand-in for the library."""

from __future__ import annotations

import ctypes
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from feedline.device import nvjpeg

FILES = [b"good" * 3, b"bad!", b"good", b"good" * 2, b"bad!" * 2]
SIZES = np.array([[4, 2], [3, 5], [1, 1], [2, 2], [6, 1]])


class FakeLibrary:
    """A library that decodes a file by writing its length, and fails for batches with a bad file."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.created: list[int] = []
        self.batches: list[int] = []
        self.planes: list[tuple[int, int]] = []

    def nvjpegCreateEx(self, backend: int, *rest: Any) -> int:  # noqa: N802  as in the library
        self.created.append(backend)
        return self.code if backend == 3 else 0

    def nvjpegJpegStateCreate(self, handle: Any, state: Any) -> int:  # noqa: N802
        return 0

    def nvjpegDecodeBatchedInitialize(self, handle: Any, state: Any, count: int, *rest: int) -> int:  # noqa: N802
        return 0

    def nvjpegDecodeBatched(self, handle: Any, state: Any, *arrays: int) -> int:  # noqa: N802
        sources, lengths, targets, _ = arrays
        count = self.count
        self.batches.append(count)
        addresses = (ctypes.c_int64 * count).from_address(sources)
        sizes = (ctypes.c_int64 * count).from_address(lengths)
        if any(ctypes.string_at(addresses[place], 4) == b"bad!" for place in range(count)):
            return 4
        planes = np.ctypeslib.as_array((ctypes.c_int64 * (8 * count)).from_address(targets)).reshape(count, 8)
        for place in range(count):
            for color in range(3):
                assert planes[place, 4 + color] > 0
                ctypes.memset(int(planes[place, color]), sizes[place] + color, 1)
        return 0

    count = 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setattr(nvjpeg, "library", lambda: fake)
    monkeypatch.setattr(nvjpeg, "_idle", {0: deque()})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    decode = nvjpeg._Decoder.decode

    def counted(self: Any, sources: Any, lengths: Any, targets: Any) -> bool:
        fake.count = len(sources)
        return decode(self, sources, lengths, targets)

    monkeypatch.setattr(nvjpeg._Decoder, "decode", counted)
    return fake


def decoded(files: list[bytes], sizes: Any) -> tuple[list[int], list[int]]:
    """Return which files failed, and the first byte of each image."""
    data = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
    room = 3 * sizes[:, 0] * sizes[:, 1]
    places = np.cumsum([0, *room])[:-1]
    out = torch.zeros(int(room.sum()), dtype=torch.uint8)
    failed = nvjpeg.decode(data, np.cumsum([0, *map(len, files)]), out, places, sizes)
    return failed, [int(out[place]) for place in places]


def test_failing_files_are_found(library: FakeLibrary) -> None:
    failed, firsts = decoded(FILES, SIZES)
    assert failed == [1, 4]
    assert [firsts[place] for place in (0, 2, 3)] == [12, 4, 8]


def test_a_decoder_is_reused_unless_it_has_failed(library: FakeLibrary) -> None:
    for _ in range(3):
        decoded(FILES[2:4], SIZES[2:4])
    assert library.created == [3]
    decoded(FILES[:2], SIZES[:2])
    created = len(library.created)
    assert created > 1
    decoded(FILES[2:4], SIZES[2:4])
    assert len(library.created) == created


def test_a_gpu_without_decoding_units_uses_its_cores(library: FakeLibrary) -> None:
    library.code = 9
    assert decoded(FILES[2:4], SIZES[2:4])[0] == []
    assert library.created == [3, 2]
