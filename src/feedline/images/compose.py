"""Sequences of transforms, done in as few passes over the pixels as possible.

A pipeline consists of stages. Adjacent transforms that only change the view (`ImageTransform.draw`) form one stage: the
image is decoded as small as the crop allows, cropped and resized once, and finished in one pass. A function from the
user, torchvision or albumentations is a stage of its own, which receives pixels. The last pass of the last stage can be
left to the collate function or the device (see `abc/deferred.py`); the random draws stay the same.
"""

from __future__ import annotations

import copy
import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.deferred import Placement, placement
from feedline.errors import BadOption
from feedline.images.decoding import decode_image
from feedline.images.deferred import DeferredImage
from feedline.images.field import image_field, is_encoded, replaced
from feedline.images.geometry import Box, View
from feedline.images.header import Header, file_bytes, read_header
from feedline.images.pillow import eight_bits
from feedline.images.rendering import Pixels, cut, dtype_of, finish_into
from feedline.randomness.scope import is_in_loader
from feedline.randomness.stages import TRANSFORM, stage
from feedline.system.optional import is_tensor, require

PLACES = ("auto", "cpu", "gpu")
"""Where images can be decoded."""


class Rank(enum.IntEnum):
    """The order in which transforms can be fused into one stage."""

    GEOMETRY = 0
    COLOR = 1
    FINISH = 2
    ANY = 3
    """At any position."""


# Any, throughout: an image is the bytes of a file, pixels, or a Pillow image; a sample has one among its fields.
class ImageTransform(ABC):
    """An image transform that feedline can fuse with others.

    Called with an image, or with a sample that contains one, it returns the finished image as an array.
    """

    rank: Rank
    resizes = False
    """True if it computes pixels from several others: a second such transform starts a new stage."""

    @abstractmethod
    def draw(self, view: View) -> None:
        """Change the view of an image, with random numbers of `feedline.rng()`."""

    def __call__(self, image: object) -> Any:
        return Compose([self])(image)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


class Decode(ImageTransform):
    """Decode the bytes of an image file into upright RGB. Pipelines do so anyway; this makes it explicit.

    Example:
        >>> from feedline import images
        >>> pipeline = images.Compose([images.Decode(), images.Resize(8), images.CenterCrop(8)])
        >>> image = np.zeros((16, 12, 3), np.uint8)
        >>> pipeline(image).shape
        (8, 8, 3)
    """

    rank = Rank.GEOMETRY

    def draw(self, view: View) -> None:
        pass


