"""A contact sheet: small versions of the pictures of a store, in one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline._optional import require
from feedline.errors import BadOption
from feedline.images.pillow import checked_picture
from feedline.packing.pictures import extension_of, is_picture
from feedline.packing.schema import Sample

_SIDE, _TEXT, _GAP = 128, 14, 4
_COLUMNS = 8


def write_sheet(samples: Sequence[Sample], out: Path) -> int:
    """Draw the first picture of each sample, with its label or name under it; return how many there were.

    Raises:
        BadOption: no sample has a picture.
        MissingExtra: Pillow is not installed.
    """
    image = require("PIL.Image", extra="images", purpose="A contact sheet")
    draw = require("PIL.ImageDraw", extra="images", purpose="A contact sheet")
    pairs = ((picture_of(sample), caption_of(sample)) for sample in samples)
    found = [(picture, caption) for picture, caption in pairs if picture is not None]
    if not found:
        raise BadOption(
            "No sample that was looked at has a picture: bytes of a file that Pillow reads, or a uint8 array of "
            "height, width and colours. Leave out --sheet."
        )
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    sheet = image.new("RGB", (columns * (_SIDE + _GAP) + _GAP, rows * (_SIDE + _TEXT + _GAP) + _GAP), "white")
    pen = draw.Draw(sheet)
    for number, (picture, caption) in enumerate(found):
        left = _GAP + number % columns * (_SIDE + _GAP)
        top = _GAP + number // columns * (_SIDE + _TEXT + _GAP)
        small = _fitted(picture, image)
        sheet.paste(small, (left + (_SIDE - small.width) // 2, top + (_SIDE - small.height) // 2))
        pen.text((left, top + _SIDE + 1), caption[: _SIDE // 6], fill="black")
    try:
        sheet.save(out, "PNG")
    except OSError as exc:
        raise BadOption(f"--sheet {out} cannot be written: {str(exc).rstrip('.')}.") from exc
    return len(found)


# Any: an image of Pillow's, and its module.
def _fitted(picture: Any, image: Any) -> Any:
    scale = _SIDE / max(picture.size)
    size = tuple(max(1, round(side * scale)) for side in picture.size)
    # Small pictures keep their pixels, so that one sees what they are.
    return picture.resize(size, image.Resampling.NEAREST if scale > 1 else image.Resampling.BICUBIC)


def picture_of(sample: Sample) -> Any:
    """Return the first picture in a sample as an image of Pillow's; None if it has none."""
    image = require("PIL.Image", extra="images", purpose="A contact sheet")
    for value in sample.values():
        if isinstance(value, bytes) and extension_of(value) != "bin":
            try:
                with checked_picture(value) as opened:
                    return opened.convert("RGB")
            except (OSError, SyntaxError, ValueError):
                continue  # damaged: the next field, or no picture
        if isinstance(value, np.ndarray) and is_picture(pixels := _last_colours(value)):
            plain = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
            return image.fromarray(np.ascontiguousarray(plain)).convert("RGB")
    return None


def _last_colours(array: Any) -> Any:
    """Put colours last, if they come first."""
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        return array.transpose(1, 2, 0)
    return array


def caption_of(sample: Sample) -> str:
    """Return what is written under a picture: its label, class, name or path, whichever comes first."""
    for name in ("label", "cls", "class", "name", "path", "txt", "__key__"):
        value = sample.get(name)
        if isinstance(value, (str, int, np.integer, np.str_)):
            return str(value).rpartition("/")[2].encode("ascii", "replace").decode()
    return ""
