"""Sequences of transforms, fused into as few passes over the pixels as possible.

A transform changes the `View` of an image and touches no pixels. Adjacent transforms form one stage: the image is
decoded as small as the crop allows, cropped and resized once, and finished in one pass. A function from the user,
torchvision or albumentations is a stage of its own, which receives pixels. The last pass of the last stage can be left
to the collate function or the device (see `abc/deferred.py`); the random draws stay the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from feedline.abc.memory import Placement
from feedline.errors import BadOption
from feedline.images.decoding import CHANNELS
from feedline.images.deferred import DeferredImage
from feedline.images.geometry import View
from feedline.images.original import Original
from feedline.images.pipeline import Pipeline
from feedline.images.rendering import cut, dtype_of, finished_grey, rounded
from feedline.images.steps.step import GeometricStep
from feedline.images.targets.target import Targets, check_size
from feedline.randomness.scope import is_in_loader
from feedline.system.optional import require
from feedline.system.options import checked_choice
from feedline.system.shown import call_of


class ImageTransform(ABC):
    """An image transform that feedline can fuse with others.

    Called with an image, or with a sample that contains one, it returns the finished image as an array.
    """

    adds_steps = True
    """True if it may change pixels or move them, other than by a crop, a resize and a horizontal flip."""
    resizes = False
    """True if it resamples pixels: after another transform that does, or after steps, it starts a new stage."""
    finishes = False
    """True if it gives the image its final form; only transforms that are late may follow."""
    is_late = False
    """True if it may follow one that finishes."""
    mode: str | None = None
    """The mode that it chooses for the whole pipeline, if it does: see `decode_image`."""

    @abstractmethod
    def draw(self, view: View) -> None:
        """Change the view of an image, with random numbers of `feedline.rng()`."""

    # Any: the form of the result depends on the sample and the transform.
    def __call__(self, image: object) -> Any:
        return Compose([self])(image)

    def __repr__(self) -> str:
        return call_of(self)


class Decode(ImageTransform):
    """Decode the bytes of an image file, and choose the channels. Pipelines without it decode to RGB.

    Args:
        mode: "RGB"; "L" for one channel of 8-bit grey; or "I;16" for one channel of 16-bit grey, which keeps all bits
            of 16-bit PNG and TIFF files: see `decode_image`. With one channel, transforms may crop, resize and move
            pixels, but not change colours, and `Normalize` takes one number each as `mean` and `std`.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> pipeline = images.Compose(
        ...     [images.Decode("I;16"), images.Resize(8), images.Normalize(mean=(0.5,), std=(0.5,))]
        ... )
        >>> pipeline(np.full((16, 16), 65535, np.uint16)).max()
        np.float32(1.0)
    """

    adds_steps = False

    def __init__(self, mode: str = "RGB") -> None:
        self.mode: str = checked_choice("mode", mode, CHANNELS)

    def draw(self, view: View) -> None:
        pass


class Compose(Pipeline):
    """A sequence of image transforms.

    It accepts the bytes of an image file, a uint8 array with the axes height, width and color (or without the last), or
    a Pillow image; or a sample with one of these in one of its fields. Sources accept it as `transform=`.

    Args:
        transforms: transforms of `feedline.images`, torchvision (v2) or albumentations, or functions that take a uint8
            array with the axes height, width and color.
        decode: "auto" to decode on the device of the batches if it can, "cpu" to never do so, "gpu" to require it.
        targets: what moves with the image: `Boxes`, `Mask` and `Keypoints`, by the names of their fields. A field is
            looked for in the sample, and in a dict that is a field of the sample. In a tuple, an index is a name, too.

    Raises:
        BadOption: an order that cannot work, such as a crop after `Normalize`.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> pipeline = Compose([images.Resize(32), images.CenterCrop(24), images.Normalize()])
        >>> image, label = pipeline((np.zeros((48, 64, 3), np.uint8), 7))
        >>> image.shape, image.dtype.name, label
        ((3, 24, 24), 'float32', 7)
        >>> detection = Compose([images.HorizontalFlip(1.0), images.Resize(24)], targets={"boxes": images.Boxes()})
        >>> image, target = detection((np.zeros((48, 64, 3), np.uint8), {"boxes": [[0, 0, 10, 20]]}))
        >>> target["boxes"].tolist()
        [[27.0, 0.0, 32.0, 10.0]]
    """

    def __init__(self, transforms: Iterable[object], *, decode: str = "auto", targets: Targets | None = None) -> None:
        self.transforms = tuple(_flat(transforms))
        self._first, self._others = stages_of(self.transforms)
        super().__init__(decode=decode, targets=targets)

    @property
    def mode(self) -> str:
        """The mode of its images: see `Decode`."""
        return self._first.mode

    def _check_gpu(self, required: bool) -> None:
        if required and (self._others or self.mode != "RGB"):
            raise BadOption(
                f'decode="gpu" needs transforms that can be fused into one step, but {list(self.transforms)} cannot: '
                "a function needs pixels, and so does a second resize, or a mode other than RGB. Leave those out, or "
                'use decode="auto".'
            )

    def _image(self, image: object, where: Placement) -> tuple[object, Sequence[View]]:
        original = Original(image, self.mode)
        return self.rendered(original, self.draw(original), where)

    def draw(self, original: Original) -> View:
        """Return what the first stage shows of an image."""
        return self._first.draw(*original.size)

    def rendered(self, original: Original, view: View, where: Placement) -> tuple[object, Sequence[View]]:
        """Return the image after all stages, and the views of these."""
        places = [Placement.DATASET] * len(self._others) + [where]
        made = self._first.render(original, view, places[0], self.decode)
        views = [view]
        for one, place in zip(self._others, places[1:], strict=True):
            if isinstance(one, Foreign):
                made = one(made)
                if self.targets:
                    check_size(made, one, view)
                continue
            original = Original(made, self.mode)
            view = one.draw(*original.size)
            made = one.render(original, view, place, self.decode)
            views.append(view)
        return made, views

    def __repr__(self) -> str:
        decode = "" if self.decode == "auto" else f", decode={self.decode!r}"
        targets = f", targets={self.targets!r}" if self.targets else ""
        return f"Compose([{', '.join(map(repr, self.transforms))}]{decode}{targets}){self._shown_field()}"


def _flat(transforms: Iterable[object]) -> Iterable[Callable[..., object] | ImageTransform]:
    if not isinstance(transforms, Iterable):
        raise BadOption(f"{transforms!r} is not a list of image transforms.")
    for transform in transforms:
        if isinstance(transform, Compose) and not transform.targets and transform.field is None:
            yield from transform.transforms
        elif callable(transform) and not isinstance(transform, Pipeline):
            yield transform
        else:
            advice = (
                "Pass targets= to the outer pipeline, and call its .on()." if isinstance(transform, Compose) else ""
            )
            raise BadOption(f"{transform!r} is not a transform of an image. {advice}".strip())


def image_transform(transform: object) -> Any:
    """Return `transform=` in the form that a source needs: feedline's image transforms defer, others stay as is."""
    if isinstance(transform, ImageTransform):
        transform = Compose([transform])
    return transform.deferring() if isinstance(transform, Pipeline) else transform


