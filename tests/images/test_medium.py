"""The field of a sample with an image, a sound or a video is found, and nothing else of the sample is changed."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feedline import audio, images, video
from feedline.audio.compose import SOUND
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.images.medium import Medium, MediumPipeline
from feedline.images.pipeline import IMAGE
from feedline.video.compose import VIDEO, is_video
from tests.audio.sounds import encoded as encoded_sound
from tests.audio.sounds import sound
from tests.images.pictures import encoded, photo
from tests.video.files import encoded as encoded_video

JPEG, PNG, WEBP = (encoded(photo(), format_) for format_ in ("JPEG", "PNG", "WEBP"))
FLAC, WAV = encoded_sound(sound(0.1)), encoded_sound(sound(0.1), "WAV")
MP4 = encoded_video()
Pair = namedtuple("Pair", ["value", "label"])

# Any: samples of any form, and the names of their fields.
FOUND: list[tuple[Medium, Any, Any]] = [
    (IMAGE, (JPEG, 3), 0),
    (IMAGE, [3, PNG], 1),
    (IMAGE, {"webp": WEBP, "cls": 3, "json": b"{}"}, "webp"),
    (IMAGE, {"jpg": JPEG, "wav": b"RIFF0000WAVEfmt ", "mp4": b"0000ftypisom0000"}, "jpg"),
    (IMAGE, {"jxl": b"\xff\x0a0000", "mov": b"0000ftypqt  0000"}, "jxl"),
    (IMAGE, {"avif": b"0000ftypavif0000", "mov": b"0000ftypqt  0000"}, "avif"),
    (IMAGE, {"x": photo(), "y": np.arange(3)}, "x"),
    (IMAGE, {"x": Image.new("RGB", (2, 2)), "y": "text"}, "x"),
    (IMAGE, {"image": {"bytes": JPEG, "path": None}, "label": 1}, "image"),
    (IMAGE, Pair(JPEG, 3), 0),
    (IMAGE, JPEG, None),
    (IMAGE, photo(), None),
    (IMAGE, {"bytes": JPEG, "path": "a.jpg"}, None),
    (SOUND, FLAC, None),
    (SOUND, "a/path.flac", None),
    (SOUND, sound(), None),
    (SOUND, {"bytes": FLAC, "path": "a.flac"}, None),
    (SOUND, {"array": sound()[0], "sampling_rate": 16_000, "path": "a"}, None),
    (SOUND, (Path("a.flac"), "a text"), 0),
    (SOUND, {"flac": FLAC, "txt": "a text", "cls": 3}, "flac"),
    (SOUND, {"audio": {"bytes": FLAC, "path": None}, "text": "hello"}, "audio"),
    (SOUND, {"flac": FLAC, "embedding": np.zeros(8, np.float32)}, "flac"),
    (SOUND, {"sound": torch.zeros(2, 100), "label": torch.zeros(2, dtype=torch.int64)}, "sound"),
    (SOUND, {"png": b"\x89PNG....", "wav": WAV}, "wav"),
    (VIDEO, {"mp4": MP4, "json": {"a": 1}, "jpg": JPEG}, "mp4"),
    (VIDEO, (MP4, 3, "text"), 0),
    (VIDEO, {"video": {"bytes": MP4, "path": None}, "label": 7}, "video"),
    (VIDEO, {"video": video.Video(MP4), "label": 7}, "video"),
    (VIDEO, video.Video(MP4), None),
    # Only one field holds bytes, so these are a damaged file.
    *((medium, {"file": damaged, "cls": 3}, "file") for medium in (IMAGE, SOUND) for damaged in (b"", b"<html>")),
]


@pytest.mark.parametrize(("medium", "sample", "field"), FOUND, ids=lambda one: getattr(one, "several", ""))
def test_the_field_is_found(medium: Medium, sample: Any, field: Any) -> None:
    assert medium.field_of(sample) == field


@pytest.mark.parametrize(
    ("medium", "sample", "named"),
    [
        (IMAGE, (JPEG, PNG), "0, 1"),
        (IMAGE, (1, "text"), "0, 1"),
        (IMAGE, (b"text", b""), "0, 1"),
        (IMAGE, {}, "none"),
        (SOUND, {"a": FLAC, "b": FLAC}, "'a', 'b'"),
        (SOUND, {"path": "a.flac", "label": 3}, "'path'"),
        (SOUND, (sound(), sound()), "0, 1"),
        (VIDEO, {"a": MP4, "b": MP4, "c": 3}, "'a', 'b'"),
        (VIDEO, {"a": 1, "b": "x.mp4"}, "'a', 'b'"),
    ],
)
def test_the_error_for_no_or_several_fields_gives_advice(medium: Medium, sample: Any, named: str) -> None:
    with pytest.raises(BadOption, match=rf"(?s){named}.*\.on\(name\)|\.on\(name\).*{named}"):
        medium.field_of(sample)


PIPELINES: list[tuple[MediumPipeline, bytes, Any]] = [
    (images.Compose([images.Resize((4, 5))]), JPEG, (4, 5, 3)),
    (images.Views([[images.Resize((4, 5))]]), PNG, (1, 4, 5, 3)),
    (audio.Compose([audio.CenterClip(0.05)]), FLAC, (1, 800)),
    (video.Compose([video.CenterClip(4), images.Resize(16)]), MP4, (4, 16, 24, 3)),
]
KINDS = ("Compose", "Views", "sound", "clip")


@pytest.mark.parametrize(("pipeline", "data", "shape"), PIPELINES, ids=KINDS)
def test_nothing_else_of_a_sample_is_changed(
    pipeline: MediumPipeline, data: bytes, shape: tuple[int, ...], tmp_path: Path
) -> None:
    assert np.shape(pipeline(data)) == np.shape(pipeline({"bytes": data, "path": "elsewhere"})) == shape
    (tmp_path / "file").write_bytes(data)
    stored = {"bytes": None, "path": str(tmp_path / "file")}
    assert np.shape(pipeline.on("a")({"a": stored})["a"]) == shape
    (tmp_path / "file").unlink()
    with pytest.raises(SourceError, match="file"):
        pipeline.on("a")({"a": stored})
    both = {"left": data, "right": data, "label": 3}
    found = pipeline.on("right")(both)
    assert (found["left"], np.shape(found["right"]), found["label"]) == (data, shape, 3)
    assert both["right"] is data
    assert pipeline.field is None
    pair = pipeline(Pair(data, 3))
    assert isinstance(pair, Pair)
    assert (np.shape(pair.value), pair.label) == (shape, 3)
    assert np.shape(pipeline({"a": [data, data]})["a"]) == (2, *shape)  # as Hugging Face passes several samples
    with pytest.raises(BadOption, match=r"\.on\('x'\) .*'left'"):
        pipeline.on("x")(both)


@pytest.mark.parametrize(("pipeline", "data", "shape"), PIPELINES, ids=KINDS)
def test_damage_is_reported_with_the_sample(pipeline: MediumPipeline, data: bytes, shape: object) -> None:
    for damaged in (b"", b"<html>404</html>", data[: len(data) // 2]):
        with pytest.raises(CorruptSource) as caught:
            pipeline({"__key__": "0007", "__url__": "train-3.tar", "file": damaged, "cls": 3})
        assert "'file' of sample '0007' in train-3.tar" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        *((container, "libx264") for container in ("mp4", "matroska", "mpegts", "flv", "h264")),
        ("avi", "mpeg4"),
        ("mpeg", "mpeg2video"),
        ("asf", "wmv2"),
        ("webm", "libvpx"),
    ],
)
def test_videos_are_recognised(container: str, codec: str) -> None:
    data = encoded_video(container, codec, 20, options=())
    for form in (data, np.frombuffer(data, np.uint8), {"bytes": data, "path": "a.mp4"}):
        assert is_video(form)
    for value in ("a.mp4", b"text", 3, None, JPEG, np.zeros((4, 4, 3), np.uint8), {"bytes": None}):
        assert not is_video(value)
