"""Which frames a video has and where decoding can begin: found by reading its packets, without decoding them.

Frames are known by their presentation times. That is enough to find any frame exactly, wherever decoding began, as long
as every packet has a time of its own. The packets of some old files have none: their frames are counted by decoding all
of them, and are always decoded from the beginning.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource
from feedline.system.sizes import check_size
from feedline.video.container import Origin, opened, shown_name, start_decoder

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

_SLACK_S = 1e-6
"""Times this close count as equal: seconds are rounded, the clock of a file is not."""
_HEAD = struct.Struct("<?BqqqqI")
"""Whether frames are counted, bytes per step, the unit's two parts, the first stamp, the common step, the keys."""


class Timeline:
    """The times of a video's frames, in the order in which they are shown.

    A clip sampler receives one and returns the positions of the frames that it wants.

    Args:
        stamps: the presentation time of each frame, in units of `unit`, in ascending order.
        unit: seconds in one unit.

    Example:
        >>> timeline = Timeline(np.arange(0, 5000, 500), Fraction(1, 5000))
        >>> len(timeline), timeline.duration_s, timeline.fps
        (10, 1.0, 10.0)
        >>> timeline.at([0, 0.25, 7]).tolist()
        [0, 2, 9]
    """

    def __init__(self, stamps: NDArray[np.int64], unit: Fraction) -> None:
        self._stamps = stamps
        self._unit = unit

    def __len__(self) -> int:
        return len(self._stamps)

    @property
    def times_s(self) -> NDArray[np.float64]:
        """Seconds from the first frame to each frame."""
        times: NDArray[np.float64] = (self._stamps - self._stamps[0]) * float(self._unit)
        return times

    @property
    def duration_s(self) -> float:
        """Seconds from the first frame to the end of the last, which is assumed to be shown as long as the others."""
        count = len(self)
        return float((self._stamps[-1] - self._stamps[0]) * self._unit) * count / (count - 1) if count > 1 else 0.0

    @property
    def fps(self) -> float:
        """Frames per second, on average; 0 for a single frame."""
        duration_s = self.duration_s
        return len(self) / duration_s if duration_s else 0.0

    def at(self, seconds: object) -> NDArray[np.int64]:
        """Return the positions of the frames shown at these times; outside the video, its first or last frame."""
        times = np.asarray(seconds, np.float64) + _SLACK_S
        found = np.searchsorted(self.times_s, times, side="right") - 1
        return np.clip(found, 0, len(self) - 1).astype(np.int64)

    def __repr__(self) -> str:
        return f"Timeline({len(self)} frames in {self.duration_s:.2f} s)"


@dataclass(frozen=True, eq=False)
class FrameTable:
    """The frames of a video, in the order in which they are shown."""

    stamps: NDArray[np.int64]
    """The presentation time of each frame, ascending; its number if frames are counted."""
    keys: NDArray[np.int64]
    """Positions of the key frames: from there on, frames can be decoded without those before."""
    unit: Fraction
    """Seconds in one unit of time."""
    is_counted: bool = False
    """True if frames are found by counting them from the beginning."""

    @property
    def timeline(self) -> Timeline:
        """When each frame is shown."""
        return Timeline(self.stamps, self.unit)

    def encode(self) -> bytes:
        """Return the table as bytes: a few for a constant frame rate, otherwise up to four for each frame."""
        steps = np.diff(self.stamps)
        step = int(steps[0]) if len(steps) else 1
        if (steps == step).all():
            width, tail = 0, struct.pack("<q", len(self.stamps))
        else:
            width = next(size for size in (2, 4, 8) if steps.max() < 1 << 8 * size - 1)
            tail = steps.astype(f"<i{width}").tobytes()
        head = _HEAD.pack(
            self.is_counted, width, *self.unit.as_integer_ratio(), int(self.stamps[0]), step, len(self.keys)
        )
        return head + self.keys.astype("<u4").tobytes() + tail

    @classmethod
    def decode(cls, data: bytes) -> FrameTable:
        """Return the table that `encode` wrote."""
        is_counted, width, over, under, first, step, key_count = _HEAD.unpack_from(data)
        keys = np.frombuffer(data, "<u4", key_count, _HEAD.size).astype(np.int64)
        place = _HEAD.size + 4 * key_count
        if width:
            steps = np.frombuffer(data, f"<i{width}", -1, place).astype(np.int64)
            stamps = np.concatenate([[first], first + np.cumsum(steps)])
        else:
            (count,) = struct.unpack_from("<q", data, place)
            stamps = first + step * np.arange(count, dtype=np.int64)
        return cls(stamps, keys, Fraction(over, under), is_counted)


