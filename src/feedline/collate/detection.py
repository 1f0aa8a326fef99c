"""Collate images with targets of varying size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from feedline.collate import fields
from feedline.collate.arrays import Arrays, shapes_differ
from feedline.collate.binding import Collate
from feedline.collate.default import default
from feedline.collate.fields import Field
from feedline.errors import BadOption, CollateError
from feedline.types import is_array

Stack = Literal["auto", True, False]


def detection(stack: Stack = "auto", *, image: Field = 0) -> Detection:
    """Collate pairs of an image and a target: images are stacked or listed, targets are listed.

    The size of a target (boxes, labels, masks: usually a dict) varies from image to image, so targets are not stacked.
    Their arrays become tensors in `feedline.DataLoader` and NumPy arrays in `feedline.Loader`.

    Args:
        stack: True to stack the images, which must then have one shape; False to list them, as torchvision's detection
            models expect; "auto" to stack them in batches whose images have one shape.
        image: the field with the image: a position in a tuple, or a key of a dict. All other fields are listed.

    Example:
        >>> import numpy as np
        >>> from feedline.collate import detection
        >>> one = np.zeros((3, 8, 8)), {"boxes": np.zeros((2, 4))}
        >>> two = np.zeros((3, 8, 8)), {"boxes": np.zeros((5, 4))}
        >>> images, targets = detection()([one, two])
        >>> images.shape, [target["boxes"].shape for target in targets]
        ((2, 3, 8, 8), [(2, 4), (5, 4)])
    """
    return Detection(stack, image)


class Detection(Collate):
    """The collate function that `detection` returns."""

    def __init__(self, stack: Stack, image: Field) -> None:
        super().__init__(default)
        if stack not in ("auto", True, False):
            raise BadOption(f"stack={stack!r} is not 'auto', True or False. Pass detection(), not detection.")
        self.stack = stack
        self.image = image

    def _collate(self, samples: Sequence[object], arrays: Arrays) -> object:
        names = fields.shared_names(samples)
        if names is None or self.image not in names:
            raise CollateError(
                f"Sample 0 of the batch, a {type(samples[0]).__name__}, has no field {self.image!r} with the image. "
                "Return (image, target) from the dataset, or name the image's field with detection(image=...)."
            )
        columns: dict[Field, object] = {}
        for name in names:
            values = fields.column(samples, name)
            columns[name] = (
                self._images(values, arrays) if name == self.image else [_convert(value, arrays) for value in values]
            )
        return fields.build(samples[0], columns)

    def _images(self, images: Sequence[object], arrays: Arrays) -> object:
        if self.stack is False:
            return [_convert(image, arrays) for image in images]
        for position, image in enumerate(images):
            if not is_array(image):
                raise CollateError(
                    f"Sample {position} of the batch has a {type(image).__name__} as its image (field {self.image!r}), "
                    "not an array or tensor. Convert it in the dataset, or use detection(stack=False)."
                )
            shape, other = tuple(getattr(images[0], "shape", ())), tuple(image.shape)
            if other != shape:
                if self.stack == "auto":
                    return [_convert(image, arrays) for image in images]
                raise shapes_differ(shape, other, position, (self.image,))
        return self._inner(images)

    def __repr__(self) -> str:
        return f"detection(stack={self.stack!r}, image={self.image!r})"


def _convert(value: object, arrays: Arrays) -> object:
    """Convert every array in a value to the framework's; leave everything else unchanged."""
    if is_array(value):
        return arrays.adopt(value)
    names = fields.names_of(value)
    if names is None:
        return value
    return fields.build(value, {name: _convert(fields.column([value], name)[0], arrays) for name in names})
