from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import feedline
from feedline.images.geometry import Box, Finish
from feedline.images.rendering import cut, dtype_of, finish_into
from feedline.images.steps.colors import Saturation
from feedline.images.steps.geometric import Erase
from feedline.images.steps.step import Step
from feedline.images.steps.tables import Equalize, apply_steps, brightness, invert
from tests.images.pictures import photo


@pytest.fixture(params=["opencv", "pillow"])
def renderer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "opencv":
        pytest.importorskip("cv2")
    else:
        monkeypatch.setattr("feedline.images.steps.step._opencv_of", lambda process: None)
    return str(request.param)


BOXES = [
    (0, 0, 120, 90),
    (10, 20, 64, 64),
    (10, 20, 40, 30),
    (3, 4, 110, 70),
    (0.5, 10.25, 90.5, 60.75),
    (20.4, 0, 99.6, 90),
]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("size", [(48, 48), (90, 31), (30, 25), (150, 120)])
def test_resizing_is_close_to_antialiased_bilinear(renderer: str, box: Box, size: tuple[int, int]) -> None:
    pixels = photo()
    left, top, across, down = box
    image = Image.fromarray(pixels)
    if all(float(edge).is_integer() for edge in box):  # a separate crop, so that its surroundings have no influence
        image, left, top = image.crop((int(left), int(top), int(left + across), int(top + down))), 0, 0
    expected = image.resize(size, Image.Resampling.BILINEAR, box=(left, top, left + across, top + down))
    result = cut(pixels, box, *size)
    difference = np.abs(result.astype(int) - np.asarray(expected).astype(int))
    assert result.shape == (size[1], size[0], 3)
    assert difference.mean() < (2.0 if renderer == "opencv" else 0.5)


@pytest.mark.parametrize("factor", [1.1, 1.25, 1.5, 1.75, 2.0, 2.6])
def test_noise_is_smoothed_like_with_antialiasing(factor: float) -> None:
    pytest.importorskip("cv2")
    side = round(200 * factor)
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    expected = np.asarray(Image.fromarray(noise).resize((200, 200), Image.Resampling.BILINEAR))
    result = cut(noise, (0, 0, side, side), 200, 200)
    assert result.std() == pytest.approx(expected.std(), rel=0.16)
    # Linear interpolation alone would be off by 5 (for a factor of 1.1) to 20.
    assert np.abs(result.astype(int) - expected.astype(int)).mean() < 6.5


@pytest.mark.parametrize(
    ("dtype", "channels_first", "flip", "steps", "erased"),
    [
        ("uint8", True, True, (), False),
        ("uint8", False, False, (Equalize(),), False),
        ("uint8", True, False, (invert(), Saturation(0.5)), False),
        ("float32", True, True, (brightness(1.5),), True),
        ("float32", False, False, (), True),
        ("float32", True, False, (Equalize(),), False),
        ("float16", False, True, (invert(), Saturation(0.5)), True),
        ("float16", True, False, (brightness(1.5),), False),
    ],
)
def test_all_ways_to_finish_an_image(
    renderer: str, dtype: str, channels_first: bool, flip: bool, steps: tuple[Step, ...], erased: bool
) -> None:
    pixels = photo(20, 10)
    scale = None if dtype == "uint8" else (0.5, 0.4, 0.3)
    finish = Finish(10, 20, scale, scale, dtype, channels_first)
    out = np.full(finish.shape, 99, dtype_of(finish))
    erasures = [Erase(2, 3, 4, 5, (1.5, 2.5, 3.5))] if erased and scale is not None else []
    finish_into(out, pixels, finish, flip=flip, steps=steps, erasures=erasures)
    expected = apply_steps(pixels[:, ::-1] if flip else pixels, steps).astype(np.float32)
    if scale is not None:
        expected = (expected / 255 - np.array(scale)) / np.array(scale)
        if erased:
            expected[3:8, 2:6] = 1.5, 2.5, 3.5
    if channels_first:
        expected = expected.transpose(2, 0, 1)
    assert np.abs(out - expected).max() <= (0 if dtype == "uint8" else 1e-5 if dtype == "float32" else 2e-3)


class OpenCVThreads:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        cv2 = pytest.importorskip("cv2")
        cut(photo(), (0, 0, 100, 90), 20, 20)
        return int(cv2.getNumThreads())


def test_workers_use_one_thread_each_even_if_opencv_was_used_before_the_fork() -> None:
    cv2 = pytest.importorskip("cv2")
    before = cv2.getNumThreads()
    cut(photo(), (0, 0, 100, 90), 20, 20)
    (counts,) = feedline.Loader(OpenCVThreads(), 4, workers=1, engine="process", start_method="fork")
    assert counts.tolist() == [1] * 4
    assert cv2.getNumThreads() == before
