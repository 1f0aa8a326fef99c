"""What a pipeline of images is: it changes the image of a sample, and what moves with it."""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.abc.memory import Placement, on_this_thread
from feedline.errors import BadOption, SourceError
from feedline.images.geometry import View
from feedline.images.jxl import CODESTREAM, CONTAINER
from feedline.images.medium import Medium, MediumPipeline, is_encoded, is_file, replaced
from feedline.images.targets.target import Targets, checked_targets, move_targets
from feedline.randomness.scope import TRANSFORM, stage
from feedline.system.optional import is_tensor
from feedline.system.options import checked_choice

if TYPE_CHECKING:
    from typing_extensions import Self

PLACES = ("auto", "cpu", "gpu")
"""Where images can be decoded."""

_BEGINNINGS = (
    b"\xff\xd8\xff",
    b"\x89PNG",
    b"GIF8",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"\0\0\0\x0cjP",
    b"\xff\x4f\xff\x51",
    b"P5",
    b"P6",
    b"qoif",
    CODESTREAM,
    CONTAINER,
)
"""The first bytes of image files: JPEG, PNG, GIF, BMP, TIFF, JPEG 2000, PPM, QOI, JPEG XL."""
_SHARED = re.compile(rb"RIFF....WEBP|....ftyp(avi[fs]|hei[cmsx]|hev[cmsx]|mif1|msf1)", re.DOTALL)
"""The first bytes of WebP, AVIF and HEIF, whose containers also hold sound and video."""


def is_image(value: object) -> bool:
    """True for the bytes of an image file, 8-bit pixels, a Pillow image, or an image of Hugging Face with its bytes."""
    if isinstance(value, (int, float, str)):
        return False
    if is_encoded(value):
        head = bytes(value[:12])
        return head.startswith(_BEGINNINGS) or _SHARED.match(head) is not None
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim in (2, 3)
    if isinstance(value, Mapping):
        return is_file(value)
    return hasattr(value, "getbands") or (is_tensor(value) and getattr(value, "ndim", 0) == 3)


IMAGE = Medium(
    "an image",
    "images",
    (is_image,),
    is_file,
    "Choose the one to transform with Compose(...).on(name), or leave out others with fields=.",
)


class Pipeline(MediumPipeline):
    """Changes the image of a sample. Sources accept it as `transform=`.

    Args:
        decode: "auto" to decode on the device of the batches if it can, "cpu" to never do so, "gpu" to require it.
        targets: what moves with the image, by the name of its field.
    """

    _medium = IMAGE
    defers = False
    """True if the last steps may be left to a later stage, where `on_this_thread.placement` says so."""

    def __init__(self, *, decode: str = "auto", targets: Targets | None = None) -> None:
        self.decode = self._checked(decode)
        self.targets = checked_targets(targets)

    def decoding(self, decode: str) -> Self:
        """Return a copy with another `decode=`."""
        twin = copy.copy(self)
        twin.decode = self._checked(decode)
        return twin

    def deferring(self) -> Self:
        """Return a copy for a source, which passes on its results unchanged."""
        twin = copy.copy(self)
        twin.defers = True
        return twin

    def _checked(self, decode: str) -> str:
        self._check_gpu(checked_choice("decode", decode, PLACES) == "gpu")
        return decode

    @abstractmethod
    def _check_gpu(self, required: bool) -> None:
        """Reject `decode="gpu"` if no GPU can do what the pipeline does."""

    @abstractmethod
    def _image(self, image: object, where: Placement) -> tuple[object, Sequence[View]]:
        """Return the finished or deferred image, and the views of its stages."""

    # Any, throughout: a sample with an image among its fields, and what becomes of it.
    def __call__(self, sample: Any) -> Any:
        if not self.targets:
            return super().__call__(sample)
        field = self._medium.field_of(sample, self.field, self.targets)
        if field is None:
            raise BadOption(
                f"targets= names {', '.join(map(repr, self.targets))}, but the sample is an image alone. Pass a dict "
                "or a tuple with the image and its targets."
            )
        with stage(TRANSFORM):
            if not isinstance(sample[field], list):
                return self._with_targets(sample, field)
            rows = [{name: sample[name][row] for name in sample} for row in range(len(sample[field]))]
            rows = [self._with_targets(row, field) for row in rows]
            return {name: [row[name] for row in rows] for name in sample}

    def _with_targets(self, sample: Any, field: Hashable) -> Any:
        image, views = self._one(sample[field])
        return move_targets(replaced(sample, field, lambda _: image), self.targets, views)

    def _changed(self, value: object) -> object:
        return self._one(value)[0]

    def _one(self, image: object) -> tuple[object, Sequence[View]]:
        if isinstance(image, Mapping):  # as Hugging Face stores them
            image = stored_bytes(image)
        return self._image(image, on_this_thread.placement if self.defers else Placement.DATASET)


# object: the values of a struct.
def stored_bytes(value: Mapping[object, object]) -> object:
    """Return the bytes of an image as Hugging Face stores it. They may be left in a file, whose path it has.

    Raises:
        SourceError: the file cannot be read.
    """
    data, path = value["bytes"], value["path"]
    if data is not None or not isinstance(path, str):
        return data
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as exc:
        raise SourceError(
            f"An image is stored as the path of its file, {path!r}, which cannot be read: {exc.strerror or exc}."
        ) from exc
