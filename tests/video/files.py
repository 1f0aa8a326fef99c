"""Small videos with motion for the tests, in many containers and codecs."""

from __future__ import annotations

import functools
import io
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT, RATE = 96, 64, 30
X264 = {"preset": "veryfast", "bf": "3", "x264-params": "keyint=12:min-keyint=12:scenecut=0:b-pyramid=normal"}


# Any, throughout: types of PyAV, which are not checked.
def pictures(count: int, *, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """Return frames that all differ: a moving image with noise."""
    generator = np.random.default_rng(count)
    y, x = np.mgrid[: height + count, : width + 2 * count]
    large = np.stack([x * 5 % 256, y * 7 % 256, (x + y) * 3 % 256], -1).astype(np.uint8)
    moving = np.stack([large[step : step + height, 2 * step : 2 * step + width] for step in range(count)])
    noisy: NDArray[np.uint8] = moving // 2 + generator.integers(0, 40, moving.shape, np.uint8)
    return noisy


@functools.cache
def encoded(
    container: str = "mp4",
    codec: str = "libx264",
    count: int = 50,
    *,
    gop: int = 12,
    options: tuple[tuple[str, str], ...] = tuple(X264.items()),
    muxing: tuple[tuple[str, str], ...] = (),
    stamps: tuple[int, ...] | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> bytes:
    """Return a video file; `stamps` are the times of its frames in milliseconds."""
    import av

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "video")
        _write(av, path, container, codec, pictures(count, width=width, height=height), options, muxing, gop, stamps)
        return path.read_bytes()


def _write(
    av: Any,
    path: Path,
    container: str,
    codec: str,
    frames: NDArray[np.uint8],
    options: Iterable[tuple[str, str]],
    muxing: Iterable[tuple[str, str]],
    gop: int,
    stamps: Sequence[int] | None,
) -> None:
    with av.open(str(path), "w", format=container, options=dict(muxing)) as file:
        stream = file.add_stream(codec, rate=RATE, options=dict(options))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt, stream.gop_size = "yuv420p", gop
        if stamps is not None:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            if stamps is not None:
                frame.pts, frame.time_base = stamps[number], Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def options(**given: str) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", "-"), value) for name, value in given.items())


def x264(**given: str) -> tuple[tuple[str, str], ...]:
    """Return the options of x264 for tests, with some of them changed."""
    params: Mapping[str, str] = {"keyint": "12", "min-keyint": "12", "scenecut": "0", "bframes": "3", **given}
    return (("preset", "veryfast"), ("x264-params", ":".join(f"{name}={value}" for name, value in params.items())))


def every_frame(data: bytes) -> NDArray[np.uint8]:
    """Decode a whole file from its start with PyAV alone, as the reference for every clip."""
    import av

    with av.open(io.BytesIO(data)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


def rotated(data: bytes, matrix: Sequence[int]) -> bytes:
    """Return an MP4 file with another display matrix in its track header, as cameras write it."""
    place = data.index(b"tkhd") + 4 + 40
    return data[:place] + struct.pack(">9i", *matrix) + data[place + 36 :]


QUARTER = (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
HALF = (-(1 << 16), 0, 0, 0, -(1 << 16), 0, 0, 0, 1 << 30)
