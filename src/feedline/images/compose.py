"""Sequences of transforms, done in as few passes over the pixels as possible: see `stages.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from feedline.abc.memory import Placement
from feedline.errors import BadOption
from feedline.images.decoding import check_mode
from feedline.images.geometry import View
from feedline.images.original import Original
from feedline.images.pipeline import Pipeline
from feedline.images.stages import Foreign, Fused, stages_of
from feedline.images.targets.moving import Targets, check_size
from feedline.images.transform import Rank, ViewTransform


class ImageTransform(ViewTransform):
    """An image transform that feedline can fuse with others.

    Called with an image, or with a sample that contains one, it returns the finished image as an array.
    """

    # Any: the form of the result depends on the sample and the transform.
    def __call__(self, image: object) -> Any:
        return Compose([self])(image)


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

    rank = Rank.GEOMETRY

    def __init__(self, mode: str = "RGB") -> None:
        check_mode(mode)
        self.mode: str = mode

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
        return self._first.draw(original)

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
            view = one.draw(original)
            made = one.render(original, view, place, self.decode)
            views.append(view)
        return made, views

    def __repr__(self) -> str:
        decode = "" if self.decode == "auto" else f", decode={self.decode!r}"
        targets = f", targets={self.targets!r}" if self.targets else ""
        on = "" if self.field is None else f".on({self.field!r})"
        return f"Compose([{', '.join(map(repr, self.transforms))}]{decode}{targets}){on}"


def _flat(transforms: Iterable[object]) -> Iterable[Callable[..., object] | ViewTransform]:
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


def fused_groups(transforms: Iterable[object]) -> tuple[list[ViewTransform], list[list[ViewTransform] | Foreign]]:
    """Return transforms as `Compose` fuses them: lists that are one step each, and functions between them.

    The first list comes apart from the others; it may be empty. Raises BadOption: an order that cannot work.
    """
    first, others = stages_of(_flat(transforms))
    return first.transforms, [one.transforms if isinstance(one, Fused) else one for one in others]
