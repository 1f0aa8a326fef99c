from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from feedline import images, video
from feedline.errors import BadOption, CorruptSource
from feedline.video.field import is_video, video_field
from tests.video.files import encoded, options

CLIP = video.Compose([video.CenterClip(4), images.Resize(16)])
JPEG = b"\xff\xd8\xff\xe0 and so on"


@pytest.mark.parametrize(
    "data",
    [
        encoded(),
        encoded("matroska"),
        encoded("mpegts"),
        encoded("flv"),
        encoded("h264"),
        encoded("avi", "mpeg4", options=()),
        encoded("mpeg", "mpeg2video", options=()),
        encoded("asf", "wmv2", options=()),
        encoded("webm", "libvpx", options=options(deadline="realtime", cpu_used="8")),
    ],
)
def test_videos_are_recognised(data: bytes) -> None:
    assert is_video(data)
    assert is_video(np.frombuffer(data, np.uint8))
    assert is_video({"bytes": data, "path": "a.mp4"})


@pytest.mark.parametrize("value", ["a.mp4", b"text", 3, None, JPEG, np.zeros((4, 4, 3), np.uint8), {"bytes": None}])
def test_other_values_are_not_recognised(value: Any) -> None:
    assert not is_video(value)


# Any: samples of any form.
@pytest.mark.parametrize(
    "sample",
    [
        {"mp4": encoded(), "json": {"a": 1}, "jpg": JPEG},
        (encoded(), 3, "text"),
        [3, encoded()],
        {"video": {"bytes": encoded(), "path": None}, "label": 7},
        {"video": video.Video(encoded()), "label": 7},
    ],
)
def test_the_video_of_a_sample_is_found(sample: Any) -> None:
    field: Any = video_field(sample)
    result = CLIP(sample)
    assert type(result) is type(sample)
    assert result[field].shape == (4, 16, 24, 3)
    others = [name for name in (sample if isinstance(sample, dict) else range(len(sample))) if name != field]
    assert all(result[name] == sample[name] for name in others)


def test_a_field_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(encoded())
    assert CLIP.on("where")({"where": str(path), "mp4": encoded()})["where"].shape == (4, 16, 24, 3)
    assert CLIP.on(1)((encoded(), path))[1].shape == (4, 16, 24, 3)
    assert CLIP(path).shape == (4, 16, 24, 3)
    assert CLIP.on("a")({"a": {"bytes": None, "path": str(path)}})["a"].shape == (4, 16, 24, 3)
    assert np.shape(CLIP.on("a")({"a": [encoded(), encoded()]})["a"]) == (2, 4, 16, 24, 3)


def test_errors_name_the_fields() -> None:
    with pytest.raises(BadOption, match="Several fields hold videos: 'a', 'b'"):
        CLIP({"a": encoded(), "b": encoded(), "c": 3})
    with pytest.raises(BadOption, match=r"No field of the sample holds a video\. It has 'a', 'b'"):
        CLIP({"a": 1, "b": "x.mp4"})
    with pytest.raises(BadOption, match=r"\.on\('x'\) names a field that the sample does not have: it has 'a'"):
        CLIP.on("x")({"a": 1})
    with pytest.raises(BadOption, match="was given int"):
        CLIP.on("a")({"a": 1})


@pytest.mark.parametrize("damaged", [b"", b"<html>404</html>"])
def test_damage_of_the_only_file_of_a_sample_is_reported(damaged: bytes) -> None:
    with pytest.raises(CorruptSource):
        CLIP((damaged, 3))
