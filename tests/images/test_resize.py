from __future__ import annotations

import pytest

from feedline.errors import BadOption
from feedline.images import Resize
from feedline.images.geometry import View


@pytest.mark.parametrize(
    ("size", "image", "result"),
    [
        (256, (500, 375), (341, 256)),
        (256, (375, 500), (256, 341)),
        (10, (7, 7), (10, 10)),
        ((30, 20), (500, 375), (20, 30)),
    ],
)
def test_the_shorter_side_or_both_are_as_asked(
    size: int | tuple[int, int], image: tuple[int, int], result: tuple[int, int]
) -> None:
    view = View(*image)
    Resize(size).draw(view)
    assert (view.width, view.height) == result
    assert view.box == (0, 0, *image)


@pytest.mark.parametrize("size", [0, True, (1, 2, 3), "a"])
def test_no_size_is_refused(size: int) -> None:
    with pytest.raises(BadOption, match="size="):
        Resize(size)
