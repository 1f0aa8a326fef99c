"""What a pipeline is: it changes the image of a sample, and what moves with it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feedline.abc.memory import Placement, on_this_thread
from feedline.errors import BadOption
from feedline.images.field import image_field, stored_bytes
from feedline.images.fields import replaced
from feedline.images.geometry import View
from feedline.images.targets.moving import Targets, checked_targets, move_targets
from feedline.randomness.scope import TRANSFORM, stage

if TYPE_CHECKING:
    from typing_extensions import Self

PLACES = ("auto", "cpu", "gpu")
"""Where images can be decoded."""


class Pipeline(ABC):
    """Changes the image of a sample. Sources accept it as `transform=`.

    Args:
        decode: "auto" to decode on the device of the batches if it can, "cpu" to never do so, "gpu" to require it.
        targets: what moves with the image, by the name of its field.
    """

    def __init__(self, *, decode: str = "auto", targets: Targets | None = None) -> None:
        self.field: Hashable = None
        """The field of a sample that holds the image; None to look for it."""
        self.decode = self._checked(decode)
        self.targets = checked_targets(targets)
        self.defers = False
        """True if the last steps may be left to a later stage, where `on_this_thread.placement` says so."""

    def on(self, field: Hashable) -> Self:
        """Return a copy for samples whose image is in this field, or at this index of a tuple."""
        return self._with(field=field)

    def decoding(self, decode: str) -> Self:
        """Return a copy with another `decode=`."""
        return self._with(decode=self._checked(decode))

    def deferring(self) -> Self:
        """Return a copy for a source, which passes on its results unchanged."""
        return self._with(defers=True)

    def _with(self, **options: object) -> Self:
        twin = copy.copy(self)
        vars(twin).update(options)
        return twin

    def _checked(self, decode: str) -> str:
        if decode not in PLACES:
            raise BadOption(f"decode={decode!r} is not one of {', '.join(map(repr, PLACES))}.")
        self._check_gpu(decode == "gpu")
        return decode

    @abstractmethod
    def _check_gpu(self, required: bool) -> None:
        """Reject `decode="gpu"` if no GPU can do what the pipeline does."""

    @abstractmethod
    def _image(self, image: object, where: Placement) -> tuple[object, Sequence[View]]:
        """Return the finished or deferred image, and the views of its stages."""

    # Any, throughout: a sample with an image among its fields, and what becomes of it.
    def __call__(self, sample: object) -> Any:
        field = image_field(sample, self.field, self.targets)
        with stage(TRANSFORM):
            if field is not None:
                return self._sample(sample, field)
            if self.targets:
                raise BadOption(
                    f"targets= names {', '.join(map(repr, self.targets))}, but the sample is an image alone. Pass a "
                    "dict or a tuple with the image and its targets."
                )
            return self._one(sample)[0]

    def _sample(self, sample: Any, field: Hashable) -> Any:
        if isinstance(sample[field], list):  # several samples at once, as Hugging Face passes them
            if not self.targets:
                return replaced(sample, field, lambda images: [self._one(image)[0] for image in images])
            return self._several(sample, field)
        image, views = self._one(sample[field])
        sample = replaced(sample, field, lambda _: image)
        return move_targets(sample, self.targets, views) if self.targets else sample

    def _several(self, samples: Any, field: Hashable) -> object:
        rows = [{name: samples[name][row] for name in samples} for row in range(len(samples[field]))]
        rows = [self._sample(row, field) for row in rows]
        return {name: [row[name] for row in rows] for name in samples}

    def _one(self, image: object) -> tuple[object, Sequence[View]]:
        if isinstance(image, Mapping):  # as Hugging Face stores them
            image = stored_bytes(image)
        return self._image(image, on_this_thread.placement if self.defers else Placement.DATASET)
