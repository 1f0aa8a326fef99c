"""The main invariant: frame i of a clip is frame i of the whole file, decoded from its start."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("av")

from feedline.errors import CorruptSource
from feedline.video import Video
from feedline.video.container import opened
from feedline.video.decoding import FrameDecoder
from feedline.video.frame_table import FrameTable, scan
from tests.video.files import encoded, every_frame, options, x264

VARIABLE = tuple(np.cumsum([17 if number % 7 else 180 for number in range(50)]).tolist())
LATE = tuple(3_600_000 + 33 * number for number in range(50))
REALTIME = options(deadline="realtime", cpu_used="8", lag_in_frames="16", auto_alt_ref="1")

# Any: arguments of `encoded`.
FILES: dict[str, dict[str, Any]] = {
    "B-frames": {},
    "B-frames in Matroska": {"container": "matroska"},
    "B-frames in a transport stream": {"container": "mpegts"},
    "B-frames in FLV": {"container": "flv"},
    "open GOP": {"options": x264(**{"open-gop": "1", "b-pyramid": "normal"})},
    "open GOP in Matroska": {"container": "matroska", "options": x264(**{"open-gop": "1"})},
    "periodic intra refresh": {"options": x264(**{"intra-refresh": "1", "bframes": "0"})},
    "one key frame": {"options": x264(keyint="250"), "gop": 250},
    "only key frames": {"options": x264(keyint="1"), "gop": 1},
    "no B-frames": {"options": x264(bframes="0")},
    "variable rate": {"stamps": VARIABLE},
    "variable rate in Matroska": {"container": "matroska", "stamps": VARIABLE},
    "starts after an hour": {"container": "matroska", "stamps": LATE},
    "starts after an hour in a transport stream": {"container": "mpegts", "stamps": LATE},
    "fragments": {"muxing": options(movflags="frag_keyframe+empty_moov")},
    "MPEG-4": {"codec": "mpeg4", "options": ()},
    "MPEG-4 in AVI": {"container": "avi", "codec": "mpeg4", "options": ()},
    "MPEG-4 with B-frames in AVI": {"container": "avi", "codec": "mpeg4", "options": options(bf="2")},
    "H.264 in AVI": {"container": "avi"},
    "MPEG-2": {"container": "mpeg", "codec": "mpeg2video", "options": options(bf="2")},
    "MPEG-2 in a transport stream": {"container": "mpegts", "codec": "mpeg2video", "options": options(bf="2")},
    "no container": {"container": "h264"},
    "H.265": {"codec": "libx265", "options": options(preset="ultrafast", x265_params="log-level=none:keyint=12")},
    "VP8": {"container": "webm", "codec": "libvpx", "options": REALTIME},
    "VP9": {"container": "webm", "codec": "libvpx-vp9", "options": REALTIME},
    "WMV": {"container": "asf", "codec": "wmv2", "options": ()},
}


@pytest.mark.parametrize(
    "name", [*list(FILES)[:4], *(pytest.param(name, marks=pytest.mark.slow) for name in list(FILES)[4:])]
)
def test_frames_equal_those_of_the_whole_file(name: str) -> None:
    data = encoded(**FILES[name])
    right = every_frame(data)
    video = Video(data)
    assert len(video) == len(right) == 50

    @settings(max_examples=12)
    @given(st.lists(st.integers(0, 49), min_size=1, max_size=6))
    def check(positions: list[int]) -> None:
        assert np.array_equal(video.frames(positions), right[positions])

    check()
    for threads in (0, 1, 2):
        assert np.array_equal(Video(data, threads=threads).frames(np.arange(50)), right)
    for begin in range(0, 34, 3):
        assert np.array_equal(video.frames(np.arange(begin, begin + 16, 2)), right[begin : begin + 16 : 2])


@pytest.mark.parametrize(
    ("container", "codec"),
    [("mpegts", "mpeg2video"), ("mpeg", "mpeg2video"), ("flv", "libx264"), ("asf", "wmv2"), ("m4v", "mpeg4")],
)
def test_a_file_cut_off_without_a_declared_length_gives_right_frames_or_an_error(container: str, codec: str) -> None:
    data = encoded(container, codec, 20, options=options(bf="2") if "mpeg2" in codec else (), width=64, height=48)
    right = {frame.tobytes() for frame in Video(data).frames(np.arange(20))}
    for size in range(len(data) // 10, len(data), len(data) // 10):
        video = Video(data[:size])
        with contextlib.suppress(CorruptSource):
            assert {frame.tobytes() for frame in video.frames(np.arange(len(video)))} <= right


def decoded_packets(data: bytes, positions: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Count the packets that the decoder receives, and those of them that it may skip."""
    import av

    with opened(data) as (container, stream):
        decoder = FrameDecoder(container, stream, scan(data), "a video", 1)
        given = skipped = 0
        real = decoder._decoder

        class Counting:
            skip_frame: Literal["DEFAULT", "NONREF"] = "DEFAULT"

            def decode(self, packet: Any) -> Any:
                nonlocal given, skipped
                given += packet is not None
                skipped += self.skip_frame == "NONREF"
                real.skip_frame = self.skip_frame
                return real.decode(packet)

        monkeypatch.setattr(decoder, "_decoder", Counting())
        frames = list(decoder.frames(positions))
    assert [position for position, _ in frames] == positions
    assert all(isinstance(frame, av.VideoFrame) for _, frame in frames)
    return given, skipped


def test_decoding_starts_at_the_key_frame_and_ends_with_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(options=x264(bframes="0"), count=50)  # key frames at 0, 12, 24, ...
    assert decoded_packets(data, [26, 28], monkeypatch) == (5, 3)
    assert decoded_packets(data, [0], monkeypatch) == (1, 0)
    assert decoded_packets(data, [11, 12], monkeypatch) == (13, 11)
    assert decoded_packets(data, [0, 48], monkeypatch) == (2, 0)


def test_a_table_of_another_file_is_an_error() -> None:
    table = scan(encoded(count=60))
    with pytest.raises(CorruptSource, match=r"frame 5\d of 60 is missing"):
        Video(encoded(count=50), table=table).frames([58])
    counted = FrameTable(np.arange(60), np.zeros(1, np.int64), table.unit, is_counted=True)
    with pytest.raises(CorruptSource, match="has 50 frames, but had frame 58"):
        Video(encoded(count=50), table=counted).frames([58])
