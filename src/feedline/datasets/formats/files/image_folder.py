"""Images in folders, one folder per class."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from feedline.datasets.formats.files.dataset import FileDataset, LabelSource, Path, Read, by_user, read_bytes
from feedline.datasets.framework.form import Fields
from feedline.datasets.framework.source import Transform
from feedline.datasets.framework.store import Cache
from feedline.errors import BadOption, CorruptSource
from feedline.images.compose import image_transform
from feedline.images.decoding import decode_image
from feedline.images.pillow import decoded_picture, picture_decoder
from feedline.images.pipeline import PLACES, Pipeline
from feedline.system.failures import words
from feedline.system.optional import require

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif", ".jxl")
"""The endings that torchvision accepts as images, and three more."""

_WAYS: dict[str, str | None] = {"auto": None, "cpu": None, "rgb": "rgb8", "pil": "pil"}
"""Ways to decode images, by their names in `feedline.images.pillow`; None for `feedline.images.decode_image`."""


class ImageFolder(FileDataset):
    """A dataset of images in a folder, by default with a class for each of its directories.

    Classes, their numbers and the order of samples are those of torchvision's `ImageFolder`; so are `classes`,
    `class_to_idx`, `samples`, `imgs` and `targets`. A sample is a tuple of an image and a label. See `FileDataset` for
    how files are listed and stored.

    Args:
        root: the folder.
        fields: which of "image", "label" and "path" a sample has, and in what form: see `FileDataset`.
        extensions: allowed endings of names, ignoring case.
        labels: "folder" for the directory that an image is in, a CSV file, a function or None: see `FileDataset`.
        unlabelled: "error" or "skip": what to do with images that a CSV file does not name, or gives an empty label.
        allow_empty: True if a directory without images is also a class.
        decode: "auto" for an upright uint8 array with the axes height, width and color; with a `transform` from
            `feedline.images`, it is decoded as small as the transform allows, and on the loader's device if it has one.
            "cpu" to never decode on a device, "gpu" to require one. "rgb" for such an array as Pillow decodes it,
            ignoring the EXIF orientation; "pil" for a Pillow image; "bytes" for the content of the file; or a function
            that takes these bytes.
        transform: from `feedline.images`, applied to the image; or any function, applied to each sample, which is a
            tuple of image and label unless `fields` changes that.
        cache: whether or where to cache the listing: see `FileDataset`.

    Raises:
        SourceError: the folder is missing, has no images, or a class has none; or a table of labels does not match.
        BadOption: an option is invalid.
        CorruptSource: when a sample is read: its file is damaged, truncated or not an image.
        MissingExtra: Pillow is not installed, and `decode` needs it.

    Example:
        >>> import pathlib, tempfile
        >>> from PIL import Image
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir()
        ...     Image.new("RGB", (4, 3)).save(folder / name / "1.png")
        >>> dataset = ImageFolder(folder)
        >>> dataset
        ImageFolder(2 samples of (file, class of 2))
        >>> image, label = dataset[1]
        >>> image.shape, label, dataset.classes
        ((3, 4, 3), 1, ['cat', 'dog'])
    """

    _value = "image"

    def __init__(
        self,
        root: Path,
        fields: Fields = ("image", "label"),
        *,
        extensions: str | Iterable[str] | None = IMAGES,
        labels: LabelSource = "folder",
        unlabelled: str = "error",
        allow_empty: bool = False,
        decode: str | Callable[[bytes], object] = "auto",
        transform: Transform | None = None,
        cache: Cache = True,
    ) -> None:
        fields = self._folder_fields(root, fields, labels)
        pipeline = image_transform(transform)
        defers = isinstance(pipeline, Pipeline)
        if decode == "gpu" and not defers:
            raise BadOption(
                'decode="gpu" needs a transform= from feedline.images, which also runs on the device. Pass one, or use '
                'decode="auto".'
            )
        reads = read_bytes if defers and decode in PLACES else _decoder(decode)
        super().__init__(
            root,
            extensions=extensions,
            labels=labels,
            unlabelled=unlabelled,
            allow_empty=allow_empty,
            fields=fields,
            transform=pipeline,
            cache=cache,
        )
        self._reads = reads
        if isinstance(self.transform, Pipeline) and decode in ("cpu", "gpu"):
            self.transform = self.transform.decoding(decode)

    def _several(self, indices: Iterable[object]) -> list[object]:
        if not isinstance(self.transform, Pipeline):
            return super()._several(indices)
        return list(map(self._transformed, self._checked(indices).tolist()))

    def _transformed(self, index: int) -> object:
        assert self.transform is not None
        try:
            return self.transform(self._sample(index))
        except CorruptSource as exc:
            raise CorruptSource(f"{self.path_of(index)} cannot be decoded as an image: {words(exc)}.") from exc

    @property
    def imgs(self) -> Sequence[tuple[str, Any]]:
        """The same as `samples`, under torchvision's name."""
        return self.samples


def _decoder(decode: str | Callable[[bytes], object]) -> Read:
    """Return the function for `decode=` of an `ImageFolder`.

    Raises BadOption: `decode` is unknown; MissingExtra: it needs Pillow, which is not installed.
    """
    if callable(decode):
        return functools.partial(by_user, decode, read_bytes)
    if decode == "bytes":
        return read_bytes
    if decode not in _WAYS:
        known = ", ".join(map(repr, (*_WAYS, "gpu", "bytes")))
        raise BadOption(f"decode={decode!r} is neither one of {known} nor a function that takes bytes.")
    require("PIL.Image", extra="images", purpose="Decoding images")  # now rather than in a worker
    return functools.partial(_read_picture, _WAYS[decode])


def _read_picture(way: str | None, path: str) -> object:
    content = read_bytes(path)
    try:
        return decoded_picture(decode_image if way is None else picture_decoder(way), content)
    except CorruptSource as exc:
        raise CorruptSource(f"{path} ({len(content)} bytes) cannot be decoded as an image: {words(exc)}.") from exc