class Compose:
    """A sequence of image transforms.

    It accepts the bytes of an image file, a uint8 array with the axes height, width and color (or without the last), or
    a Pillow image; or a sample with one of these in one of its fields. Sources accept it as `transform=`.

    Args:
        transforms: transforms of `feedline.images`, torchvision (v2) or albumentations, or functions that take a uint8
            array with the axes height, width and color.
        decode: "auto" to decode on the device of the batches if it can, "cpu" to never do so, "gpu" to require it.

    Raises:
        BadOption: an order that cannot work, such as a crop after `Normalize`.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> pipeline = Compose([images.Resize(32), images.CenterCrop(24), images.Normalize()])
        >>> image, label = pipeline((np.zeros((48, 64, 3), np.uint8), 7))
        >>> image.shape, image.dtype.name, label
        ((3, 24, 24), 'float32', 7)
    """

    def __init__(self, transforms: Iterable[object], *, decode: str = "auto") -> None:
        self.transforms = tuple(_flat(transforms))
        self._stages = _stages_of(self.transforms)
        self.field: Hashable = None
        """The field of a sample that holds the image; None to look for it."""
        self.decode = self._checked(decode)
        self.defers = False
        """True if the last steps may be left to a later stage, where `placement()` says so."""

    def on(self, field: Hashable) -> Compose:
        """Return a copy for samples whose image is in this field, or at this index of a tuple."""
        return self._with(field=field)

    def decoding(self, decode: str) -> Compose:
        """Return a copy with another `decode=`."""
        return self._with(decode=self._checked(decode))

    def _checked(self, decode: str) -> str:
        if decode not in PLACES:
            raise BadOption(f"decode={decode!r} is not one of {', '.join(map(repr, PLACES))}.")
        if decode == "gpu" and len(self._stages) > 1:
            raise BadOption(
                f'decode="gpu" needs transforms that can be fused into one step, but {list(self.transforms)} cannot: '
                'a function needs pixels, and so does a second resize. Leave those out, or use decode="auto".'
            )
        return decode

    def deferring(self) -> Compose:
        """Return a copy for a source, which passes on its results unchanged."""
        return self._with(defers=True)

    def _with(self, **options: object) -> Compose:
        twin = copy.copy(self)
        vars(twin).update(options)
        return twin

    def __call__(self, sample: object) -> Any:
        field = image_field(sample, self.field)
        with stage(TRANSFORM):
            return self._image(sample) if field is None else replaced(sample, field, self._image)

    def _image(self, image: object) -> object:
        if isinstance(image, list):  # several samples at once, as Hugging Face passes them
            return list(map(self._image, image))
        if isinstance(image, Mapping):  # as Hugging Face stores them
            image = image["bytes"]
        where = placement() if self.defers else Placement.DATASET
        for one in self._stages[:-1]:
            image = one(image, Placement.DATASET, self.decode)
        return self._stages[-1](image, where, self.decode)

    def __repr__(self) -> str:
        decode = "" if self.decode == "auto" else f", decode={self.decode!r}"
        on = "" if self.field is None else f".on({self.field!r})"
        return f"Compose([{', '.join(map(repr, self.transforms))}]{decode}){on}"


Stage = Callable[[Any, Placement, str], object]


def _flat(transforms: Iterable[object]) -> Iterable[Any]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from transform.transforms
        elif callable(transform):
            yield transform
        else:
            raise BadOption(f"{transform!r} is not a transform: it cannot be called with an image.")


def _stages_of(transforms: Iterable[Any]) -> list[Stage]:
    stages: list[Any] = [_Fused()]  # decodes, even if nothing follows
    for transform in transforms:
        last = stages[-1]
        if not isinstance(transform, ImageTransform):
            stages.append(_Foreign(transform))
        elif isinstance(last, _Fused) and last.takes(transform):
            last.transforms.append(transform)
        else:
            stages.append(_Fused())
            stages[-1].transforms.append(transform)
    return stages


class _Fused:
    """Transforms that only change the view, fused into one stage."""

    def __init__(self) -> None:
        self.transforms: list[ImageTransform] = []

    def takes(self, transform: ImageTransform) -> bool:
        """True if a transform can be fused with those before it.

        Raises:
            BadOption: it comes too late to be possible at all.
        """
        before = max((one.rank for one in self.transforms if one.rank is not Rank.ANY), default=Rank.GEOMETRY)
        if before is Rank.FINISH and transform.rank < Rank.FINISH:
            raise BadOption(
                f"{type(transform).__name__} comes after {self.transforms[-1]!r}, when the image is no longer a uint8 "
                "array with the axes height, width and color. Put it before."
            )
        if transform.resizes and any(one.resizes for one in self.transforms):
            return False
        return transform.rank > before or transform.rank is before is not Rank.COLOR

    def __call__(self, image: Any, where: Placement, decode: str) -> object:
        encoded = is_encoded(image)
        if encoded:
            image = file_bytes(image)
            header = read_header(image)
            view = View(header.width, header.height)
        else:
            image = pixels_of(image)
            view = View(image.shape[1], image.shape[0])
        for transform in self.transforms:
            transform.draw(view)
        if decode == "gpu" and where is not Placement.DECODE and is_in_loader():
            raise _no_decoder()
        if encoded and where is Placement.DECODE and header.gpu and decode != "cpu":
            return DeferredImage(view.finish(), view.flip, view.jitter, data=image, box=view.box)
        box = view.box
        if encoded:
            image, box = _decoded(image, header, view)
        image = cut(image, box, view.width, view.height)
        finish = view.finish()
        if where is not Placement.DATASET:
            return DeferredImage(finish, view.flip, view.jitter, pixels=image)
        out = np.empty(finish.shape, dtype_of(finish))
        finish_into(out, image, finish, flip=view.flip, jitter=view.jitter)
        return out if finish.dtype != "bfloat16" else _rounded(out)


