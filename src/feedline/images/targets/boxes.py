"""Boxes around objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.images.geometry import View
from feedline.images.steps.step import Matrix, after
from feedline.images.targets.target import Target, as_given, numbers
from feedline.system.options import checked_choice, checked_number

Corners = NDArray[np.float64]
"""Left, top, right and bottom of each box."""

FORMATS = ("xyxy", "xywh", "cxcywh")
_IDENTITY: Matrix = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
_SLACK = 1e-6
"""Share of an area that rounding may cost."""


class Boxes(Target):
    """Boxes that move with the image; for `Compose(targets=)`.

    A box is clipped at the edges of the image. It is left out, together with its entries in `fields`, if too little of
    it is left. After a rotation, it is the smallest upright box around the rotated one.

    The field has one row of four numbers for each box: an array, a tensor or a list of lists, which may be empty. It
    becomes a float32 array with the axes box and number, or a tensor if it was one.

    Args:
        format: the four numbers of a box, in pixels: "xyxy" for left, top, right and bottom; "xywh" for left, top,
            width and height, as in COCO; "cxcywh" for the centre, width and height.
        normalized: True if numbers are shares of the width and height of the image, as those of YOLO are.
        min_size: leave out boxes that are less wide or less high, in pixels of the result; 0 keeps all boxes.
        min_visible: leave out boxes if a smaller share of their area is left, from 0 to 1.
        fields: fields beside the boxes that have one entry for each of them. Those that a sample does not have are
            ignored.

    Raises:
        BadOption: an option is invalid.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> pipeline = images.Compose([images.CenterCrop(40)], targets={"boxes": images.Boxes(format="xywh")})
        >>> target = {"boxes": [[0, 0, 20, 20], [70, 70, 9, 9]], "labels": ["cat", "dog"]}
        >>> image, target = pipeline((np.zeros((60, 60, 3), np.uint8), target))
        >>> target["boxes"].tolist(), target["labels"]
        ([[0.0, 0.0, 10.0, 10.0]], ['cat'])
    """

    def __init__(
        self,
        format: str = "xyxy",  # noqa: A002  (the word that users look for)
        *,
        normalized: bool = False,
        min_size: float = 1,
        min_visible: float = 0,
        fields: str | Iterable[str] = ("labels",),
    ) -> None:
        self.format = checked_choice("format", format, FORMATS)
        self.normalized = bool(normalized)
        self.min_size = checked_number("min_size", min_size, low=0)
        self.min_visible = checked_number("min_visible", min_visible, low=0, high=1)
        self.fields = (fields,) if isinstance(fields, str) else tuple(fields)

    def moved(self, value: object, views: Sequence[View]) -> tuple[object, NDArray[np.bool_]]:
        given = numbers(value, (4,), "Boxes").reshape(-1, 4)
        whole = _corners(given * _scale(views[0].image_size) if self.normalized else given, self.format)
        whole, part = _moved(whole, views)
        kept = self._kept(part, whole)
        made = _formatted(part[kept], self.format)
        if self.normalized:
            made /= _scale((views[-1].width, views[-1].height))
        return as_given(made, value), kept

    def _kept(self, part: Corners, whole: Corners) -> NDArray[np.bool_]:
        sides, before = part[:, 2:] - part[:, :2], whole[:, 2:] - whole[:, :2]
        visible = sides.prod(1) >= (self.min_visible - _SLACK) * before.prod(1)
        kept: NDArray[np.bool_] = visible & (sides >= self.min_size * (1 - _SLACK)).all(1)
        return kept


def _scale(size: tuple[int, int]) -> NDArray[np.float64]:
    return np.array([*size, *size], np.float64)


def _corners(boxes: NDArray[np.float64], format_: str) -> Corners:
    if format_ == "xyxy":
        return boxes
    place, size = boxes[:, :2], boxes[:, 2:]
    first = place if format_ == "xywh" else place - size / 2
    return np.concatenate([first, first + size], 1)


def _formatted(corners: Corners, format_: str) -> NDArray[np.float64]:
    if format_ == "xyxy":
        return corners
    first, last = corners[:, :2], corners[:, 2:]
    return np.concatenate([first if format_ == "xywh" else (first + last) / 2, last - first], 1)


def _moved(boxes: Corners, views: Sequence[View]) -> tuple[Corners, Corners]:
    """Return boxes after all moves of an image, and what is visible of them."""
    whole = part = visible = boxes
    matrix = _IDENTITY
    for move, width, height in (move for view in views for move in view.moves()):
        # A box around a box grows with each rotation. So boxes move by all rotations at once; what each of them leaves
        # of a box moves on its own, because pixels that have left the image do not come back.
        matrix = after(matrix, move)
        visible = _common(_around(visible, move), _around(part, matrix))
        visible = _clipped(visible, width, height)
        if matrix[1] == matrix[3] == 0:
            whole, part, matrix = _around(whole, matrix), visible, _IDENTITY
    return _around(whole, matrix), visible


def _common(one: Corners, other: Corners) -> Corners:
    """Return what each box of one array has in common with that of the other."""
    first = np.maximum(one[:, :2], other[:, :2])
    return np.concatenate([first, np.maximum(first, np.minimum(one[:, 2:], other[:, 2:]))], 1)


def _around(boxes: Corners, matrix: Matrix) -> Corners:
    """Return the smallest upright boxes around boxes that have moved."""
    a, b, c, d, e, f = matrix
    center, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    turned = np.array([[a, b], [d, e]])
    center, half = center @ turned.T + (c, f), half @ np.abs(turned).T
    return np.concatenate([center - half, center + half], 1)


def _clipped(boxes: Corners, width: int, height: int) -> Corners:
    """Return what is inside of an image; a point for boxes outside, because a line would grow when it is rotated."""
    inside = boxes.clip(0, (width, height, width, height))
    gone = ((boxes[:, :2] >= (width, height)) | (boxes[:, 2:] <= 0)).any(1)
    inside[gone, 2:] = inside[gone, :2]
    return inside
