"""Decodes audio files with soundfile (libsndfile): the header first, then only the wanted frames."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.audio.containers import FORMATS, Read, check_complete, check_pages, format_of
from feedline.datasets.framework.paths import checked_path
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceError
from feedline.images.medium import FileBytes, is_encoded
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.options import checked_number
from feedline.system.sizes import check_size, most_bytes

AudioSource = str | os.PathLike[str] | FileBytes | BinaryIO
"""An audio file: its path, its bytes, or a file object that can seek."""

Samples = NDArray[np.float32]

_MOST_RATE = 10_000_000
_MOST_FRAMES = 1 << 48
"""From here on, a number of frames means that the file does not declare one."""
_BLOCK = 1 << 20
"""Values decoded in one call: no more memory is allocated than the file has sound for."""
_MP3_SLACK = 2 * 1152
"""Frames that an MP3 may lack at its end. Encoders differ in how they count the first and the last ones."""
_OPUS_RATE = 48_000
"""Granules of Opus count frames at this rate, whichever rate the sound has."""
_SETTLING_S = 0.1
"""How much sound before a clip a decoder needs, at most: 0.08 s for Opus."""


@dataclass(frozen=True)
class AudioInfo:
    """What the header of an audio file says.

    Example:
        >>> AudioInfo("FLAC", rate=16000, channels=1, frames=24000).seconds
        1.5
    """

    format: str
    """Such as "WAV", "FLAC", "OGG" or "MP3"."""
    rate: int
    """Frames per second."""
    channels: int
    frames: int

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.frames / self.rate


def info(source: AudioSource) -> AudioInfo:
    """Read the header of an audio file, and no sound.

    Args:
        source: the path of the file, its bytes, or a file object that can seek.

    Raises:
        CorruptSource: it is damaged, cut off, empty, or not an audio file.
        SourceError: it cannot be read.
        MissingExtra: soundfile is not installed.

    Example:
        >>> import io, numpy as np, soundfile
        >>> file = io.BytesIO()
        >>> soundfile.write(file, np.zeros(24000), 16000, format="FLAC")
        >>> info(file.getvalue())
        AudioInfo(format='FLAC', rate=16000, channels=1, frames=24000)
    """
    with AudioFile(source) as file:
        return file.info


def decode_audio(source: AudioSource, *, start: float = 0.0, seconds: float | None = None) -> tuple[Samples, int]:
    """Decode an audio file, or only some seconds of it.

    Args:
        source: the path of the file, its bytes, or a file object that can seek.
        start: where to begin, in seconds. The decoder seeks there.
        seconds: how much to decode; None for the rest of the file. There is less at the end of the file.

    Returns:
        The sound as a float32 array with the axes channel and frame, mostly from -1 to 1, and its rate in Hz.

    Raises:
        BadOption: `start` or `seconds` is negative or not a number.
        CorruptSource: the file is damaged, cut off, empty, or not an audio file; or it is larger than
            `$FEEDLINE_MAX_SAMPLE_BYTES` allows.
        SourceError: it cannot be read.
        MissingExtra: soundfile is not installed.

    Example:
        >>> import io, numpy as np, soundfile
        >>> file = io.BytesIO()
        >>> soundfile.write(file, np.zeros((24000, 2)), 16000, format="WAV")
        >>> sound, rate = decode_audio(file, start=0.25, seconds=0.5)
        >>> sound.shape, rate
        ((2, 8000), 16000)
    """
    start = checked_number("start", start, low=0)
    seconds = None if seconds is None else checked_number("seconds", seconds, low=0)
    with AudioFile(source) as file:
        frames, rate = file.info.frames, file.info.rate
        first = min(round(start * rate), frames)
        last = frames if seconds is None else min(first + round(seconds * rate), frames)
        return np.ascontiguousarray(file.read(first, last).T), rate


class AudioFile:
    """An audio file that is open, for a `with` statement. Its header is already read and checked.

    Args:
        source: as in `decode_audio`.

    Raises:
        CorruptSource, SourceError, MissingExtra: as in `info`.
    """

    _sound: Any = None  # Any: a `soundfile.SoundFile`, once it is open
    _fd: int | None = None
    _stream: _Stream | None = None
    _bytes: Read
    _size: int

    def __init__(self, source: AudioSource) -> None:
        soundfile = require("soundfile", extra="audio", purpose="Decoding audio files")
        self._errors = soundfile.SoundFileError
        self.name = _name_of(source)
        """Names the file in errors."""
        try:
            self._open(source, soundfile)
            self.info = self._checked_info()
        except BaseException:
            self.close()
            raise

    def _open(self, source: AudioSource, soundfile: ModuleType) -> None:
        handle: int | _Stream
        if isinstance(source, (str, os.PathLike)):
            handle = self._fd = fd = _open_fd(checked_path(source))
            self._size = size = os.fstat(fd).st_size

            def read(place: int, count: int) -> bytes:
                return os.pread(fd, count, place)

        else:
            handle = self._stream = stream = _Stream(source)
            self._size = size = stream.seek(0, os.SEEK_END)

            def read(place: int, count: int) -> bytes:
                before = stream.tell()
                stream.seek(place)
                found = stream.read(count)
                stream.seek(before)
                return found

        self._bytes = read
        with self._reading():
            head = read(0, 12)
            format_ = format_of(head)
            if format_ is None:
                known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
                what = f"does not begin like {known}, but with {head!r}" if head else "is empty"
                raise CorruptSource(f"{self.name} {what}. Write or copy it again, convert it, or leave it out.")
            check_complete(self.name, format_, size, read)
            if isinstance(handle, _Stream):
                handle.seek(0)
            self._sound = soundfile.SoundFile(handle, closefd=False)

    def _checked_info(self) -> AudioInfo:
        sound = self._sound
        format_ = "WAV" if sound.format == "WAVEX" else sound.format
        found = AudioInfo(format_, sound.samplerate, sound.channels, sound.frames)
        if format_ not in FORMATS or not 0 < found.rate <= _MOST_RATE or found.channels < 1:
            raise CorruptSource(
                f"{self.name} declares {found.rate} Hz and {found.channels} channels as {format_}: it is damaged, or "
                "in a format that is not supported. Write or copy it again, or convert it."
            )
        if found.frames < 1:
            raise CorruptSource(f"{self.name} holds no sound: its header declares 0 frames. Leave it out.")
        if found.frames >= _MOST_FRAMES:
            raise CorruptSource(
                f"{self.name} does not declare how many frames it has, as files that were written to a pipe do not. "
                "Write it again to a file; for FLAC, decoding and encoding it once more helps."
            )
        return found

    def read(self, start: int, stop: int) -> Samples:
        """Decode the frames from `start` to before `stop`, which the file must have.

        Returns an array with the axes frame and channel. Raises CorruptSource: the file is damaged there, or the frames
        take more memory than `$FEEDLINE_MAX_SAMPLE_BYTES` allows.
        """
        channels, left = self.info.channels, stop - start
        check_size(lambda: f"The sound in {self.name}", left * channels * 4, limit=most_bytes())
        blocks: list[Samples] = []
        with self._reading():
            if self.info.format == "OGG":
                self._check_pages(start, stop)
            if start:
                self._sound.seek(start)
            while left > 0:
                block = self._sound.read(min(left, max(1, _BLOCK // channels)), dtype="float32", always_2d=True)
                if not len(block):
                    blocks.append(self._ending(left, stop))
                    break
                blocks.append(block)
                left -= len(block)
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks) if blocks else np.empty((0, channels), np.float32)

    def _check_pages(self, start: int, stop: int) -> None:
        """Check the pages that hold these frames, and those that the decoder needs before them."""
        rate, frames = self.info.rate, self.info.frames
        scale = _OPUS_RATE / rate if self._sound.subtype == "OPUS" else 1
        first = (frames - start + _SETTLING_S * rate) * scale
        check_pages(self.name, self._size, self._bytes, round(first), round((frames - stop) * scale))

    def _ending(self, left: int, stop: int) -> Samples:
        """Return silence for the frames that an MP3 may lack."""
        if self.info.format == "MP3" and left <= _MP3_SLACK and stop > self.info.frames - _MP3_SLACK:
            return np.zeros((left, self.info.channels), np.float32)
        raise CorruptSource(
            f"{self.name} declares {self.info.frames} frames, but its sound ends {left} frames before frame {stop}: it "
            "is cut off or damaged. Write or copy it again, or leave it out."
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn errors of libsndfile, and of the user's file object, into errors that name the file."""
        failed: Exception | None = None
        try:
            yield
        except (FeedlineError, self._errors, AssertionError, OverflowError, ValueError) as exc:
            failed = exc
        error = None if self._stream is None else self._stream.error
        if error is not None and not isinstance(error, ValueError):
            raise SourceError(f"{self.name} cannot be read: {words(error)}.") from error
        if isinstance(failed, FeedlineError):
            raise failed
        failed = failed or error
        if failed is not None:
            why = getattr(failed, "error_string", words(failed)).rstrip(".")
            raise CorruptSource(
                f"{self.name} cannot be decoded as audio: {why}. It is damaged or cut off. Write or copy it again, or "
                "leave it out."
            ) from failed

    def close(self) -> None:
        """Close the file; a file object of the user's stays open."""
        sound, self._sound = self._sound, None
        if sound is not None:
            sound.close()
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> AudioFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Stream:
    """A file object for libsndfile, which calls it through callbacks: an exception there is printed, and lost.

    The first error is kept; after it, the file seems to have ended.
    """

    def __init__(self, source: FileBytes | BinaryIO) -> None:
        self._file: Any = io.BytesIO(source) if is_encoded(source) else source
        self.error: Exception | None = None

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        try:
            if whence == os.SEEK_SET and place < 0:
                raise ValueError("it refers to a place before its beginning")
            self._file.seek(place, whence)
        except Exception as exc:
            self.error = self.error or exc
        return self.tell()

    def tell(self) -> int:
        try:
            return int(self._file.tell())
        except Exception as exc:
            self.error = self.error or exc
            return 0

    def read(self, count: int) -> bytes:
        try:
            return b"" if self.error else bytes(self._file.read(count))
        except Exception as exc:
            self.error = self.error or exc
            return b""

    # Any: a buffer of cffi, which has no types.
    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _open_fd(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would wait for its writer
    except OSError as exc:
        raise SourceError(exc.errno, f"The audio file cannot be opened ({exc.strerror})", path) from exc
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SourceError(f"{path} is a folder or another thing that is not a file, so there is no audio to decode.")
    return fd


def _name_of(source: object) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if is_encoded(source):
        return f"An audio file of {len(source)} bytes"
    if not all(hasattr(source, name) for name in ("read", "seek", "tell")):
        raise BadOption(
            f"A {type(source).__name__} is not an audio file. Give the path of one, its bytes, or a file object that "
            "can seek."
        )
    return str(getattr(source, "name", "An audio file without a name"))
