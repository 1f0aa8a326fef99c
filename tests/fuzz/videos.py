"""Damaged videos: one target for each of the most common containers.

Neither container nor codec has checksums, so changed pixels cannot be detected. Truncated files must yield all frames
or an error, if their container declares its length.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from feedline import images, video
from feedline.errors import CorruptSource
from tests.fuzz.damage import TRUNCATE
from tests.video import files

_CLIP = video.Compose([video.EvenFrames(4), images.Resize(24), images.CenterCrop(24)])


# Any, throughout: samples of any form.
def make(container: str, codec: str, **options: Any) -> Callable[[Path], bytes]:
    """Return a function that writes a small video."""
    return lambda folder: files.encoded(container, codec, 24, width=64, height=48, **options)


def read(path: Path) -> list[Any]:
    """Scan a video, read a clip from it, and read it through a dataset, which keeps an index."""
    folder = video.VideoFolder(path.parent, "video", labels=None, transform=_CLIP, index=path.parent / "index")
    found = [len(video.Video(path)), folder[0]]
    try:
        return [*found, _CLIP(path.read_bytes())]
    except CorruptSource as exc:
        raise CorruptSource(f"{path}: {exc}") from exc


KINDS: dict[str, tuple[Callable[[Path], bytes], str, tuple[str, ...]]] = {
    "mp4": (make("mp4", "libx264"), ".mp4", (TRUNCATE,)),
    "mp4-fragments": (
        make("mp4", "libx264", muxing=files.options(movflags="frag_keyframe+empty_moov")),
        ".mp4",
        (),
    ),
    "mkv": (make("matroska", "libx264"), ".mkv", (TRUNCATE,)),
    "webm": (make("webm", "libvpx", options=files.options(deadline="realtime", cpu_used="8")), ".webm", (TRUNCATE,)),
    "avi": (make("avi", "mpeg4", options=()), ".avi", (TRUNCATE,)),
    "avi-h264": (make("avi", "libx264"), ".avi", (TRUNCATE,)),
    "ts": (make("mpegts", "mpeg2video", options=files.options(bf="2")), ".ts", ()),
}
"""How to make a file of each kind, its suffix, and the damage after which every frame must be right."""
