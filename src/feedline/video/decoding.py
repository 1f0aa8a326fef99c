"""Decodes chosen frames of a video, and as few others as possible.

Decoding begins at the last key frame before a wanted frame. Frames that no other frame needs are left out unless they
are wanted themselves: half of them in common H.264 files. Decoding ends as soon as the packets of all wanted frames are
in. Whether each frame was found is checked by its time, so a file that behaves differently is decoded again from an
earlier place, or raises an error; a wrong frame is never returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from feedline.errors import CorruptSource
from feedline.video.container import pyav, start_decoder
from feedline.video.frame_table import FrameTable

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_WORTH_A_SEEK = 4
"""Frames to leave out before it pays to seek to a later key frame. Guess, not measured."""
_BEFORE_S = 10
"""How much earlier to seek if the key frame was not found, in seconds. Guess, not measured."""
_SKIPPING = ("h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4")
"""Decoders that can leave out single frames; others apply the setting to all frames, or not at all."""


class FrameDecoder:
    """Decodes frames of one open file.

    Args:
        container: the file.
        stream: its video.
        table: its frames.
        name: its name in errors.
        threads: threads that FFmpeg may use; 0 lets FFmpeg choose.
    """

    def __init__(
        self, container: InputContainer, stream: VideoStream, table: FrameTable, name: str, threads: int
    ) -> None:
        self._container = container
        self._stream = stream
        self._table = table
        self._name = name
        self._decoder = start_decoder(stream, threads)
        self._can_skip = self._decoder.name in _SKIPPING

    def frames(self, positions: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Yield positions and their frames, in ascending order.

        Raises:
            CorruptSource: one of them cannot be decoded.
        """
        if self._table.is_counted:
            yield from self._count_frames(positions)
            return
        for run in self._runs(positions):
            yield from self._run(run)

    def _runs(self, positions: Sequence[int]) -> Iterator[list[int]]:
        """Split positions where it pays to seek."""
        run: list[int] = []
        for position in positions:
            if run and self._key_before(position) > run[-1] + _WORTH_A_SEEK:
                yield run
                run = []
            run.append(position)
        if run:
            yield run

    def _key_before(self, position: int) -> int:
        keys = self._table.keys
        return int(keys[np.searchsorted(keys, position, side="right") - 1])

    def _run(self, run: list[int]) -> Iterator[tuple[int, VideoFrame]]:
        stamps = self._table.stamps
        missing: dict[int | None, int] = {int(stamps[position]): position for position in run}
        nearest = self._key_before(run[0])
        # Some streams need more than one key frame before all of their frames are right.
        for begin in dict.fromkeys((nearest, self._key_before(max(nearest - 1, 0)), 0)):
            try:
                for frame in self._from_key(int(stamps[begin]), missing):
                    yield missing.pop(frame.pts), frame
            except pyav().FFmpegError:
                if not begin:
                    raise
            if not missing:
                return
        raise CorruptSource(
            f"{self._name} cannot be decoded as a video: frame {min(missing.values())} of {len(stamps)} is missing or "
            "damaged. The file is damaged, or was changed while it was read. Write or copy it again."
        )

    def _from_key(self, key: int, wanted: Iterable[int | None]) -> Iterator[VideoFrame]:
        """Decode from a key frame on, and yield the wanted frames."""
        decoder = self._decoder
        left, ahead = set(wanted), set(wanted)
        skips = False
        for packet in self._packets_from(key):
            stamp = packet.pts
            if self._can_skip and skips is (stamp in ahead):
                skips = not skips
                decoder.skip_frame = "NONREF" if skips else "DEFAULT"
            ahead.discard(stamp)
            for frame in self._decoded(packet, is_leading=stamp is not None and stamp < key):
                if frame.pts in left and not frame.is_corrupt:
                    left.discard(frame.pts)
                    yield frame
            if not left:
                return
            if not ahead:
                break
        for frame in decoder.decode(None):
            if frame.pts in left and not frame.is_corrupt:
                left.discard(frame.pts)
                yield frame

    def _decoded(self, packet: Packet[VideoStream], *, is_leading: bool) -> list[VideoFrame]:
        try:
            found: list[VideoFrame] = self._decoder.decode(packet)
        except (ValueError, OSError):
            # Shown before the key frame, but stored after it: it may need frames that were not decoded.
            if is_leading:
                return []
            raise
        return found

    def _packets_from(self, key: int) -> Iterator[Packet[VideoStream]]:
        """Seek to a key frame and yield packets from there on."""
        first = int(self._table.stamps[0])
        well_before = int(_BEFORE_S / self._table.unit)
        for target in (key, max(first, key - well_before), first - well_before):
            self._container.seek(target, stream=self._stream, backward=True)
            packets = self._container.demux(self._stream)
            for packet in packets:
                if not packet.is_keyframe or packet.pts is None or packet.pts < key:
                    continue
                if packet.pts > key:
                    break  # too far: not every format can seek to a key frame exactly
                yield packet
                yield from (packet for packet in packets if packet.size)
                return

    def _count_frames(self, positions: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        wanted = set(positions)
        number = 0
        for packet in self._container.demux(self._stream):
            for frame in self._decoder.decode(packet):
                if number in wanted:
                    if frame.is_corrupt:
                        raise CorruptSource(f"Frame {number} of {self._name} is damaged. Write or copy the file again.")
                    wanted.discard(number)
                    yield number, frame
                if not wanted:
                    return
                number += 1
        raise CorruptSource(
            f"{self._name} has {number} frames, but had frame {min(wanted)} when it was scanned: it has changed. "
            "Scan it again, and do not write to files that are being read."
        )
