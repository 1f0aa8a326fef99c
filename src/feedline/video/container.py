"""Opens video files with PyAV, which brings FFmpeg.

FFmpeg reads playlists that name other files and addresses, and many rare formats. So it may open only the containers
listed here, and only the file that it is given. The size of frames is limited, whatever the file declares, and a
damaged frame is an error instead of a guess.

FFmpeg's reader of MP4 and QuickTime files allocates memory for every frame that a header declares, and a header of a
few bytes can declare billions. A frame takes at least a byte, so a file cannot have more frames than bytes; nor a table
more entries than fit into it. Matroska, WebM and AVI files declare their length, and FFmpeg accepts files whose end is
missing.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

from feedline.errors import CorruptSource, FeedlineError, SourceError
from feedline.images.medium import FileBytes
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.sizes import check_size

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

_INSIDE = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"edts")
"""Boxes that contain the boxes with tables."""
_FIRST = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"sidx", b"moof", b"pnot")
_ENTRY_BYTES = {b"stts": 8, b"ctts": 8, b"stsc": 12, b"stco": 4, b"co64": 8, b"stss": 4, b"stps": 4, b"elst": 12}
"""Tables whose entries are in the file, and the least that an entry takes."""
_MOST_BOXES = 1_000_000
"""A recording of a day in fragments of a second has half as many."""
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_RIFF, _UNKNOWN = b"RIFF", 0xFFFFFFFF
"""AVI files written to a pipe do not know their length."""

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


# -- declared sizes ----------------------------------------------------------------------------------------------------


def check_declared(file: BinaryIO, name: str) -> None:
    """Check a file that is at its beginning; leave formats other than MP4, Matroska and AVI to FFmpeg.

    Raises:
        CorruptSource: it declares more than it has.
    """
    head = file.read(8)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if head[4:] in _FIRST:
        _check_boxes(file, size, name)
    elif head[:4] == _EBML:
        _check_segment(file, size, name)
    elif head[:4] == _RIFF:
        _check_riff(file, size, name)


def _check_boxes(file: BinaryIO, size: int, name: str) -> None:
    ends = [size]
    for number in itertools.count():
        check_size(name, number, limit=_MOST_BOXES, option="the limit in feedline.video.container", unit="boxes")
        place = file.tell()
        if place + 8 > ends[-1]:
            file.seek(ends.pop())
            if not ends:
                return
            continue
        head = file.read(16)
        length, kind = int.from_bytes(head[:4], "big"), head[4:8]
        body = place + 8
        if length == 1:
            length, body = int.from_bytes(head[8:16], "big"), place + 16
        end = ends[-1] if length < body - place else min(place + length, ends[-1])
        if kind in _INSIDE:
            ends.append(end)
            file.seek(body)
            continue
        if kind in (b"stsz", b"stz2", b"trun"):
            file.seek(body)
            _check_samples(kind, file.read(12), size, name)
        elif kind in _ENTRY_BYTES:
            file.seek(body + 4)
            declared = int.from_bytes(file.read(4), "big") * _ENTRY_BYTES[kind]
            check_size(f"The table {kind.decode()!r} of {name}", declared, held=max(0, end - body - 8))
        file.seek(end)


def _check_samples(kind: bytes, head: bytes, size: int, name: str) -> None:
    what = f"The table {kind.decode()!r} of {name}"
    if kind == b"trun":
        check_size(what, int.from_bytes(head[4:8], "big"), held=size, unit="frames")
        return
    each = int.from_bytes(head[4:8], "big") if kind == b"stsz" else 0
    check_size(what, int.from_bytes(head[8:12], "big") * max(1, each), held=size)


def _check_segment(file: BinaryIO, size: int, name: str) -> None:
    """Compare the length of a Matroska segment, which follows the header, with the file."""
    file.seek(len(_EBML))
    header = _read_length(file)
    if header is None:
        return
    file.seek(header, os.SEEK_CUR)
    if file.read(len(_SEGMENT)) != _SEGMENT:
        return
    length = _read_length(file)
    if length is not None:
        check_size(name, length, held=size - file.tell())


def _read_length(file: BinaryIO) -> int | None:
    """Read a number as Matroska writes lengths; None if the length is unknown, as in a live recording."""
    first = file.read(1)[:1]
    if not first or not first[0]:
        return None
    more = 8 - first[0].bit_length()
    bits = 7 * (more + 1)
    value = int.from_bytes(first + file.read(more), "big") & ((1 << bits) - 1)
    return None if value == (1 << bits) - 1 else value


def _check_riff(file: BinaryIO, size: int, name: str) -> None:
    """Compare the lengths of an AVI file's parts with the file: it begins a new part after each gigabyte or so."""
    place = 0
    while file.seek(place) < size and (head := file.read(8))[:4] == _RIFF:
        length = int.from_bytes(head[4:], "little")
        if length == _UNKNOWN:
            return
        check_size(name, length, held=max(0, size - place - 8))
        place += 8 + length + length % 2
