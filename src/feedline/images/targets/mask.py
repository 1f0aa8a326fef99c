"""Masks: one number for every pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, CorruptSource, FeedlineError
from feedline.images.decoding import turned
from feedline.images.geometry import View
from feedline.images.header import file_bytes, read_header
from feedline.images.medium import is_encoded
from feedline.images.pillow import checked_picture
from feedline.images.steps.step import GeometricStep, Places
from feedline.images.targets.target import Target
from feedline.system.failures import words
from feedline.system.optional import is_tensor, require

Numbers = NDArray[np.generic]
"""A mask: booleans or numbers of any width."""


class Mask(Target):
    """A mask that moves with the image; for `Compose(targets=)`.

    Numbers are never mixed: each pixel takes the number of the nearest one. The field is an array or tensor with the
    axes height and width, or with more axes before these, such as one mask for each object; a Pillow image; or the
    bytes of a file, such as a PNG with a palette, of which the mask has the indices. A tensor becomes a tensor, and
    everything else an array. The mask has to be as large as the image.

    Args:
        fill: the number of pixels beyond the edges of the original image.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> pipeline = images.Compose([images.Resize((1, 4))], targets={"mask": images.Mask()})
        >>> sample = {"image": np.zeros((2, 2, 3), np.uint8), "mask": np.array([[7, 9], [7, 9]])}
        >>> pipeline(sample)["mask"].tolist()
        [[7, 7, 9, 9]]
    """

    def __init__(self, *, fill: float = 0) -> None:
        self.fill = fill

    def moved(self, value: object, views: Sequence[View]) -> tuple[object, None]:
        mask = _mask(value)
        width, height = views[0].image_size
        if mask.shape[-2:] != (height, width):
            raise BadOption(
                f"The mask has the shape {mask.shape}, but the image has {height} x {width} pixels (height x width). "
                "Both have to be of one size. If the image has an EXIF orientation, it was turned upright."
            )
        columns, rows, inside = _sources(views)
        if columns.shape[0] == 1 and rows.shape[1] == 1:
            made = mask[..., rows[:, 0], :][..., columns[0]]
        else:
            made = mask[..., rows, columns]
        made = np.ascontiguousarray(made)
        if not inside.all():
            made[..., ~inside] = self.fill
        if not is_tensor(value):
            return made, None
        return require("torch", extra="torch", purpose="Masks in tensors").from_numpy(made), None


def _sources(views: Sequence[View]) -> tuple[Places, Places, NDArray[np.bool_]]:
    """Return which column and row of the original image each pixel of the result shows, and whether it is inside.

    Columns have the shape (1, width) and rows (height, 1), unless the image is rotated or sheared.
    """
    columns, rows = np.arange(views[-1].width)[None], np.arange(views[-1].height)[:, None]
    inside = np.ones((1, 1), bool)
    for view in reversed(views):
        width, height = view.cut_size
        moves = []
        for step in view.steps:
            if isinstance(step, GeometricStep):
                moves.append((step, width, height))
                width, height = step.size(width, height)
        for move, width, height in reversed(moves):
            columns, rows = move.sources(columns, rows, width, height)
            inside = inside & (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        width, height = view.cut_size
        if view.flip:
            columns = width - 1 - columns
        left, top, across, down = view.box
        columns = np.floor((columns + 0.5) * (across / width) + left).astype(np.intp).clip(0, view.image_size[0] - 1)
        rows = np.floor((rows + 0.5) * (down / height) + top).astype(np.intp).clip(0, view.image_size[1] - 1)
    shape = views[-1].height, views[-1].width
    return columns, rows, np.broadcast_to(inside, shape)


# Any: any value from the user.
def _mask(value: Any) -> Numbers:
    if isinstance(value, Mapping) and "bytes" in value:  # as Hugging Face stores files
        value = value["bytes"]
    if is_encoded(value):
        return _decoded(file_bytes(value))
    array = np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)
    if array.ndim < 2 or array.dtype.kind not in "biuf":
        raise BadOption(
            f"A mask is a {type(value).__name__} of shape {array.shape} ({array.dtype}), but numbers with the axes "
            "height and width are needed, or the bytes of a file."
        )
    return array


def _decoded(data: bytes) -> Numbers:
    try:
        header = read_header(data)
        if header.format == "PNG":
            checked_picture(data).verify()  # the checksums, which Pillow does not check otherwise
        image = checked_picture(data)
        image.load()
    except (FeedlineError, MemoryError):
        raise
    # Pillow's plugins raise many types for damaged files: OSError, SyntaxError, struct.error, IndexError.
    except Exception as exc:
        raise CorruptSource(
            f"A mask in a file of {len(data)} bytes cannot be decoded: {words(exc)}. It is damaged, truncated or not "
            "an image. Write or copy it again."
        ) from exc
    if len(image.getbands()) != 1:
        raise BadOption(
            f"A mask in a file has the channels {', '.join(image.getbands())}, but one number for every pixel is "
            "needed: a grey image, or one with a palette. Convert the file, or pass an array."
        )
    return turned(np.array(image)[..., None], header.orientation)[..., 0]  # as the image is
