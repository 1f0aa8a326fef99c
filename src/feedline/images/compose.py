"""Transforms one after the other, as few steps over the pixels as possible.

A pipeline consists of stages. Neighbours that change the view only (`ImageTransform.draw`) are one stage: the image is
decoded as small as the crop allows, cut out and resized once, and finished in one pass. A function of the user's, of
torchvision or of albumentations is a stage of its own, which gets pixels. The last pass of the last stage can be left
to the collate function or to the device (see `placement.py`); what is drawn is the same then.
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
"""Where images are decoded."""


class Rank(enum.IntEnum):
    """In which order transforms can be done as one."""

    GEOMETRY = 0
    COLOR = 1
    FINISH = 2
    ANY = 3
    """Wherever it stands."""


# Any, throughout: an image is bytes of a file, pixels, or an image of Pillow; a sample has one among its fields.
class ImageTransform(ABC):
    """A transform of images that feedline can do as one with others.

    Called with an image, or with a sample that has one, it gives it back finished: an array.
    """

    rank: Rank
    resizes = False
    """True if pixels are made from several: a second one is a stage of its own."""

    @abstractmethod
    def draw(self, view: View) -> None:
        """Change what is to be seen of an image, with random numbers of `feedline.rng()`."""

    def __call__(self, image: Any) -> Any:
        return Compose([self])(image)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


class Decode(ImageTransform):
    """Decode the bytes of an image file into RGB, upright. Pipelines do so by themselves; this says it aloud."""

    rank = Rank.GEOMETRY

    def draw(self, view: View) -> None:
        pass


class Compose:
    """Transforms of images, one after the other.

    It takes the bytes of an image file, an array of uint8 with the axes height, width and color (or without the last),
    or an image of Pillow; or a sample that has one of these in one of its fields. Sources take it as `transform=`.

    Args:
        transforms: those of `feedline.images`, of torchvision (v2), of albumentations, or functions that take an array
            of uint8 with the axes height, width and color.
        decode: "auto" to decode on the device that batches go to if it can, "cpu" not to, "gpu" to insist on it.

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

    def __init__(self, transforms: Iterable[Any], *, decode: str = "auto") -> None:
        self.transforms = tuple(_flat(transforms))
        self._stages = _stages_of(self.transforms)
        self.field: Hashable = None
        """Which field of a sample is the image; None to look for it."""
        self.decode = self._checked(decode)
        self.defers = False
        """True if what is left to do may be left to others, where `placement()` says so."""

    def on(self, field: Hashable) -> Compose:
        """Return the same for samples whose image is in the field of this name, or at this place of a tuple."""
        return self._with(field=field)

    def decoding(self, decode: str) -> Compose:
        """Return the same with another `decode=`."""
        return self._with(decode=self._checked(decode))

    def _checked(self, decode: str) -> str:
        if decode not in PLACES:
            raise BadOption(f"decode={decode!r} is none of {', '.join(map(repr, PLACES))}.")
        if decode == "gpu" and len(self._stages) > 1:
            raise BadOption(
                f'decode="gpu" needs transforms that can be done as one, and those of {list(self.transforms)} cannot: '
                'a function needs pixels, and so does a second resize. Leave those out, or use decode="auto".'
            )
        return decode

    def deferring(self) -> Compose:
        """Return the same for a source, which hands on what comes out as it is."""
        return self._with(defers=True)

    def _with(self, **options: Any) -> Compose:
        twin = copy.copy(self)
        vars(twin).update(options)
        return twin

    def __call__(self, sample: Any) -> Any:
        field = image_field(sample, self.field)
        with stage(TRANSFORM):
            return self._image(sample) if field is None else replaced(sample, field, self._image)

    def _image(self, image: Any) -> Any:
        if isinstance(image, list):  # several samples at once, as Hugging Face has them transformed
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


Stage = Callable[[Any, Placement, str], Any]


def _flat(transforms: Iterable[Any]) -> Iterable[Any]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from transform.transforms
        elif callable(transform):
            yield transform
        else:
            raise BadOption(f"{transform!r} is no transform: it cannot be called with an image.")


