"""Clips of videos: which frames, and what is done to them.

The transforms are those of `feedline.images`. They draw once for a clip, so that all of its frames have the same crop,
flip and colours. Each frame is cropped and resized as soon as it is decoded, so no more than one frame of full size is
held at a time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, SourceError
from feedline.images.compose import Foreign, Fused, ImageTransform, stages_of
from feedline.images.geometry import Finish, View
from feedline.images.medium import Medium, MediumPipeline, is_encoded, is_file
from feedline.images.rendering import cut, dtype_of, finish_into, rounded
from feedline.images.steps.step import Pixels
from feedline.system.failures import add_note
from feedline.system.optional import is_tensor
from feedline.system.options import checked_choice
from feedline.system.sizes import check_size, most_bytes
from feedline.video.clips import ClipSampler
from feedline.video.file import Video, checked_threads

AXES = ("THWC", "TCHW", "CTHW")

Clip = NDArray[np.generic]
Frames = Iterator[tuple[tuple[NDArray[np.int64], ...], Pixels]]
"""Frames at full size, and the place of each in the clip: an index array for each axis before height."""

_BEGINNINGS = (
    b"\x1a\x45\xdf\xa3",  # Matroska, WebM
    b"FLV\x01",
    b"OggS",
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",  # ASF
    b"\x00\x00\x01\xba",  # MPEG
    b"\x00\x00\x01\xb3",
    b"\x00\x00\x00\x01",  # H.264, H.265
    b"DKIF",  # IVF
    b"GIF8",
)
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp")
"""The first box of MP4 and QuickTime files, after its length."""
_TS_PACKET = 188


def is_video(value: object) -> bool:
    """True for a `Video`, the bytes of a video file, or a video of Hugging Face with its bytes."""
    if isinstance(value, Mapping):
        return is_file(value) and value["bytes"] is not None
    if not is_encoded(value):
        return isinstance(value, Video)
    head = bytes(value[:16])
    if head.startswith(_BEGINNINGS) or head[4:8] in _BOXES or head[8:12] == b"AVI ":
        return True
    return len(value) > _TS_PACKET and head[:1] == bytes(value[_TS_PACKET : _TS_PACKET + 1]) == b"\x47"


VIDEO = Medium(
    "a video",
    "videos",
    (is_video,),
    is_file,
    "Choose the one to transform with Compose(...).on(name), which may also be the path of a file.",
)


def video_of(value: object) -> Video:
    """Return a video. Raises BadOption: the value is not one."""
    if isinstance(value, Video):
        return value
    if isinstance(value, Mapping) and is_file(value):
        value = value["path"] if value["bytes"] is None else value["bytes"]
    if isinstance(value, (str, os.PathLike)) or is_encoded(value):
        return Video(value)
    raise BadOption(
        f"A transform of feedline.video was given {type(value).__name__}. It takes the path of a video file, the bytes "
        "of one, or a feedline.video.Video."
    )


class Compose(MediumPipeline):
    """A clip of a video, and transforms of its frames. All frames get the same crop, flip and colours.

    It accepts the path of a video file, its bytes, or a `Video`; or a sample with bytes or a `Video` in one of its
    fields. Sources accept it as `transform=`.

    Args:
        transforms: first a clip sampler, such as `RandomClip`; then transforms of `feedline.images`, torchvision (v2),
            or functions that take and return a uint8 array with the axes frame, height, width and color.
        axes: of the result: "THWC", "TCHW" or "CTHW". None for "TCHW" after `Normalize` or `ToChannelsFirst`, and for
            "THWC" otherwise. Samplers of several clips put one more axis in front.
        threads: threads that FFmpeg may use for a video. Workers already decode several at a time, so leave it at 1
            unless the loader has no workers; 0 lets FFmpeg choose.

    Raises:
        BadOption: an option is invalid, or the transforms cannot work in this order.

    Example:
        >>> from feedline import images, video
        >>> video.Compose([video.RandomClip(16, stride=2), images.RandomResizedCrop(224), images.Normalize()])
        Compose([RandomClip(frames=16, stride=2, short='hold'), RandomResizedCrop(...), Normalize(...)])
    """

    _medium = VIDEO

    def __init__(self, transforms: Iterable[object], *, axes: str | None = None, threads: int = 1) -> None:
        self.transforms = tuple(transforms)
        sampler = self.transforms[0] if self.transforms else None
        if not isinstance(sampler, ClipSampler):
            first = repr(self.transforms[0]) if self.transforms else "nothing"
            raise BadOption(
                f"The first transform must choose the frames of a clip, as RandomClip(16) does, but it is {first}."
            )
        self._sampler = sampler
        self.axes = checked_choice("axes", axes, (None, *AXES))
        self.threads = checked_threads(threads)
        self._first, self._others = _stages_of(self.transforms[1:])
        if axes is not None and self._others and isinstance(self._others[-1], Foreign):
            raise BadOption(
                f"axes={axes!r} has no effect, because the last transform, {self.transforms[-1]!r}, is a function: the "
                "result is what it returns. Leave out axes=, or put a transform of feedline.images after the function."
            )

    def _changed(self, value: object) -> object:
        video = video_of(value)
        try:
            positions = _checked(np.asarray(self._sampler.pick(video.timeline)), self._sampler)
        except SourceError as exc:  # the video is too short
            add_note(exc, f"It is {video!r}.")
            raise
        clip: object = _rendered(
            video.decoded(positions, threads=self.threads),
            positions.shape,
            self._first,
            None if self._others else self.axes,
        )
        for place, group in enumerate(self._others, start=1):
            if isinstance(group, Foreign):
                clip = group(clip)
            else:
                pixels = _pixels_of(clip)
                axes = self.axes if place == len(self._others) else None
                clip = _rendered(_each(pixels), pixels.shape[:-3], group, axes)
        return clip

    def __repr__(self) -> str:
        axes = "" if self.axes is None else f", axes={self.axes!r}"
        threads = "" if self.threads == 1 else f", threads={self.threads}"
        return f"Compose([{', '.join(map(repr, self.transforms))}]{axes}{threads}){self._shown_field()}"


def _rendered(frames: Frames, lead: tuple[int, ...], fused: Fused, axes: str | None) -> object:
    """Return a clip with these axes in front, given its frames at full size."""
    view: View | None = None
    for rows, pixels in frames:
        if view is None:
            view = fused.draw(pixels.shape[1], pixels.shape[0])
            if axes is not None:
                view.channels_first = axes != "THWC"
            finish = view.finish()
            clip, by_frame = _allocated(lead, finish, axes)
        first, *others = zip(*rows, strict=True)
        part = cut(pixels, view.box, *view.cut_size)
        finish_into(by_frame[first], part, finish, flip=view.flip, steps=view.steps, erasures=view.erasures)
        for other in others:
            by_frame[other] = by_frame[first]
    return rounded(clip, finish)


def _allocated(lead: tuple[int, ...], finish: Finish, axes: str | None) -> tuple[Clip, Clip]:
    """Return a clip to fill, and a view of it in which the axes of a frame come last."""
    dtype = dtype_of(finish)
    check_size("The clip", math.prod((*lead, *finish.shape)) * dtype.itemsize, limit=most_bytes())
    if axes != "CTHW":
        clip = np.empty((*lead, *finish.shape), dtype)
        return clip, clip
    clip = np.empty((*lead[:-1], 3, lead[-1], *finish.shape[1:]), dtype)
    return clip, np.moveaxis(clip, -3, -4)


def _checked(positions: NDArray[np.int64], sampler: object) -> NDArray[np.int64]:
    if not positions.size or not 1 <= positions.ndim <= 2 or positions.dtype.kind not in "iu":
        raise BadOption(
            f"{sampler!r} returned {positions.dtype} of shape {positions.shape} instead of positions of frames: "
            "integers with one axis for a clip, or two for several clips."
        )
    return positions


# Any: tensors are recognised without importing torch.
def _pixels_of(clip: Any) -> NDArray[np.uint8]:
    """Return the clip that a function returned as an array that transforms of `feedline.images` can change."""
    if is_tensor(clip):  # of torchvision
        clip = clip.movedim(-3, -1).numpy()
    if (
        not isinstance(clip, np.ndarray)
        or clip.dtype != np.uint8
        or clip.ndim < 4
        or clip.shape[-1] != 3
        or not clip.size
    ):
        what = f"{clip.dtype} of shape {clip.shape}" if isinstance(clip, np.ndarray) else type(clip).__name__
        raise BadOption(
            f"A transform of a video was given {what}. Before a transform of feedline.images, a function must return "
            "a uint8 array with the axes frame, height, width and color, and at least one frame."
        )
    return clip


def _each(clip: NDArray[np.uint8]) -> Frames:
    for row in np.ndindex(clip.shape[:-3]):
        yield tuple(np.array([place]) for place in row), clip[row]


def _stages_of(transforms: Sequence[object]) -> tuple[Fused, list[Fused | Foreign]]:
    for transform in transforms:
        if isinstance(transform, ClipSampler):
            raise BadOption(f"{transform!r} comes after another clip sampler. Choose frames once.")
        if type(transform).__module__.partition(".")[0] == "albumentations":
            raise BadOption(
                f"{transform!r} of albumentations takes single images, and would change each frame of a clip "
                "differently. Use feedline.images or torchvision (v2), which change all frames alike."
            )
        if isinstance(transform, ImageTransform) and transform.mode not in (None, "RGB"):
            raise BadOption(f"{transform!r} is for single images: frames of a video have three colours. Leave it out.")
    return stages_of(transforms)