def scan(origin: Origin) -> FrameTable:
    """Read the packets of a file and return its frames.

    Raises:
        CorruptSource: it is damaged, truncated or not a video.
        SourceError: there is no such file.
    """
    with opened(origin, is_checked=False) as (container, stream):
        found = _of_packets(container, stream, shown_name(origin))
    return _counted(origin) if found is None else found


def _of_packets(container: InputContainer, stream: VideoStream, name: str) -> FrameTable | None:
    """Return the frames of an open file; None if its packets have no times, or not one each."""
    unit = stream.time_base
    if not unit:
        raise CorruptSource(f"{name} does not declare the unit of its times. It is damaged. Write or copy it again.")
    _check_whole(container, stream, name)
    is_avi, codec = container.format.name == "avi", stream.codec_context.name
    listed = sum(entry.size > 0 for entry in getattr(stream, "index_entries", ())) if is_avi else 0
    is_timed = not is_avi or codec not in ("h264", "hevc")  # these have the times of decoding, which is another order
    hides_frames = codec == "vp8"
    count, stamps, keys = 0, [], []
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise CorruptSource(f"{name} ends within a frame: it is cut off. Write or copy it again.")
        count += packet.size > 0
        if not packet.size or packet.is_discard or (hides_frames and not memoryview(packet)[0] & 0x10):
            continue
        stamp = packet.pts
        if stamp is None:
            is_timed = False
            continue
        stamps.append(stamp)
        if packet.is_keyframe:
            keys.append(stamp)
    if count < listed:  # FFmpeg skips frames that it cannot find
        raise CorruptSource(f"{name} has {count} of the {listed} frames in its index. It is damaged. Copy it again.")
    if not is_timed:
        return None
    if not keys:
        raise CorruptSource(f"{name} has no key frame to start decoding from. It is damaged, cut off or empty.")
    order = np.unique(np.array(stamps, np.int64))
    if len(order) < len(stamps):
        return None
    order = order[np.searchsorted(order, min(keys)) :]  # frames before the first key frame cannot be decoded
    return FrameTable(order, np.searchsorted(order, np.unique(keys)), unit)


def _check_whole(container: InputContainer, stream: VideoStream, name: str) -> None:
    """Compare the places of frames that a header lists with the size of the file, if PyAV shows them."""
    entries = getattr(stream, "index_entries", ())
    if len(entries) and container.format.name.startswith("mov"):
        last = max(range(len(entries)), key=lambda place: entries[place].pos)
        check_size(f"The last frame of {name}", entries[last].pos + entries[last].size, held=container.size)


def _counted(origin: Origin) -> FrameTable:
    """Return the frames of a file by decoding all of them."""
    with opened(origin) as (container, stream):
        decoder = start_decoder(stream, 1)
        rate = stream.average_rate or stream.guessed_rate or 25
        count = sum(len(decoder.decode(packet)) for packet in container.demux(stream))
    if not count:
        raise CorruptSource(f"{shown_name(origin)} has no frames that can be decoded. It is damaged, cut off or empty.")
    return FrameTable(np.arange(count), np.zeros(1, np.int64), 1 / Fraction(rate), is_counted=True)