def _stages_of(transforms: Iterable[Any]) -> list[Stage]:
    stages: list[Any] = [_Fused()]  # decodes, also if nothing follows
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
    """Transforms that change nothing but the view, done as one."""

    def __init__(self) -> None:
        self.transforms: list[ImageTransform] = []

    def takes(self, transform: ImageTransform) -> bool:
        """True if a transform can be done as one with those before it.

        Raises:
            BadOption: it comes too late to be done at all.
        """
        before = max((one.rank for one in self.transforms if one.rank is not Rank.ANY), default=Rank.GEOMETRY)
        if before is Rank.FINISH and transform.rank < Rank.FINISH:
            raise BadOption(
                f"{type(transform).__name__} comes after {self.transforms[-1]!r}, and the image is no array of uint8 "
                "with the axes height, width and color any more. Put it before."
            )
        if transform.resizes and any(one.resizes for one in self.transforms):
            return False
        return transform.rank > before or transform.rank is before is not Rank.COLOR

    def __call__(self, image: Any, where: Placement, decode: str) -> Any:
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
            raise _nobody_decodes()
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
    """Decode as much of an image as is to be seen, as small as that allows; returns also where it is in the pixels."""
    left, top, width, height = view.box
    factor = view.factor
    pixels = decode_image(data, header=header, factor=factor, rows=math.ceil(top + height) + 2 * factor)
    if pixels.shape[1] == header.width:
        return pixels, view.box
    # The last pixel of a row or a column stands for what is left, which is less than `factor`; upright it may be first.
    left += -header.width % factor if header.orientation in (2, 3, 6, 7) else 0
    top += -header.height % factor if header.orientation in (3, 4, 7, 8) else 0
    return pixels, (left / factor, top / factor, width / factor, height / factor)


def _nobody_decodes() -> BadOption:
    return BadOption(
        'decode="gpu" insists on a device that decodes images, and here none does. Give feedline.DataLoader '
        'device="cuda" on a machine with a CUDA device, leave collate_fn= to it, and give it the source itself instead '
        'of a cache or a dataset around it; or use decode="auto", which decodes wherever it can be done.'
    )


# Any: a tensor.
def _rounded(out: NDArray[Any]) -> Any:
    torch = require("torch", extra="torch", purpose='Normalize(dtype="bfloat16")')
    return torch.from_numpy(out).bfloat16()


def pixels_of(image: Any) -> Pixels:
    """Return an image that is not encoded as an array of uint8 with three colours.

    Raises:
        BadOption: it is none.
    """
    if is_tensor(image):
        image = image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
    elif hasattr(image, "getbands") and hasattr(image, "convert"):  # an image of Pillow
        image = np.asarray(eight_bits(image).convert("RGB"))
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim not in (2, 3) or not image.size:
        what = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise BadOption(
            f"A transform of feedline.images was given {what}. It takes bytes of an image file, an array of uint8 with "
            "the axes height, width and color, or an image of Pillow."
        )
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] == 1:
        return np.repeat(image, 3, axis=2)
    if image.shape[2] not in (3, 4):
        raise BadOption(
            f"The image has the shape {image.shape}: its last axis should be color, with 3 values. If the channel is "
            "the first, use array.transpose(1, 2, 0)."
        )
    pixels: Pixels = image[:, :, :3]
    return pixels


class _Foreign:
    """A function that feedline does not know: it gets pixels."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._library = type(function).__module__.partition(".")[0]

    def __call__(self, image: Any, where: Placement, decode: str) -> Any:
        if self._library == "albumentations":
            return self._function(image=image)["image"]  # type: ignore[call-arg]  # as albumentations wants it
        if self._library == "torchvision" and isinstance(image, np.ndarray):  # which leaves arrays as they are
            torch = require("torch", extra="torch", purpose="Transforms of torchvision")
            image = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return self._function(image)


def image_transform(transform: Any) -> Any:
    """Return what a source does with `transform=`: one of feedline's for images defers, any other stays as it is."""
    if isinstance(transform, ImageTransform):
        transform = Compose([transform])
    return transform.deferring() if isinstance(transform, Compose) else transform
