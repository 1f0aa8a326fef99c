from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("av")

from feedline.errors import CorruptSource
from feedline.video.frame_table import FrameTable, Timeline, scan
from tests.video.files import encoded, options


@given(
    st.integers(-(1 << 62), 1 << 60),
    st.lists(st.integers(1, 1 << 40) | st.integers(1, 50), max_size=40),
    st.integers(1, 1 << 31),
    st.booleans(),
)
def test_a_decoded_table_equals_the_encoded_one(first: int, steps: list[int], under: int, is_counted: bool) -> None:
    stamps = np.concatenate([[first], first + np.cumsum(np.array(steps, np.int64))]).astype(np.int64)
    keys = np.arange(0, len(stamps), 3)
    table = FrameTable(stamps, keys, Fraction(1001, under), is_counted)
    again = FrameTable.decode(table.encode())
    assert np.array_equal(again.stamps, stamps)
    assert np.array_equal(again.keys, keys)
    assert (again.unit, again.is_counted) == (table.unit, is_counted)


@pytest.mark.parametrize("container", ["mp4", "h264", "avi"])
def test_what_a_scan_finds(container: str) -> None:
    table = scan(encoded(container))
    assert len(table.stamps) == 50
    assert table.is_counted == (container != "mp4")  # if packets have no times
    if container == "mp4":
        assert table.keys.tolist() == [0, 12, 24, 36, 48]
        assert table.timeline.fps == pytest.approx(30)


WHOLE: dict[str, Callable[[], bytes]] = {
    "mp4": lambda: encoded(muxing=options(movflags="faststart")),
    "mov": lambda: encoded("mov", "mpeg4", options=()),
    "matroska": lambda: encoded("matroska"),
    "webm": lambda: encoded("webm", "libvpx", options=options(deadline="realtime", cpu_used="8")),
    "avi": lambda: encoded("avi", "mpeg4", options=()),
    "avi-h264": lambda: encoded("avi"),
}
"""Files that declare their length: all that docs/guide/video.md promises to notice when they are cut off."""


@pytest.mark.parametrize("container", WHOLE)
def test_a_truncated_file_is_rejected_wherever_it_is_cut(container: str) -> None:
    data = WHOLE[container]()
    right = len(scan(data).stamps)
    with pytest.raises(CorruptSource, match=f"deo of {len(data) // 2} bytes"):
        scan(data[: len(data) // 2])
    for size in [*range(len(data) // 20, len(data), len(data) // 20), len(data) - 1]:
        with contextlib.suppress(CorruptSource):
            assert len(scan(data[:size]).stamps) == right  # nothing but the end of its tables is missing


def test_a_damaged_avi_file_does_not_lose_frames() -> None:
    data = encoded("avi", "mpeg4", options=())
    places = [at.start() for at in re.compile(b"00dc").finditer(data, data.index(b"movi"), data.index(b"idx1"))]
    assert len(places) == 50
    for place in places[1::8]:
        for offset in (0, 2, 4, 5):  # the name of the part, and its length
            damaged = bytearray(data)
            damaged[place + offset] ^= 0x40
            with contextlib.suppress(CorruptSource):
                assert len(scan(bytes(damaged)).stamps) >= 50  # FFmpeg may take the index for more frames


@pytest.mark.parametrize(
    "data", [b"x", b"no video at all, only text" * 100, b"\0\0\0\x18ftypmp42", b"#EXTM3U\nhttp://x/"]
)
def test_rejects_data_that_is_not_a_video(data: bytes) -> None:
    with pytest.raises(CorruptSource, match=f"{len(data)} bytes"):
        scan(data)


steps = st.lists(st.integers(1, 10_000), min_size=1, max_size=50)


@given(steps, st.integers(-(10**12), 10**12))
def test_each_frame_is_shown_at_its_time(gaps: list[int], first: int) -> None:
    stamps = first + np.cumsum(gaps)
    timeline = Timeline(stamps, Fraction(1, 90_000))
    assert timeline.at(timeline.times_s).tolist() == list(range(len(stamps)))
    assert timeline.times_s[0] == 0


@given(steps, st.floats(-5, 5))
def test_the_frame_shown_is_the_last_one_that_started(gaps: list[int], second: float) -> None:
    timeline = Timeline(np.cumsum(gaps), Fraction(1, 1000))
    place = int(timeline.at(second))
    began = [one for one in range(len(timeline)) if timeline.times_s[one] <= second + 1e-6]
    assert place == (began[-1] if began else 0)


def test_a_single_frame_has_no_rate() -> None:
    timeline = Timeline(np.array([7]), Fraction(1, 10))
    assert (len(timeline), timeline.duration_s, timeline.fps) == (1, 0.0, 0.0)
    assert timeline.at([0, 3]).tolist() == [0, 0]
    assert repr(timeline) == "Timeline(1 frames in 0.00 s)"
