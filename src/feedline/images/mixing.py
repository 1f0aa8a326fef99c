"""MixUp and CutMix: transforms of whole batches, which mix each image with another one and their labels alike."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.errors import BadOption
from feedline.images.medium import replaced
from feedline.images.transforms.choice import checked_weights, drawn_place
from feedline.randomness.scope import rng
from feedline.system.optional import is_tensor
from feedline.system.options import checked_count, checked_number
from feedline.system.shown import call_of
from feedline.types import CollateFunction


# Any, throughout: a batch is a tuple, list or dict of NumPy arrays or tensors.
class BatchTransform(ABC):
    """A transform of a batch of images and labels. It draws from `feedline.rng()`."""

    @abstractmethod
    def __call__(self, batch: object) -> Any:
        """Return the changed batch. The one that was passed stays as it is."""

    def after(self, collate: CollateFunction) -> CollateFunction:
        """Return a collate function that applies this transform to the batches of another one.

        Example:
            >>> import numpy as np
            >>> from feedline import collate, images
            >>> samples = [(np.ones((3, 4, 4), np.float32), label) for label in (0, 1)]
            >>> pixels, labels = images.MixUp(num_classes=2).after(collate.default)(samples)
            >>> pixels.shape, labels.shape
            ((2, 3, 4, 4), (2, 2))
        """
        return _After(collate, self)

    def __repr__(self) -> str:
        return call_of(self)


@dataclass(frozen=True)
class _After:
    collate: CollateFunction
    transform: BatchTransform

    def __call__(self, samples: object) -> Any:
        return self.transform(self.collate(samples))


class _Mixing(BatchTransform):
    """Mixes each image with the one before it in the batch, the first one with the last one, as torchvision does."""

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        num_classes: int | None = None,
        image: Hashable = None,
        label: Hashable = None,
    ) -> None:
        self.alpha = checked_number("alpha", alpha, above=0)
        self.num_classes = None if num_classes is None else checked_count("num_classes", num_classes)
        self.image = image
        self.label = label

    def __call__(self, batch: Any) -> Any:
        image, label = self._fields(batch)
        pixels, labels = batch[image], batch[label]
        if len(pixels) != len(labels):
            raise BadOption(f"The batch has {len(pixels)} images, but {len(labels)} labels.")
        mixed, share = self._mixed(pixels)
        batch = replaced(batch, image, lambda _: mixed)
        return replaced(batch, label, lambda labels: _blended(self._soft(labels), share))

    @abstractmethod
    def _mixed(self, pixels: object) -> tuple[object, float]:
        """Return the mixed images, and the share of each image itself."""

    def _fields(self, batch: object) -> tuple[Hashable, Hashable]:
        """Return the fields of images and labels."""
        if not isinstance(batch, (Mapping, tuple, list)):
            raise BadOption(
                f"{type(self).__name__} was given {type(batch).__name__}. It takes a batch with images and labels: a "
                "tuple, list or dict."
            )
        names = list(batch) if isinstance(batch, Mapping) else list(range(len(batch)))
        values: Any = batch
        images = [name for name in names if getattr(values[name], "ndim", 0) in (4, 5)]
        labels = [name for name in names if _may_be_labels(values[name], self.num_classes)]
        found = []
        for option, chosen, candidates in (("image", self.image, images), ("label", self.label, labels)):
            if chosen is not None and chosen not in names:
                raise BadOption(f"{option}={chosen!r} is not a field of the batch: it has {names}.")
            if chosen is None and len(candidates) != 1:
                look = f"fields {candidates} all look like it" if candidates else "no field looks like it"
                raise BadOption(
                    f"{type(self).__name__} cannot tell which field of the batch holds the {option}s: {look}. It has "
                    f"{names}. Name it with {option}=."
                )
            found.append(candidates[0] if chosen is None else chosen)
        return found[0], found[1]

    def _soft(self, labels: Any) -> object:
        """Return labels as floats with one column for each class."""
        if not (ndim := getattr(labels, "ndim", 0)) or (ndim == 1 and _is_float(labels)):
            what = f"{labels.dtype} of shape {tuple(labels.shape)}" if ndim else type(labels).__name__
            raise BadOption(
                f"{type(self).__name__} was given labels as {what}. It takes an array or tensor of the numbers of "
                "classes, or of floats with a column for each class."
            )
        if labels.ndim == 2:
            if self.num_classes not in (None, labels.shape[1]):
                raise BadOption(f"Labels have {labels.shape[1]} classes, but num_classes={self.num_classes}.")
            return labels if _is_float(labels) else _as_float(labels)
        if self.num_classes is None:
            raise BadOption(
                f"{type(self).__name__} needs num_classes=: labels are numbers of classes, and mixed ones have a share "
                "of each class."
            )
        is_on_gpu = is_tensor(labels) and labels.device.type != "cpu"  # comparing there would wait for it
        if len(labels) and not is_on_gpu and not 0 <= labels.min() <= labels.max() < self.num_classes:
            wrong = int(labels.min()) if labels.min() < 0 else int(labels.max())
            raise BadOption(
                f"A label is {wrong}, but num_classes={self.num_classes} allows 0 to {self.num_classes - 1}."
            )
        if not is_tensor(labels):
            return np.eye(self.num_classes, dtype=np.float32)[labels]
        import torch

        return torch.nn.functional.one_hot(labels.long(), self.num_classes).float()


class MixUp(_Mixing):
    """Blend each image of a batch with another one, and their labels with the same shares.

    Use it as `device_transform=` of a loader, or as a collate function with `after()`. Labels become floats with one
    column for each class. See "mixup: Beyond Empirical Risk Minimization", arXiv 1710.09412.

    Args:
        alpha: of the Beta distribution that shares are drawn from: one for each batch.
        num_classes: not needed if labels have a column for each class already.
        image: the field of the batch with images, if several have four axes, or five as clips of videos have.
        label: the field with labels, if there is more than one that could be.

    Example:
        >>> import numpy as np
        >>> mixup = MixUp(alpha=0.2, num_classes=3)
        >>> pixels, labels = mixup((np.zeros((4, 3, 8, 8), np.float32), np.array([0, 1, 2, 2])))
        >>> pixels.shape, labels.shape, labels.sum(1).round(3).tolist()
        ((4, 3, 8, 8), (4, 3), [1.0, 1.0, 1.0, 1.0])
    """

    def _mixed(self, pixels: Any) -> tuple[object, float]:
        if not _is_float(pixels):
            raise BadOption(f"MixUp needs images of floats, but these are {pixels.dtype}. Put Normalize before it.")
        share = float(rng().beta(self.alpha, self.alpha))
        return _blended(pixels, share), share


class CutMix(_Mixing):
    """Paste a rectangle of another image into each image of a batch, and blend their labels by its area.

    Use it as `device_transform=` of a loader, or as a collate function with `after()`. Labels become floats with one
    column for each class. See "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features",
    arXiv 1905.04899.

    Args:
        alpha: of the Beta distribution that shares are drawn from: one for each batch.
        num_classes: not needed if labels have a column for each class already.
        image: the field of the batch with images, if several have four axes, or five as clips of videos have.
        label: the field with labels, if there is more than one that could be.

    Example:
        >>> import numpy as np
        >>> cutmix = CutMix(num_classes=3)
        >>> pixels, labels = cutmix((np.zeros((4, 3, 8, 8), np.float32), np.array([0, 1, 2, 2])))
        >>> pixels.shape, labels.shape
        ((4, 3, 8, 8), (4, 3))
    """

    def _mixed(self, pixels: Any) -> tuple[object, float]:
        if pixels.ndim not in (4, 5):
            raise BadOption(
                f"CutMix needs images with four axes, or clips with five, but image={self.image!r} has the shape "
                f"{tuple(pixels.shape)}."
            )
        # The axis of channels. Clips have one more axis, and a width of more than 3.
        is_last = pixels.shape[-1] in (1, 3) and (pixels.ndim > 4 or pixels.shape[1] not in (1, 3))
        height, width = pixels.shape[-3:-1] if is_last else pixels.shape[-2:]
        generator = rng()
        part = math.sqrt(1 - float(generator.beta(self.alpha, self.alpha))) / 2
        x, y = int(generator.random() * width), int(generator.random() * height)
        across, down = int(part * width), int(part * height)
        rows = slice(max(0, y - down), min(height, y + down))
        columns = slice(max(0, x - across), min(width, x + across))
        place = (..., rows, columns, slice(None)) if is_last else (..., rows, columns)
        mixed = pixels.clone() if is_tensor(pixels) else pixels.copy()
        mixed[place] = _shifted(pixels[place])
        return mixed, 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (width * height)


class RandomBatchChoice(BatchTransform):
    """Apply one of several transforms to each batch.

    Args:
        transforms: functions of a batch, such as `MixUp` and `CutMix`.
        p: a weight for each of them; None for equal ones.

    Example:
        >>> from feedline import images
        >>> mixing = [images.MixUp(alpha=0.2, num_classes=1000), images.CutMix(num_classes=1000)]
        >>> choice = RandomBatchChoice(mixing)
    """

    def __init__(self, transforms: Sequence[Callable[[Any], object]], p: Sequence[float] | None = None) -> None:
        self.transforms = tuple(transforms)
        if not self.transforms or not all(map(callable, self.transforms)):
            raise BadOption(f"transforms={transforms!r} is not a sequence of functions of a batch.")
        self.p = checked_weights(p, len(self.transforms))

    def __call__(self, batch: object) -> Any:
        return self.transforms[drawn_place(self.p, len(self.transforms))](batch)


def _may_be_labels(value: Any, num_classes: int | None) -> bool:
    ndim = getattr(value, "ndim", 0)
    if ndim == 1:
        return not _is_float(value)
    return ndim == 2 and num_classes in (None, value.shape[1])


def _is_float(value: Any) -> bool:
    return bool(value.is_floating_point()) if is_tensor(value) else value.dtype.kind == "f"


def _as_float(labels: Any) -> object:
    return labels.float() if is_tensor(labels) else labels.astype(np.float32)


def _shifted(values: Any) -> Any:
    return values.roll(1, 0) if is_tensor(values) else np.roll(values, 1, 0)


def _blended(values: Any, share: float) -> object:
    """Return the sum of each row and the one before it, with these shares."""
    mixed = _shifted(values)
    mixed *= 1 - share
    mixed += share * values
    return mixed
