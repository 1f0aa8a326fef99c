"""What an HDF5 file contains: its fields and how many samples they have, kept without keeping the file open."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedline.datasets.framework.checksums import check_seal
from feedline.datasets.framework.form import Fields, Form, check_fields, in_packed_order, names_in
from feedline.datasets.framework.paths import File as FileStamp
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceError
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.sizes import SampleSize

if TYPE_CHECKING:
    from h5py import Dataset, File

NUMBERS, TEXT, BYTES, RAGGED = "numbers", "text", "bytes", "ragged"

UNREADABLE = (KeyError, OSError, OverflowError, RuntimeError, TypeError, ValueError)
"""Exceptions that h5py, and NumPy after it, raise when a file is damaged."""
_BLOCK_BYTES = 1 << 20
"""Rows that are not chunked count as chunks of this size."""
_STORED = "feedline"
"""Attribute of a file that `feedline pack` wrote: its metadata about all samples."""
_MOST_LINKS = 40
"""Maximum number of links to follow for one name, the same as Linux."""


@dataclass(frozen=True)
class Field:
    """A field of a dataset: the same in all its files."""

    name: str
    kind: str
    """NUMBERS, TEXT, BYTES or RAGGED."""
    dtype: np.dtype[np.generic]
    """Type of the numbers, in native byte order."""
    row_shape: tuple[int, ...]
    """Shape of one value; for lists of strings, for example, the shape of the list."""

    @property
    def row_bytes(self) -> int:
        """Size of a row if it holds numbers, otherwise a guess."""
        return math.prod(self.row_shape) * (self.dtype.itemsize if self.kind == NUMBERS else 64)

    @property
    def is_stackable(self) -> bool:
        """True if the values of a batch make one column."""
        if self.kind == NUMBERS:
            return self.dtype.kind in "biufc"  # there are no tensors of dates
        return self.kind != RAGGED and not self.row_shape

    def describe(self) -> str:
        """Describe the values for people, for example as `float32[3, 64]`."""
        shape = ", ".join(map(str, self.row_shape))
        if self.kind == NUMBERS:
            return f"{self.dtype}[{shape}]"
        value = {TEXT: "str", BYTES: "bytes", RAGGED: f"{self.dtype}[*]"}[self.kind]
        return f"{value}[{shape}]" if shape else value


@dataclass(frozen=True)
class Part:
    """One file of a dataset."""

    file: FileStamp
    length: int
    """Number of samples."""
    chunk_rows: int
    """Number of samples that are best read together."""

    @property
    def path(self) -> str:
        """Where the file is."""
        return self.file.path


def inspect(path: str, fields: Fields) -> tuple[Part, Form, tuple[Field, ...]]:
    """Return the metadata of a file.

    Raises BadOption if a field does not exist, is in another file or cannot be read, or if the fields differ in length;
    SourceError if the file cannot be opened; CorruptSource if it is damaged.
    """
    stamp = FileStamp.at(path)
    try:
        with open_file(path) as file:
            form = _form(file, fields, path)
            datasets = [dataset_of(file, name, path) for name in form.names]
            found = tuple(_field(name, dataset, path) for name, dataset in zip(form.names, datasets, strict=True))
            total = SampleSize()
            for field in found:
                total.add(f"{path}: a row of {field.name!r}", field.row_bytes)
            lengths = {name: int(dataset.shape[0]) for name, dataset in zip(form.names, datasets, strict=True)}
            if len(set(lengths.values())) > 1:
                raise BadOption(
                    f"The fields of {path} differ in length: {lengths}. Choose some that belong together with fields=."
                )
            heaviest = max(range(len(found)), key=lambda number: found[number].row_bytes)
            chunks = datasets[heaviest].chunks
            rows = chunks[0] if chunks else max(1, _BLOCK_BYTES // max(1, found[heaviest].row_bytes))
            return Part(stamp, lengths[form.names[0]], rows), form, found
    except FeedlineError:
        raise
    except UNREADABLE as exc:
        raise CorruptSource(f"The contents of {path} cannot be read: {words(exc)}.") from exc


def open_file(path: str) -> File:
    """Open a file for reading.

    Raises SourceError if it may not be read now; CorruptSource if it is not an HDF5 file or is incomplete; MissingExtra
    if h5py is not installed.
    """
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    try:
        # Evict chunks that were read completely first: feedline's own cache has them.
        return h5py.File(path, "r", locking="best-effort", rdcc_w0=1.0)
    except (FileNotFoundError, PermissionError) as exc:
        raise SourceError(f"{path} cannot be read: {words(exc)}.") from exc
    except OSError as exc:
        text = str(exc)
        if "truncated file" in text:
            size = os.path.getsize(path)
            raise CorruptSource(f"{path} is truncated: its header declares more than its {size} bytes.") from exc
        if isinstance(exc, BlockingIOError) or "already open for" in text or "to lock file" in text:
            raise SourceError(
                f"{path} is open for writing in another process, or was not closed after writing. Wait until it is "
                "closed, or read a copy; if its writer was killed, `h5clear -s` repairs the file."
            ) from exc
        raise CorruptSource(f"{path} is not an HDF5 file, or is damaged: {words(exc)}.") from exc


def dataset_of(file: File, name: str, path: str) -> Dataset:
    """Return the object that a file has under a name. Raises BadOption if its data is in another file."""
    if _leads_out(file, name):
        raise BadOption(
            f"{name!r} in {path} has its data in another file: it is an external link, a virtual dataset or has "
            "external storage. Copy the data into one file (`h5repack` does that for virtual datasets and external "
            "storage), or choose other fields with fields=."
        )
    return file[name]


def _leads_out(file: object, name: str) -> bool:
    """True if the data under this name is stored in another file. Opens no other file to find out."""
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    place, left, followed = file, name.split("/"), 0
    while left:
        part = left.pop(0).encode("utf-8", "surrogateescape")
        if part in (b"", b"."):
            continue
        if not isinstance(place, h5py.Group) or not place.id.links.exists(part):
            return False  # does not exist: reading it reports that
        kind = place.id.links.get_info(part).type
        if kind == h5py.h5l.TYPE_HARD:
            place = place[part]
            continue
        followed += 1
        if kind != h5py.h5l.TYPE_SOFT or followed > _MOST_LINKS:
            return True
        target = place.id.links.get_val(part).decode("utf-8", "surrogateescape")
        place, left = file if target.startswith("/") else place, target.split("/") + left
    if not isinstance(place, h5py.Dataset):
        return False
    plist = place.id.get_create_plist()
    return bool(plist.get_external_count() > 0 or plist.get_layout() == h5py.h5d.VIRTUAL)


def stored_in(file: File, path: str) -> str | None:
    """Return the metadata that `feedline pack` stored about all samples, or None if it did not write the file.

    Raises CorruptSource if the metadata is damaged.
    """
    stored = file.attrs.get(_STORED)
    if not isinstance(stored, bytes):
        return None
    text = stored.decode("utf-8", "replace")
    check_seal(path, text)
    return text


def _form(file: File, fields: Fields, path: str) -> Form:
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")

    def is_dataset(name: object) -> bool:
        return isinstance(name, str) and (
            _leads_out(file, name) or (name in file and isinstance(file[name], h5py.Dataset))
        )

    check_fields(fields)
    requested = names_in(fields)
    if requested and all(map(is_dataset, requested)):
        return Form.of(fields, requested, path)
    # Walking through the whole file takes long if it has many datasets, so do it only now.
    names: list[str] = []
    file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
    if fields is None:
        names = [name for name in in_packed_order(names, stored_in(file, path)) if file[name].shape]
        if not names:
            raise BadOption(f"{path} has no dataset with an axis that counts samples.")
    return Form.of(fields, names, path)


def _field(name: str, dataset: Dataset, path: str) -> Field:
    if not dataset.shape:
        raise BadOption(
            f"Field {name!r} of {path} is a single value, without an axis that counts samples. Leave it out of fields=."
        )
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    dtype, row_shape = dataset.dtype, tuple(dataset.shape[1:])
    if h5py.check_string_dtype(dtype) is not None:
        return Field(name, TEXT, np.dtype(object), row_shape)
    base, kind = h5py.check_vlen_dtype(dtype), RAGGED
    if base is None:
        kind = NUMBERS
        base, more = dtype.subdtype or (dtype, ())  # the axes of an array type count as axes of the row
        row_shape = (*row_shape, *more)
    base = np.dtype(base)
    # h5py 3.16 does not convert variable-length arrays, but says that it did.
    if base.kind not in "biufcmM" or (kind == RAGGED and not base.isnative):
        kept = f"sequences of {base.str}" if kind == RAGGED else str(dtype)
        raise BadOption(
            f"Field {name!r} of {path} holds {kept}, which cannot be part of a sample. Choose other fields with "
            "fields=, or store it as datasets of numbers, strings or variable-length arrays of this machine's byte "
            "order."
        )
    if kind == RAGGED and base == np.uint8 and dataset.attrs.get("feedline") in ("bytes", b"bytes"):
        kind = BYTES
    return Field(name, kind, np.dtype(base.newbyteorder("=").str), row_shape)  # without h5py's metadata
