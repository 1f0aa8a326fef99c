"""Stages of a pipeline: transforms that are fused into one pass, or a function of the user's.

Adjacent transforms that only change the view (`ImageTransform.draw`) form one stage: the image is decoded as small as
the crop allows, cropped and resized once, and finished in one pass. A function from the user, torchvision or
albumentations is a stage of its own, which receives pixels. The last pass of the last stage can be left to the collate
function or the device (see `abc/deferred.py`); the random draws stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.memory import Placement
from feedline.errors import BadOption
from feedline.images.decoding import CHANNELS
from feedline.images.deferred import DeferredImage
from feedline.images.finish import Finish
from feedline.images.geometry import View
from feedline.images.grey import finished_grey
from feedline.images.original import Original
from feedline.images.rendering import cut, dtype_of
from feedline.images.steps.step import GeometricStep
from feedline.images.transform import Rank, ViewTransform
from feedline.randomness.scope import is_in_loader
from feedline.system.optional import require


class Fused:
    """Transforms that only change the view, fused into one stage.

    Args:
        mode: of the images, as for `decode_image`.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.transforms: list[ViewTransform] = []

    @property
    def channels_first(self) -> bool:
        """True if its images have the axes channel, height and width."""
        view = View(1, 1)
        for transform in self.transforms:
            if transform.rank is Rank.FINISH:  # draws no random numbers
                transform.draw(view)
        return view.channels_first

    def takes(self, transform: ViewTransform) -> bool:
        """True if a transform can be fused with those before it.

        Raises:
            BadOption: it comes too late to be possible at all.
        """
        finished = any(one.rank is Rank.FINISH for one in self.transforms)
        if finished and transform.rank is not Rank.FINISH and not transform.is_late:
            raise BadOption(
                f"{type(transform).__name__} comes after {self.transforms[-1]!r}, when the image is no longer a uint8 "
                "array with the axes height, width and color. Put it before."
            )
        return not transform.resizes or not any(one.resizes or one.rank is Rank.STEP for one in self.transforms)

    def draw(self, original: Original) -> View:
        """Return what the stage shows of an image, with random numbers of `feedline.rng()`."""
        view = View(*original.size)
        for transform in self.transforms:
            transform.draw(view)
            if CHANNELS[self.mode] > 1:
                continue
            if view.erasures or not all(isinstance(step, GeometricStep) for step in view.steps):
                raise _needs_colors(transform, self.mode)
        return view

    def render(self, original: Original, view: View, where: Placement, decode: str) -> object:
        """Return the image that a view shows: finished, or deferred if it is finished elsewhere."""
        if decode == "gpu" and where is not Placement.DECODE and is_in_loader():
            raise _no_decoder()
        finish, size = view.finish(), view.cut_size
        if CHANNELS[self.mode] == 1:
            return _rounded(finished_grey(*original.part(view), view), finish)
        waiting = DeferredImage(finish, view.flip, tuple(view.steps), tuple(view.erasures))
        if where is Placement.DECODE and original.is_for_gpu and decode != "cpu":
            waiting.data, waiting.size = original.data, original.size
            waiting.box, waiting.cut_size = view.box, size
            return waiting
        waiting.pixels = cut(*original.part(view), *size)
        if where is Placement.COLLATE:
            return waiting
        if where is not Placement.DATASET:
            return waiting if size == (view.width, view.height) else waiting.moved()
        out = np.empty(finish.shape, dtype_of(finish))
        waiting.finish_into(out)
        return _rounded(out, finish)


def _rounded(out: NDArray[np.generic], finish: Finish) -> object:
    if finish.dtype != "bfloat16":
        return out
    torch = require("torch", extra="torch", purpose='Normalize(dtype="bfloat16")')
    return torch.from_numpy(out).bfloat16()


def _needs_colors(transform: ViewTransform, mode: str) -> BadOption:
    return BadOption(
        f"{type(transform).__name__} changes colours, but Decode({mode!r}) leaves one channel. Leave it out, or use "
        'Decode("RGB"), where grey files have three equal channels.'
    )


def _no_decoder() -> BadOption:
    return BadOption(
        'decode="gpu" needs a device that decodes images, but none does here. Pass device="cuda" to '
        "feedline.DataLoader on a machine with a CUDA device, leave out collate_fn=, and pass it the source itself "
        'instead of a cache or a dataset around it. Or use decode="auto", which decodes wherever possible.'
    )


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
            image = torch.from_numpy(np.ascontiguousarray(image if self.channels_first else image.transpose(2, 0, 1)))
        return self.function(image)

    def __repr__(self) -> str:
        return repr(self.function)


def stages_of(transforms: Iterable[Callable[..., object] | ViewTransform]) -> tuple[Fused, list[Fused | Foreign]]:
    """Return the first stage, which decodes the image, and the others.

    Raises:
        BadOption: the transforms are in an order that cannot work.
    """
    transforms = list(transforms)
    mode = _mode(transforms)
    first = Fused(mode)
    last: Fused | Foreign = first
    others: list[Fused | Foreign] = []
    for transform in transforms:
        if not isinstance(transform, ViewTransform):
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
    modes = [one.mode for one in transforms if isinstance(one, ViewTransform) and one.mode is not None]
    mode = modes[0] if modes else "RGB"
    if len(set(modes)) > 1 or (mode != "RGB" and getattr(transforms[0], "mode", None) != mode):
        raise BadOption(f"Decode({modes[-1]!r}) is not the first transform. Its mode holds for the whole pipeline.")
    for one in transforms:
        channels = len(one.mean) if isinstance(one, ViewTransform) and hasattr(one, "mean") else CHANNELS[mode]
        if channels != CHANNELS[mode]:
            raise BadOption(
                f"{one!r} is for {channels} channel(s), but images have {CHANNELS[mode]} with Decode({mode!r}). Pass a "
                "mean= and std= of that length."
            )
    return mode
