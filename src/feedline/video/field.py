"""Which field of a sample is the video."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping

from feedline.errors import BadOption
from feedline.images.fields import Medium, is_encoded, is_file
from feedline.video.file import Video

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


def video_field(sample: object, field: Hashable = None) -> Hashable:
    """Return the field of a sample that contains a video; None if the sample is the video itself.

    Args:
        sample: a video, or a dict, tuple or list with a video in one field.
        field: the field to use, if known.

    Raises:
        BadOption: there is no such field, or not exactly one field contains a video.

    Example:
        >>> video_field({"mp4": b"0000ftypisom...", "cls": 3})
        'mp4'
    """
    return _VIDEO.field_of(sample, field)


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


_VIDEO = Medium(
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
