from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.video import Video
from tests.video.files import HALF, QUARTER, encoded, every_frame, options, rotated


def test_bytes_of_any_type_and_files_give_the_same_frames(tmp_path: Path) -> None:
    data = encoded()
    path = tmp_path / "a:b.mp4"  # FFmpeg would take it for an address
    path.write_bytes(data)
    right = every_frame(data)[[4, 17]]
    forms: list[Any] = [data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), path, str(path)]
    for file in forms:
        assert np.array_equal(Video(file).frames([4, 17]), right)


def test_positions_in_any_form() -> None:
    data = encoded()
    right, video = every_frame(data), Video(data)
    for positions in ([-1, 0, 7, 7], [[3, 3], [40, -50]], 5, np.array([], int)):
        assert np.array_equal(video.frames(positions), right[positions]) or np.size(positions) == 0
    assert video.frames([]).shape == (0, 0, 0, 3)
    for position in (50, -51):
        with pytest.raises(IndexError, match="50 frames"):
            video.frames([position])
    with pytest.raises(TypeError, match="not integers"):
        video.frames([0.5])


@pytest.mark.parametrize(("matrix", "turns"), [(QUARTER, 3), (HALF, 2)])
def test_a_rotation_is_applied(matrix: Any, turns: int) -> None:
    data = encoded()
    upright = np.rot90(every_frame(data)[[8]], turns, axes=(1, 2))
    assert np.array_equal(Video(rotated(data, matrix)).frames([8]), upright)


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a folder"):
        len(Video(tmp_path))
    with pytest.raises(BadOption, match="is an address"):
        Video("https://host/a.mp4")
    with pytest.raises(BadOption, match="threads"):
        Video(b"", threads=-1)
    video = Video(tmp_path / "absent.mp4")
    assert "absent.mp4" in repr(video)
    again = pickle.loads(pickle.dumps(video))
    with pytest.raises(SourceError, match=r"absent\.mp4"):
        len(again)


@pytest.mark.parametrize(
    "content",
    [b"", b"text" * 1000, encoded()[:2000], encoded(muxing=options(movflags="faststart"))[:9000]],
)
def test_the_error_names_a_damaged_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.mp4"
    path.write_bytes(content)
    with pytest.raises(CorruptSource, match=str(path)):
        Video(path).frames([0])


def test_rejects_a_file_without_video(tmp_path: Path) -> None:
    import av

    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(CorruptSource, match=r"sound\.mp4 has no video stream"):
        len(Video(path))


def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "secret.ts").write_bytes(encoded(container="mpegts"))
    path = tmp_path / "list.mp4"
    path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:{tmp_path}/secret.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(CorruptSource, match=r"list\.mp4"):
        len(Video(path))
    path.write_text(f"ffconcat version 1.0\nfile {tmp_path}/secret.ts\n")
    with pytest.raises(CorruptSource, match=r"list\.mp4"):
        len(Video(path))


def test_rejects_large_frames_before_decoding_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.video.container.MOST_PIXELS", 64 * 64)
    with pytest.raises(CorruptSource, match="video"):
        Video(encoded()).frames([0])


def test_rejects_large_results_before_allocating_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "50000")
    with pytest.raises(CorruptSource, match="FEEDLINE_MAX_SAMPLE_BYTES"):
        Video(encoded()).frames(np.arange(50))
    assert Video(encoded()).frames([0]).shape == (1, 64, 96, 3)


def test_many_files_leave_nothing_open(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.mp4", tmp_path / "bad.mp4"
    good.write_bytes(encoded())
    bad.write_bytes(encoded()[:-300])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        Video(good).frames([5])
        with pytest.raises(CorruptSource):
            Video(bad).frames([5])
    next(Video(good).decoded(np.arange(10)))  # not read to the end
    assert len(os.listdir("/proc/self/fd")) == before


def test_rejects_a_size_that_changes_within_a_video(monkeypatch: pytest.MonkeyPatch) -> None:
    small = encoded("mpegts")
    large = encoded("mpegts", width=128, height=96)
    video = Video(small + large)
    with pytest.raises(CorruptSource):
        video.frames([0, len(video) - 1])
