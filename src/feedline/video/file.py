"""One video, whose frames are decoded on demand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.paths import checked_path
from feedline.errors import CorruptSource
from feedline.images.header import file_bytes
from feedline.images.medium import FileBytes
from feedline.system.options import checked_count, checked_number
from feedline.system.sizes import check_size, most_bytes
from feedline.video.container import opened, pyav, shown_name
from feedline.video.decoding import FrameDecoder
from feedline.video.frame_table import FrameTable, Timeline, scan

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.reformatter import VideoReformatter

Pixels = NDArray[np.uint8]
"""With the axes height, width and color."""
_MOST_THREADS = 256
_THREADED_CONVERSION = 17
"""Since this version, PyAV converts frames with as many threads as there are cores unless told otherwise."""


class Video:
    """A video file. Only the frames that you request are decoded.

    It opens the file for each call and keeps nothing open, so it can be pickled and used from several threads. Frames
    are numbered in the order in which they are shown, and are upright: a rotation that the file declares is applied.

    Args:
        file: the path of a file, or its bytes.
        threads: threads that FFmpeg may use for this video. Workers already decode several videos at a time, so leave
            it at 1 unless you read a video outside of a loader; 0 lets FFmpeg choose.
        table: its frames, if an earlier `feedline.video.scan` found them.

    Raises:
        BadOption: an option is invalid.

    Example:
        >>> import io, av, numpy as np
        >>> file = io.BytesIO()
        >>> with av.open(file, "w", format="mp4") as container:
        ...     stream = container.add_stream("libx264", rate=10, width=32, height=16, pix_fmt="yuv420p")
        ...     for shade in range(20):
        ...         frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), shade * 10, np.uint8), "rgb24")
        ...         container.mux(stream.encode(frame))
        ...     container.mux(stream.encode())
        >>> video = Video(file.getvalue())
        >>> video.timeline
        Timeline(20 frames in 2.00 s)
        >>> video.frames([0, 5, 19]).shape
        (3, 16, 32, 3)
    """

    def __init__(
        self, file: str | os.PathLike[str] | FileBytes, *, threads: int = 1, table: FrameTable | None = None
    ) -> None:
        self._origin: str | bytes = checked_path(file) if isinstance(file, (str, os.PathLike)) else file_bytes(file)
        self._threads = checked_threads(threads)
        self._table = table

    @property
    def timeline(self) -> Timeline:
        """When each frame is shown; found by reading the whole file once, without decoding it.

        Raises:
            CorruptSource: the file is damaged, truncated or not a video.
            SourceError: there is no such file.
        """
        return self._frame_table().timeline

    def _frame_table(self) -> FrameTable:
        if self._table is None:
            self._table = scan(self._origin)
        return self._table

    def frames(self, positions: object) -> NDArray[np.uint8]:
        """Decode frames; returns a uint8 array with the axes frame, height, width and color.

        Args:
            positions: of the frames, in any order and with repeats. Negative ones count from the end.

        Raises:
            IndexError: a position is out of range.
            CorruptSource: the file is damaged, truncated or not a video, or a frame is larger than 8K.
        """
        wanted = np.asarray(positions)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise TypeError(f"frames are numbered, but positions={positions!r} are not integers")
        every = np.where(wanted < 0, wanted + len(self), wanted).astype(np.int64).ravel()
        out = np.empty((0, 0, 0, 3), np.uint8)
        for rows, pixels in self.decoded(every):
            if not len(out):
                check_size(shown_name(self._origin), every.size * pixels.size, limit=most_bytes())
                out = np.empty((len(every), *pixels.shape), np.uint8)
            out[rows] = pixels
        return out.reshape(*wanted.shape, *out.shape[1:])

    def decoded(
        self, positions: NDArray[np.int64], *, threads: int | None = None
    ) -> Iterator[tuple[tuple[NDArray[np.int64], ...], Pixels]]:
        """Decode frames one by one, in the order of the video, and convert each to RGB.

        Yields where in `positions` a frame was requested, as an index array for each of its axes, and the pixels, which
        have memory of their own.

        Args:
            positions: of the frames, from 0, in any order and with repeats.
            threads: of FFmpeg, if other than those of this video.
        """
        table, name = self._frame_table(), shown_name(self._origin)
        wanted = np.unique(positions).tolist()
        if not wanted:
            return
        if wanted[0] < 0 or wanted[-1] >= len(table.stamps):
            wrong = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise IndexError(f"frame {wrong} is out of range for a video of {len(table.stamps)} frames")
        with opened(self._origin) as (container, stream):
            decoder = FrameDecoder(container, stream, table, name, self._threads if threads is None else threads)
            converter = pyav().video.reformatter.VideoReformatter()
            shape = None
            for position, frame in decoder.frames(wanted):
                pixels = _upright(_rgb(converter, frame), frame)
                if pixels.shape != (shape := shape or pixels.shape):
                    raise CorruptSource(
                        f"{name} changes the size of its frames from {shape[:2]} to {pixels.shape[:2]} at frame "
                        f"{position}. Convert it to one size."
                    )
                yield np.nonzero(positions == position), pixels

    def __len__(self) -> int:
        return len(self.timeline)

    def __repr__(self) -> str:
        origin = self._origin
        return f"Video(<{len(origin)} bytes>)" if isinstance(origin, bytes) else f"Video({origin!r})"


def checked_threads(threads: object) -> int:
    """Return the option `threads=`, which is 0 to let FFmpeg choose."""
    return int(checked_number("threads", checked_count("threads", threads, 0), high=_MOST_THREADS))


def _rgb(converter: VideoReformatter, frame: VideoFrame) -> Pixels:
    """Convert a frame to RGB, in the calling thread. The array keeps FFmpeg's memory alive."""
    one_thread = {"threads": 1} if int(pyav().__version__.partition(".")[0]) >= _THREADED_CONVERSION else {}
    # Any: the stubs of PyAV declare no buffer.
    plane: Any = converter.reformat(frame, format="rgb24", **one_thread).planes[0]
    return np.ndarray((frame.height, frame.width, 3), np.uint8, plane, 0, (plane.line_size, 3, 1))


def _upright(pixels: Pixels, frame: VideoFrame) -> Pixels:
    """Apply the rotation that a file declares, which cameras record instead of turning pixels."""
    turns = round(getattr(frame, "rotation", 0) / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels
