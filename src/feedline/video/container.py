"""Opens video files with PyAV, which brings FFmpeg.

FFmpeg reads playlists that name other files and addresses, and many rare formats. So it may open only the containers
listed here, and only the file that it is given. The size of frames is limited, whatever the file declares, and a
damaged frame is an error instead of a guess.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

from feedline.errors import CorruptSource, FeedlineError, SourceError
from feedline.images.medium import FileBytes
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.video.declared import check_declared

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,ogg,asf,ivf,gif,h264,hevc,m4v,obu,mxf,nut,dv"
)
"""FFmpeg's names of the formats that may be opened."""
MOST_PIXELS = 1 << 25
"""Of a frame: enough for 8K."""
_COVER = 0x400
"""FFmpeg's mark of a stream that is an image in the tags of a file."""
_QUICK_PROBE = {"skip_frame": "all", "probesize": "65536"}
"""Most headers describe their streams. For the others, FFmpeg decodes the first frames of a file twice."""

Origin = str | os.PathLike[str] | FileBytes
"""A file: its path, or its content."""


def pyav() -> ModuleType:
    """Return the module `av`. Raises MissingExtra: it is not installed."""
    return require("av", extra="video", purpose="Decoding video")


def shown_name(origin: Origin) -> str:
    """Return the name of a file for errors."""
    return os.fspath(origin) if isinstance(origin, (str, os.PathLike)) else f"A video of {len(origin)} bytes"


@contextmanager
def opened(origin: Origin, *, is_checked: bool = True) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a file for the duration of a `with` block; returns the container and its video stream.

    Errors of FFmpeg inside the block become `CorruptSource`, which names the file. `is_checked` says that an earlier
    scan has checked its tables.
    """
    av = pyav()
    name = shown_name(origin)
    try:
        source = _source(origin, name)
        if not is_checked:
            with source() as file:
                check_declared(file, name)
        container, stream = _opened(av, origin, source, name)
        try:
            yield container, stream
        finally:
            container.close()
    except FeedlineError:
        raise
    # The others are raised by PyAV's Python parts for times that make no sense.
    except (av.FFmpegError, OverflowError, ZeroDivisionError) as exc:
        raise CorruptSource(
            f"{name} cannot be decoded as a video: {words(exc)}. It is damaged, cut off, or not a video. Write or copy "
            "it again."
        ) from exc


def _opened(
    av: ModuleType, origin: Origin, source: Callable[[], BinaryIO], name: str
) -> tuple[InputContainer, VideoStream]:
    for probe in (_QUICK_PROBE, {}):
        container = _open(av, origin, source, probe)
        try:
            stream = next((one for one in container.streams.video if _is_shown(one)), None)
            if stream is not None and stream.codec_context.width and stream.codec_context.height:
                return container, stream
            if probe is not _QUICK_PROBE:
                what = "no video stream" if stream is None else "no frame size"
                raise CorruptSource(f"{name} has {what} that FFmpeg can decode. It is damaged, or not a video.")
        except BaseException:
            container.close()
            raise
        container.close()
    raise AssertionError  # the second attempt returned or raised


def _is_shown(stream: VideoStream) -> bool:
    """True for a stream that can be decoded and is not a cover: an image in the tags of a file."""
    disposition = getattr(stream, "disposition", None)
    return not getattr(disposition, "value", 0) & _COVER and stream.codec_context is not None


def _source(origin: Origin, name: str) -> Callable[[], BinaryIO]:
    """Return a function that opens the file to read its bytes."""
    if not isinstance(origin, (str, os.PathLike)):
        return lambda: io.BytesIO(origin)
    try:
        size = os.stat(origin).st_size
    except OSError as exc:
        raise SourceError(f"{name} cannot be read: {exc.strerror or exc}.") from exc
    if os.path.isdir(origin):
        raise SourceError(f"{name} is a folder, not a video. VideoFolder reads the videos in it.")
    if not size:
        raise CorruptSource(f"{name} is empty. Write or copy it again.")
    if not os.access(origin, os.R_OK):
        raise SourceError(f"{name} cannot be read: Permission denied.")
    return lambda: open(origin, "rb")


def _open(av: ModuleType, origin: Origin, source: Callable[[], BinaryIO], probe: dict[str, str]) -> InputContainer:
    options = {"format_whitelist": CONTAINERS, "max_pixels": str(MOST_PIXELS), **probe}
    if isinstance(origin, (str, os.PathLike)):
        # FFmpeg takes "a:b.mp4" for an address; with the protocol in front, it takes the rest as it is.
        options["protocol_whitelist"] = "file"
        file: str | BinaryIO = f"file:{os.path.abspath(origin)}"
    else:
        file = source()
    container: InputContainer = av.open(file, options=options, metadata_errors="replace")
    return container


def start_decoder(stream: VideoStream, threads: int) -> VideoCodecContext:
    """Return the decoder of a stream, with its options set. Call it before the first frame is decoded."""
    decoder = stream.codec_context
    decoder.options = {"max_pixels": str(MOST_PIXELS), "err_detect": "explode"}
    decoder.thread_count = threads
    decoder.thread_type = "NONE" if threads == 1 else "AUTO"
    return decoder
