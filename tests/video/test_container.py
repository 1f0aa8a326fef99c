from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feedline.errors import MissingExtra, SourceError
from feedline.video import CenterClip, Compose, Video


def test_the_package_is_needed_only_for_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    clip = Compose([CenterClip(4)])
    with pytest.raises(MissingExtra, match=r"feedline\[video\]"):
        clip(Video(b"anything"))


def test_importing_the_folder_loads_no_decoder() -> None:
    code = "import sys, feedline.video; print([name for name in ('av', 'torch', 'PIL', 'cv2') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not hasattr(sys, "getuid") and sys.platform == "win32", reason="needs file permissions")
def test_a_file_without_read_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    path = tmp_path / "closed.mp4"
    path.write_bytes(b"1")
    monkeypatch.setattr("os.access", lambda *given: False)  # root may read everything
    with pytest.raises(SourceError, match=r"closed\.mp4 cannot be read: Permission denied"):
        len(Video(path))


def test_a_cover_image_is_not_mistaken_for_the_video(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "covered.mp4"
    with av.open(str(path), "w") as file:
        video = file.add_stream("libx264", rate=10, width=64, height=48, pix_fmt="yuv420p")
        cover = file.add_stream("mjpeg", rate=1, width=40, height=40, pix_fmt="yuvj420p")
        cover.disposition = av.stream.Disposition.attached_pic
        for stream, count, shape in ((cover, 1, (40, 40, 3)), (video, 20, (48, 64, 3))):
            for _ in range(count):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros(shape, np.uint8), "rgb24")))
            file.mux(stream.encode())
    path.write_bytes(b"".join(map(_tags_first, _boxes(path.read_bytes()))))
    with av.open(str(path)) as file:
        assert file.streams.video[0].name == "mjpeg"
    assert len(Video(path)) == 20
    assert Video(path).frames([7]).shape == (1, 48, 64, 3)


def _boxes(data: bytes) -> Iterator[bytes]:
    while data:
        length = int.from_bytes(data[:4], "big")
        yield data[:length]
        data = data[length:]


def _tags_first(box: bytes) -> bytes:
    """Return the header of a file with its tags, including the cover, before its streams."""
    if box[4:8] != b"moov":
        return box
    places, inside = {b"mvhd": 0, b"udta": 1}, list(_boxes(box[8:]))
    inside.sort(key=lambda inner: places.get(inner[4:8], 2))
    return box[:8] + b"".join(inside)
