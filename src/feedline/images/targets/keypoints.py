"""Keypoints: places in an image, such as joints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.images.geometry import View
from feedline.images.targets.target import Target, as_given, numbers


class Keypoints(Target):
    """Keypoints that move with the image; for `Compose(targets=)`.

    The field has a row for each point: x and y, or x, y and visibility, as in COCO. There may be more axes before, such
    as one set of points for each object. It becomes a float32 array, or a tensor if it was one. No point is left out,
    because their order says what they are: a point that leaves the image gets the visibility 0. Points that had it
    before stay as they are.

    Coordinates count from the edges of pixels, as those of boxes do: the centre of the first pixel is at 0.5, 0.5. If
    yours are the numbers of pixels, add 0.5 before and subtract it afterwards.

    Args:
        flip_pairs: pairs of points to swap if the image is mirrored, such as the left and the right eye, by their
            positions in a set.

    Raises:
        BadOption: an option is invalid.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> pipeline = images.Compose(
        ...     [images.HorizontalFlip(1.0)], targets={"eyes": images.Keypoints(flip_pairs=[(0, 1)])}
        ... )
        >>> sample = {"image": np.zeros((50, 100, 3), np.uint8), "eyes": [[40, 20, 2], [70, 20, 1]]}
        >>> pipeline(sample)["eyes"].tolist()
        [[30.0, 20.0, 1.0], [60.0, 20.0, 2.0]]
    """

    def __init__(self, *, flip_pairs: Iterable[tuple[int, int]] = ()) -> None:
        self.flip_pairs = tuple((int(one), int(other)) for one, other in flip_pairs)
        flat = [place for pair in self.flip_pairs for place in pair]
        if len(set(flat)) != len(flat) or any(place < 0 for place in flat):
            raise BadOption(f"flip_pairs={self.flip_pairs!r} names a point twice, or one before the first.")

    def moved(self, value: object, views: Sequence[View]) -> tuple[object, None]:
        given = numbers(value, (2, 3), "Keypoints")
        points = given[..., :2]
        inside, mirrored = np.ones(points.shape[:-1], bool), False
        for (a, b, c, d, e, f), width, height in (move for view in views for move in view.moves()):
            points = points @ np.array([[a, d], [b, e]]) + (c, f)
            inside &= ((points >= 0) & (points <= (width, height))).all(-1)
            mirrored ^= a * e - b * d < 0
        made = np.concatenate([points, given[..., 2:]], -1)
        if given.shape[-1] == 3:
            hidden = given[..., 2] == 0
            made[hidden] = given[hidden]
            made[~inside, 2] = 0
        return as_given(self._swapped(made) if mirrored else made, value), None

    def _swapped(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        order = list(range(points.shape[-2]))
        for one, other in self.flip_pairs if points.size else ():
            if max(one, other) >= len(order):
                raise BadOption(
                    f"flip_pairs={self.flip_pairs!r} names point {max(one, other)}, but a set has {len(order)} points, "
                    "counted from 0."
                )
            order[one], order[other] = other, one
        return points[..., order, :]
