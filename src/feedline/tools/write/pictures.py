"""Resize and re-encode pictures on their way into a store."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, PackError
from feedline.images.jxl import is_jxl
from feedline.images.pillow import checked_picture, eight_bits
from feedline.system.failures import words
from feedline.system.optional import require

if TYPE_CHECKING:
    from PIL.Image import Image

ENCODINGS = ("keep", "jpg", "png", "raw")

_MAGIC = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
)
_FORMATS = {"jpg": "JPEG", "png": "PNG"}
_JPEG_MODES = ("L", "RGB")
_ARRAY_MODES = ("L", "RGB", "RGBA", "I", "F")
"""Modes of Pillow images that become arrays without conversion, unless the images are to be encoded."""


def extension_of(data: bytes) -> str:
    """Return the extension of the picture that bytes start like: "jpg", "png", and so on; "bin" if there is none."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    if is_jxl(data):
        return "jxl"
    if data[:2] == b"BM" and (len(data) < 14 or int.from_bytes(data[2:6], "little") != len(data)):
        return "bin"  # by these two letters alone, many texts would look like pictures
    return next((extension for magic, extension in _MAGIC if data.startswith(magic)), "bin")


@dataclass(frozen=True)
class Pictures:
    """How pictures are stored: bytes of picture files, Pillow images, and uint8 arrays if they are encoded or resized.

    Raises BadOption: an option makes no sense.
    """

    encode: str = "keep"
    """"jpg" or "png": encode; "raw": decode into uint8 arrays of height, width and three colours; "keep": leave files
    unchanged, and turn Pillow images into arrays (grey ones have two axes)."""
    resize: int | tuple[int, int] | None = None
    """A number: shrink the shorter side to it, if it is longer; (width, height): resize to exactly that."""
    quality: int = 90
    """JPEG quality."""

    def __post_init__(self) -> None:
        if self.encode not in ENCODINGS:
            raise BadOption(f"encode={self.encode!r} is not one of {', '.join(map(repr, ENCODINGS))}.")
        sizes = self.resize if isinstance(self.resize, tuple) else (self.resize,)
        if self.resize is not None and not all(isinstance(size, int) and size > 0 for size in sizes):
            raise BadOption(f"resize={self.resize!r} is neither a positive number of pixels nor (width, height).")
        if isinstance(self.resize, tuple) and len(sizes) != 2:
            raise BadOption(f"resize={self.resize!r} has {len(sizes)} numbers. Give a width and a height.")
        if not 1 <= self.quality <= 100:
            raise BadOption(f"quality={self.quality!r} is not between 1 and 100.")
        if self.does_something:
            require("PIL", extra="images", purpose="Resizing or encoding pictures")

    @property
    def does_something(self) -> bool:
        """False if values stay unchanged, except Pillow images, which always become arrays: no store holds them."""
        return self.encode != "keep" or self.resize is not None

    # Any: the value of a field.
    def apply(self, value: object) -> Any:
        """Return a picture as it is stored, and any other value unchanged.

        Raises PackError: the bytes are a picture that cannot be decoded, or cannot be stored in the requested form.
        """
        if isinstance(value, bytes):
            kind = extension_of(value) if self.does_something else "bin"
            return (
                value if kind == "bin" or (self.encode == kind and self.resize is None) else self._of_file(value, kind)
            )
        if _is_pillow(value):
            return self._stored(self._resized(value), value.info, "raw")
        if isinstance(value, np.ndarray) and self.does_something and is_picture(value):
            return self._of_array(value)
        return value

    def _of_array(self, value: NDArray[np.generic]) -> object:
        image = require("PIL.Image", extra="images", purpose="Encoding pictures")
        pixels = value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value
        resized = self._resized(image.fromarray(np.ascontiguousarray(pixels)))
        if self.encode in _FORMATS:
            return self._stored(resized, {}, "raw")
        made = np.asarray(resized)  # keep the number of colours: the dataset chose it when it made the array
        return made[..., None] if made.ndim < value.ndim else made

    def _of_file(self, data: bytes, kind: str) -> object:
        try:
            with checked_picture(data) as opened:
                info = dict(opened.info)
                target = self._target(opened.size)
                if target is not None and kind == "jpg":
                    # The decoder shrinks cheaply, by powers of two; `resize` does the rest in good quality. It gets
                    # twice the target size, to have enough pixels.
                    opened.draft(None, (2 * target[0], 2 * target[1]))
                opened.load()
                return self._stored(self._resized(opened, target), info, kind)
        except (OSError, SyntaxError, ValueError) as exc:
            raise PackError(
                f"a picture ({kind}, {len(data)} bytes) cannot be decoded or encoded: {words(exc)}."
            ) from exc

    def _target(self, size: tuple[int, int]) -> tuple[int, int] | None:
        if isinstance(self.resize, tuple):
            return None if self.resize == size else self.resize
        if self.resize is None or min(size) <= self.resize:
            return None
        shorter = min(size)
        width, height = (max(1, round(side * self.resize / shorter)) for side in size)
        return width, height

    def _resized(self, image: Image, target: tuple[int, int] | None = None) -> Image:
        target = target or self._target(image.size)
        if target is None:
            return image
        if image.mode in ("P", "PA", "1"):  # pixels can be interpolated only as colours, not as palette indices
            image = image.convert("L" if image.mode == "1" else _with_colours(image))
        bicubic = require("PIL.Image", extra="images", purpose="Resizing pictures").Resampling.BICUBIC
        return image.resize(target, bicubic)

    def _stored(self, image: Image, info: dict[str | tuple[int, int], object], kind: str) -> object:
        encoding = self.encode
        if encoding == "keep":
            encoding = kind if kind in _FORMATS or kind == "raw" else "png"
        if encoding == "raw":
            has_mode = self.encode == "keep" and image.mode in _ARRAY_MODES
            return np.asarray(image if has_mode else rgb(image))
        kept = {name: info[name] for name in ("exif", "icc_profile") if info.get(name)}
        if image.mode == "CMYK" or (encoding == "jpg" and image.mode not in _JPEG_MODES):
            if image.mode not in ("P", "RGBA"):
                kept.pop("icc_profile", None)  # the profile describes the colours before the conversion
            image = rgb(image)
        out = io.BytesIO()
        options = {"quality": self.quality} if encoding == "jpg" else {}
        image.save(out, _FORMATS[encoding], **options, **kept)
        return out.getvalue()


def rgb(image: Image) -> Image:
    """Return an image as 8-bit RGB, which most code expects, without transparency.

    Raises PackError: the image's values do not define black and white.
    """
    if image.mode == "RGB":
        return image
    image = eight_bits(image)
    if image.mode in ("I", "F"):
        raise PackError(
            f"a picture has 32-bit values (Pillow's mode {image.mode!r}), which do not define black and white. Leave "
            "out --encode, or convert it to 8 bits in a dataset in Python."
        )
    if image.mode in ("P", "PA"):
        image = image.convert(_with_colours(image))
    return image.convert("RGB")


def _with_colours(image: Image) -> str:
    return "RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB"


# Any: a value that has a dtype.
def is_picture(array: Any) -> bool:
    """True for uint8 arrays of height, width and up to four colours."""
    if array.dtype != np.uint8 or array.size == 0:
        return False
    return array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))


def _is_pillow(value: object) -> TypeGuard[Image]:
    return type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "getbands")
