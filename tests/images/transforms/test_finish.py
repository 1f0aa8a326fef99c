from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feedline.errors import BadOption
from feedline.images import IMAGENET_MEAN, IMAGENET_STD, Normalize, ToChannelsFirst
from tests.images.pictures import photo


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_values_are_scaled_by_mean_and_standard_deviation(dtype: str, channels_first: bool) -> None:
    pixels = photo()
    result = Normalize(dtype=dtype, channels_first=channels_first)(pixels)
    expected = (pixels / 255 - IMAGENET_MEAN) / IMAGENET_STD
    if channels_first:
        expected = expected.transpose(2, 0, 1)
    assert result.dtype == dtype
    assert np.allclose(result, expected, atol=1e-5 if dtype == "float32" else 3e-3)


def test_bfloat16_gives_a_tensor() -> None:
    result = Normalize(dtype="bfloat16")(photo())
    assert result.dtype is torch.bfloat16
    assert torch.allclose(result.float(), torch.from_numpy(Normalize()(photo())), atol=0.02)


def test_channels_first_keeps_values() -> None:
    pixels = photo()
    assert (ToChannelsFirst()(pixels) == pixels.transpose(2, 0, 1)).all()


@pytest.mark.parametrize(
    "options", [{"mean": (0.5,)}, {"std": (0, 1, 1)}, {"dtype": "float64"}, {"std": 1.0}, {"mean": ("a", "b", "c")}]
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        Normalize(**options)