def _decoded(data: bytes, header: Header, view: View) -> tuple[Pixels, Box]:
    """Decode the visible part of an image, as small as possible; return the pixels and where that part is in them."""
    left, top, width, height = view.box
    factor = view.factor
    pixels = decode_image(data, header=header, factor=factor, rows=math.ceil(top + height) + 2 * factor)
    if pixels.shape[1] == header.width:
        return pixels, view.box
    # The last pixel of a row or column stands for the rest, less than `factor` pixels. Upright, it may be the first.
    left += -header.width % factor if header.orientation in (2, 3, 6, 7) else 0
    top += -header.height % factor if header.orientation in (3, 4, 7, 8) else 0
    return pixels, (left / factor, top / factor, width / factor, height / factor)


def _no_decoder() -> BadOption:
    return BadOption(
        'decode="gpu" needs a device that decodes images, but none does here. Pass device="cuda" to '
        "feedline.DataLoader on a machine with a CUDA device, leave out collate_fn=, and pass it the source itself "
        'instead of a cache or a dataset around it. Or use decode="auto", which decodes wherever possible.'
    )


def _rounded(out: NDArray[np.generic]) -> object:
    torch = require("torch", extra="torch", purpose='Normalize(dtype="bfloat16")')
    return torch.from_numpy(out).bfloat16()


def pixels_of(image: Any) -> Pixels:
    """Return an image that is not encoded as a uint8 array with three colours.

    Raises:
        BadOption: it is not an image.
    """
    if is_tensor(image):
        image = image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
    elif hasattr(image, "getbands") and hasattr(image, "convert"):  # a Pillow image
        image = np.asarray(eight_bits(image).convert("RGB"))
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim not in (2, 3) or not image.size:
        what = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise BadOption(
            f"A transform of feedline.images was given {what}. It takes the bytes of an image file, a uint8 array with "
            "the axes height, width and color, or a Pillow image."
        )
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] == 1:
        return np.repeat(image, 3, axis=2)
    if image.shape[2] not in (3, 4):
        raise BadOption(
            f"The image has the shape {image.shape}, but its last axis should be color, with 3 values. If the channel "
            "is the first axis, use array.transpose(1, 2, 0)."
        )
    pixels: Pixels = image[:, :, :3]
    return pixels


class _Foreign:
    """A function from outside feedline, which receives pixels."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self._library = type(function).__module__.partition(".")[0]

    def __call__(self, image: Any, where: Placement, decode: str) -> object:
        if self._library == "albumentations":
            return self.function(image=image)["image"]  # type: ignore[call-arg]  # the interface of albumentations
        if self._library == "torchvision" and isinstance(image, np.ndarray):  # it leaves arrays unchanged
            torch = require("torch", extra="torch", purpose="Transforms of torchvision")
            image = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return self.function(image)


def image_transform(transform: object) -> Any:
    """Return `transform=` in the form that a source needs: feedline's image transforms defer, others stay as is."""
    if isinstance(transform, ImageTransform):
        transform = Compose([transform])
    return transform.deferring() if isinstance(transform, Compose) else transform


def fused_groups(transforms: Iterable[object]) -> list[list[ImageTransform] | Callable[[Any], Any]]:
    """Return transforms as `Compose` fuses them: lists that are one step each, and functions between them.

    The first is always a list, even if it is empty. Raises BadOption: an order that cannot work.
    """
    stages: list[Any] = _stages_of(_flat(transforms))
    return [one.transforms if isinstance(one, _Fused) else one.function for one in stages]
