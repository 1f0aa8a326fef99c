from __future__ import annotations

import pytest

from feedline.errors import BadOption
from feedline.images import CenterCrop
from feedline.images.geometry import View


def test_the_middle_is_where_torchvision_has_it() -> None:
    view = View(341, 256)
    CenterCrop(224).draw(view)
    assert view.box == (58, 16, 224, 224)  # round(58.5) is 58


def test_a_smaller_image_is_refused_with_advice() -> None:
    with pytest.raises(BadOption, match=r"Put Resize\(224\)"):
        CenterCrop(224).draw(View(341, 223))
