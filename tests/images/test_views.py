"""Several views of one image: it is decoded once, and each view equals that of its own pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline import images
from feedline.errors import BadOption
from feedline.images import original
from tests.images.pictures import encoded, photo

LARGE = images.Compose([images.RandomResizedCrop(40, scale=(0.4, 1)), images.HorizontalFlip(), images.Normalize()])
SMALL = images.Compose([images.RandomResizedCrop(16, scale=(0.05, 0.4)), images.ColorJitter(0.4), images.Normalize()])
VIEWS = images.Views([LARGE, LARGE, SMALL, SMALL, SMALL])
FILES = [encoded(photo(160, 120, seed), "PNG" if seed % 3 == 0 else "JPEG") for seed in range(12)]


def test_an_image_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def decode(*given: Any, **options: Any) -> Any:
        decoded.append(options["factor"])
        return images.decode_image(*given, **options)

    monkeypatch.setattr(original, "decode_image", decode)
    found = VIEWS(FILES[1])
    assert [view.shape for view in found] == [(3, 40, 40)] * 2 + [(3, 16, 16)] * 3
    assert len(decoded) == 1


def test_views_equal_the_results_of_their_pipelines() -> None:
    file = encoded(photo(160, 120), "PNG")
    top = images.Compose([images.Resize((60, 80)), images.CenterCrop(48)])
    grey = images.Compose([lambda pixels: pixels[:50], images.Resize((20, 20)), images.Normalize()])
    whole = images.Compose([])
    found = images.Views([top, grey, whole])(file)
    for one, pipeline in zip(found, (top, grey, whole), strict=True):
        assert np.array_equal(one, pipeline(file))


def test_bad_views_are_rejected() -> None:
    for make, message in (
        (lambda: images.Views([]), "there are none"),
        (lambda: images.Views([images.Compose([], targets={"mask": images.Mask()})]), "targets="),
        (lambda: images.Views([images.Compose([images.Decode("L")]), LARGE]), "same mode"),
        (lambda: images.Views([LARGE], decode="gpu"), "gpu"),
        (lambda: images.Views([LARGE.decoding("gpu")]), "gpu"),
        (lambda: images.Compose([VIEWS]), "Views"),
    ):
        with pytest.raises(BadOption, match=message):
            make()


def test_five_crops_are_the_corners_and_the_centre() -> None:
    image = photo(30, 40)
    top_left, top_right, bottom_left, bottom_right, centre = images.FiveCrop(8)(image)
    assert np.array_equal(top_left, image[:8, :8])
    assert np.array_equal(top_right, image[:8, -8:])
    assert np.array_equal(bottom_left, image[-8:, :8])
    assert np.array_equal(bottom_right, image[-8:, -8:])
    assert np.array_equal(centre, images.CenterCrop(8)(image))
    whole = images.FiveCrop((10, 20), before=[images.Resize(24)], after=[images.Normalize()])
    expected = images.Compose([images.Resize(24), images.CenterCrop((10, 20)), images.Normalize()])
    assert np.array_equal(whole(image)[4], expected(image))
    with pytest.raises(BadOption, match="64 x 64"):
        images.FiveCrop(64)(image)