# -- stages ------------------------------------------------------------------------------------------------------------


class Fused:
    """Transforms that only change the view, fused into one stage.

    Args:
        mode: of the images, as for `decode_image`.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.transforms: list[ImageTransform] = []

    @property
    def channels_first(self) -> bool:
        """True if its images have the axes channel, height and width."""
        view = View(1, 1)
        for transform in self.transforms:
            if transform.finishes:  # draws no random numbers
                transform.draw(view)
        return view.channels_first

    def takes(self, transform: ImageTransform) -> bool:
        """True if a transform can be fused with those before it.

        Raises:
            BadOption: it comes too late to be possible at all.
        """
        finished = any(one.finishes for one in self.transforms)
        if finished and not transform.finishes and not transform.is_late:
            raise BadOption(
                f"{type(transform).__name__} comes after {self.transforms[-1]!r}, when the image is no longer a uint8 "
                "array with the axes height, width and color. Put it before."
            )
        return not transform.resizes or not any(one.resizes or one.adds_steps for one in self.transforms)

    def draw(self, width: int, height: int) -> View:
        """Return what the stage shows of an image of this size, with random numbers of `feedline.rng()`."""
        view = View(width, height)
        for transform in self.transforms:
            transform.draw(view)
            if CHANNELS[self.mode] > 1:
                continue
            if view.erasures or not all(isinstance(step, GeometricStep) for step in view.steps):
                raise BadOption(
                    f"{type(transform).__name__} changes colours, but Decode({self.mode!r}) leaves one channel. Leave "
                    'it out, or use Decode("RGB"), where grey files have three equal channels.'
                )
        return view

    def render(self, original: Original, view: View, where: Placement, decode: str) -> object:
        """Return the image that a view shows: finished, or deferred if it is finished elsewhere."""
        if decode == "gpu" and where is not Placement.DECODE and is_in_loader():
            raise BadOption(
                'decode="gpu" needs a device that decodes images, but none does here. Pass device="cuda" to '
                "feedline.DataLoader on a machine with a CUDA device, leave out collate_fn=, and pass it the source "
                'itself instead of a cache or a dataset around it. Or use decode="auto".'
            )
        finish = view.finish()
        if CHANNELS[self.mode] == 1:
            return rounded(finished_grey(*original.part(view), view), finish)
        waiting = DeferredImage(finish, view.flip, tuple(view.steps), tuple(view.erasures))
        if where is Placement.DECODE and original.is_for_gpu and decode != "cpu" and view.is_for_device:
            waiting.data, waiting.size, waiting.box = original.data, original.size, view.box
            return waiting
        waiting.pixels = cut(*original.part(view), *view.cut_size)
        if where is Placement.COLLATE:
            return waiting
        if where is not Placement.DATASET:
            return waiting.for_device()
        out = np.empty(finish.shape, dtype_of(finish))
        waiting.finish_into(out)
        return rounded(out, finish)


class Foreign:
    """A function from outside feedline, which receives pixels.

    Args:
        function: the function.
        channels_first: True if arrays that it receives have the axes channel, height and width.

    Raises:
        BadOption: it does not take arrays with these axes.
    """

    # Any: what a library's function returns.
    def __init__(self, function: Callable[..., Any], channels_first: bool = False) -> None:
        self.function = function
        self.channels_first = channels_first
        self._library = type(function).__module__.partition(".")[0]
        if channels_first and self._library == "albumentations":
            raise BadOption(
                f"{function!r} of albumentations takes images with the axes height, width and color, but Normalize or "
                "ToChannelsFirst comes before it. Put it before these."
            )

    def __call__(self, image: object) -> object:
        if self._library == "albumentations":
            return self.function(image=image)["image"]  # the interface of albumentations
        if self._library == "torchvision" and isinstance(image, np.ndarray):  # it leaves arrays unchanged
            torch = require("torch", extra="torch", purpose="Transforms of torchvision")
            planes = image if self.channels_first else np.moveaxis(image, -1, -3)  # of a clip, too
            image = torch.from_numpy(np.ascontiguousarray(planes))
        return self.function(image)

    def __repr__(self) -> str:
        return repr(self.function)


def stages_of(transforms: Iterable[object]) -> tuple[Fused, list[Fused | Foreign]]:
    """Return the first stage, which decodes the image and may have no transforms, and the others.

    Raises:
        BadOption: something is not a transform, or they are in an order that cannot work.
    """
    flat = list(_flat(transforms))
    mode = _mode(flat)
    first = Fused(mode)
    last: Fused | Foreign = first
    others: list[Fused | Foreign] = []
    for transform in flat:
        if not isinstance(transform, ImageTransform):
            last = Foreign(transform, last.channels_first)
            others.append(last)
            continue
        if isinstance(last, Foreign) or not last.takes(transform):
            last = Fused(mode)
            others.append(last)
        last.transforms.append(transform)
    return first, others


def _mode(transforms: Sequence[object]) -> str:
    """Return the mode of the images of a pipeline."""
    modes = [one.mode for one in transforms if isinstance(one, ImageTransform) and one.mode is not None]
    mode = modes[0] if modes else "RGB"
    if len(set(modes)) > 1 or (mode != "RGB" and getattr(transforms[0], "mode", None) != mode):
        raise BadOption(f"Decode({modes[-1]!r}) is not the first transform. Its mode holds for the whole pipeline.")
    for one in transforms:
        channels = len(one.mean) if isinstance(one, ImageTransform) and hasattr(one, "mean") else CHANNELS[mode]
        if channels != CHANNELS[mode]:
            raise BadOption(
                f"{one!r} is for {channels} channel(s), but images have {CHANNELS[mode]} with Decode({mode!r}). Pass a "
                "mean= and std= of that length."
            )
    return mode
