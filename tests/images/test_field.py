from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.errors import BadOption, CorruptSource
from feedline.images import CenterCrop, Compose
from feedline.images.field import image_field
from feedline.images.fields import replaced
from tests.images.pictures import encoded, photo

JPEG, PNG, WEBP = (encoded(photo(), format_) for format_ in ("JPEG", "PNG", "WEBP"))
Pair = namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize(
    ("sample", "field"),
    [
        ((JPEG, 3), 0),
        ([3, PNG], 1),
        ({"webp": WEBP, "cls": 3, "json": b"{}"}, "webp"),
        ({"jpg": JPEG, "wav": b"RIFF0000WAVEfmt ", "mp4": b"0000ftypisom0000"}, "jpg"),
        ({"jxl": b"\xff\x0a0000", "mov": b"0000ftypqt  0000"}, "jxl"),
        ({"avif": b"0000ftypavif0000", "mov": b"0000ftypqt  0000"}, "avif"),
        ({"x": photo(), "y": np.arange(3)}, "x"),
        ({"x": Image.new("RGB", (2, 2)), "y": "text"}, "x"),
        ({"image": {"bytes": JPEG, "path": None}, "label": 1}, "image"),
        (Pair(JPEG, 3), 0),
        (JPEG, None),
        (photo(), None),
        ({"bytes": JPEG, "path": "a.jpg"}, None),
    ],
)
def test_the_field_with_the_image_is_found(sample: Any, field: Any) -> None:
    assert image_field(sample) == field


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((JPEG, PNG), "Several fields hold images: 0, 1"),
        ((1, "text"), "No field"),
        ((b"text", b""), "No field"),
        ({}, "It has none"),
    ],
)
def test_the_error_for_no_or_several_images_gives_advice(sample: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message) as caught:
        image_field(sample)
    assert ".on(name)" in str(caught.value)


@pytest.mark.parametrize("damaged", [b"", b"<html>404</html>", b"\0" * 20])
def test_damage_of_the_only_file_of_a_sample_is_reported(damaged: bytes) -> None:
    assert image_field({"jpg": damaged, "cls": 3}) == "jpg"
    with pytest.raises(CorruptSource):
        Compose([CenterCrop(4)])((damaged, 3))


def test_a_field_can_be_named() -> None:
    assert image_field({"left": JPEG, "right": JPEG}, "right") == "right"
    with pytest.raises(BadOption, match=r"'middle'.*'left', 'right'"):
        image_field({"left": JPEG, "right": JPEG}, "middle")


def test_samples_keep_their_type() -> None:
    assert replaced(Pair(1, 2), 0, str) == Pair("1", 2)
    assert replaced((1, 2), 1, str) == (1, "2")
    assert replaced([1, 2], 1, str) == [1, "2"]
    original = {"a": 1, "b": 2}
    assert replaced(original, "a", str) == {"a": "1", "b": 2}
    assert original["a"] == 1
