"""Metadata of one file, kept without keeping the file open."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedline.datasets.framework.checksums import check_seal
from feedline.datasets.framework.form import Fields, Form, check_fields, in_packed_order, names_in
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceError
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.process import lock_of_process
from feedline.system.sizes import SampleSize

if TYPE_CHECKING:
    from h5py import Dataset, File

NUMBERS, TEXT, BYTES, RAGGED = "numbers", "text", "bytes", "ragged"


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
        items = math.prod(self.row_shape)
        return items * (self.dtype.itemsize if self.kind == NUMBERS else 64)

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


def has_samples(dataset: Dataset) -> bool:
    """True if an HDF5 dataset has a first axis, which counts samples."""
    return dataset.shape is not None and len(dataset.shape) > 0


def field_of(name: str, dataset: Dataset, path: str) -> Field:
    """Return the field that an HDF5 dataset holds."""
    if not has_samples(dataset):
        raise BadOption(
            f"Field {name!r} of {path} is a single value, without an axis that counts samples. Leave it out of fields=."
        )
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    dtype, row_shape = dataset.dtype, tuple(dataset.shape[1:])
    if h5py.check_string_dtype(dtype) is not None:
        return Field(name, TEXT, np.dtype(object), row_shape)
    base = h5py.check_vlen_dtype(dtype)
    if base is not None:
        base = np.dtype(base)
        if not _is_plain(base):
            raise _unreadable(name, path, f"holds sequences of {base}")
        if base == np.uint8 and dataset.attrs.get("feedline") in ("bytes", b"bytes"):
            return Field(name, BYTES, np.dtype(np.uint8), row_shape)
        return Field(name, RAGGED, _native(base), row_shape)
    if dtype.names:
        raise _unreadable(name, path, f"is compound, with the members {', '.join(dtype.names)}")
    if dtype.subdtype is not None:  # an array type: its axes count as axes of the row
        base, more = dtype.subdtype
        if not _is_plain(base):
            raise _unreadable(name, path, f"is of the type {dtype}")
        return Field(name, NUMBERS, _native(base), (*row_shape, *more))
    if not _is_plain(dtype):
        kind = "opaque" if dtype.kind == "V" else "of references" if dtype.kind == "O" else f"of the type {dtype}"
        raise _unreadable(name, path, f"is {kind}")
    return Field(name, NUMBERS, _native(dtype), row_shape)


def _is_plain(dtype: np.dtype[np.generic]) -> bool:
    return dtype.kind in "biufcmM"


def _native(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    return np.dtype(dtype.newbyteorder("=").str)  # drops the metadata that h5py attaches


def _unreadable(name: str, path: str, what: str) -> BadOption:
    return BadOption(
        f"Field {name!r} of {path} {what}, which cannot be part of a sample. Choose other fields with fields=, or "
        "store it as datasets of numbers, strings or variable-length arrays."
    )


_BLOCK_BYTES = 1 << 20
"""Rows that are not chunked count as chunks of this size."""

_STORED = "feedline"
"""Attribute of a file that `feedline pack` wrote: its metadata about all samples."""

UNREADABLE = (KeyError, OSError, OverflowError, RuntimeError, TypeError, ValueError)
"""Exceptions that h5py, and NumPy after it, raise when a file is damaged."""

Stamp = tuple[int, int, int]
"""Size, modification time and inode of a file: if they differ, the file has to be checked again."""


@dataclass(frozen=True)
class Part:
    """One file of a dataset."""

    path: str
    stamp: Stamp
    length: int
    """Number of samples."""
    chunk_rows: int
    """Number of samples that are best read together."""
    external: bool = False
    """True if its data may be stored in other files."""


class Parts:
    """The files of a dataset, concatenated. The last one may grow."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.ends = np.cumsum([part.length for part in parts], dtype=np.int64)
        """Index after the last sample of each file."""

    def replace_last(self, part: Part) -> None:
        """Update the metadata of the last file."""
        parts = (*self.parts[:-1], part)
        # `parts` first: samples beyond the old `ends` are not requested before `ends` is updated.
        self.parts, self.ends = parts, Parts(parts).ends


_turn = lock_of_process()
"""Serializes reads of files that are being written: HDF5 must not read while it refreshes a dataset."""


def reading(*, swmr: bool) -> AbstractContextManager[object]:
    """Return a context that keeps other threads from reading if files are being written."""
    return _turn if swmr else nullcontext()


def stamp_of(status: os.stat_result) -> Stamp:
    """Return values that change when a file is written to or replaced."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def open_file(path: str, *, swmr: bool) -> File:
    """Open a file for reading.

    Raises SourceError if it does not exist or may not be read now; CorruptSource if it is not an HDF5 file or is
    incomplete; MissingExtra if h5py is not installed.
    """
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    try:
        # Evict chunks that were read completely first: feedline's own cache has them.
        return h5py.File(path, "r", swmr=swmr, libver="latest" if swmr else None, locking="best-effort", rdcc_w0=1.0)
    except FileNotFoundError as exc:
        raise SourceError(f"There is no file {path}.") from exc
    except PermissionError as exc:
        raise SourceError(f"{path} cannot be read: {words(exc)}.") from exc
    except OSError as exc:
        text = str(exc)
        if "signature not found" in text:
            raise CorruptSource(f"{path} is not an HDF5 file: it has no HDF5 signature.") from exc
        if "truncated file" in text:
            raise CorruptSource(
                f"{path} is truncated: it has {os.path.getsize(path)} bytes, fewer than its header declares. The copy "
                "or download was probably interrupted: get the file again."
            ) from exc
        if isinstance(exc, BlockingIOError) or "already open for" in text or "lock" in text:
            raise SourceError(
                f"{path} is open for writing in another process, or was not closed after writing. Wait until it is "
                "closed. To read a file that is being written in SWMR mode, pass swmr=True. If the writer was killed, "
                "`h5clear -s` repairs the file."
            ) from exc
        raise CorruptSource(f"{path} cannot be opened as an HDF5 file: {words(exc)}.") from exc


def dataset_of(file: File, name: str, path: str, *, external: bool) -> Dataset:
    """Return the object that a file has under a name."""
    if not external and leads_out(file, name):
        raise BadOption(
            f"{name!r} in {path} has its data in another file: it is an external link, a virtual dataset or has "
            "external storage. If you trust the author of the file, pass external=True; otherwise choose other fields "
            "with fields=."
        )
    return file[name]


_MOST_LINKS = 40
"""Maximum number of links to follow for one name, the same as Linux."""


def leads_out(file: object, name: str) -> bool:
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


def inspect(path: str, fields: Fields, *, swmr: bool, external: bool) -> tuple[Part, Form, tuple[Field, ...]]:
    """Return the metadata of a file.

    Raises BadOption if a field does not exist, is in another file or cannot be read, or if the fields differ in length;
    SourceError if the file cannot be opened.
    """
    try:
        with open_file(path, swmr=swmr) as file:
            form = _form(file, fields, path, external=external)
            datasets = [dataset_of(file, name, path, external=external) for name in form.names]
            if swmr:
                for dataset in datasets:
                    dataset.id.refresh()
            found = tuple(field_of(name, dataset, path) for name, dataset in zip(form.names, datasets, strict=True))
            total = SampleSize()
            for field in found:
                total.add(f"{path}: a row of {field.name!r}", field.row_bytes)
            length = _length(form, datasets, path, shortest=swmr)
            heaviest = max(range(len(found)), key=lambda number: found[number].row_bytes)
            chunks = datasets[heaviest].chunks
            rows = chunks[0] if chunks else max(1, _BLOCK_BYTES // max(1, found[heaviest].row_bytes))
            return Part(path, stamp_of(os.stat(path)), length, rows, external), form, found
    except FeedlineError:
        raise
    except UNREADABLE as exc:
        raise CorruptSource(f"The contents of {path} cannot be read: {words(exc)}.") from exc


def stored_in(file: File, path: str) -> str | None:
    """Return the metadata that `feedline pack` stored about all samples, or None if it did not write the file.

    Raises CorruptSource if the metadata is damaged.
    """
    stored = file.attrs.get(_STORED)
    if not isinstance(stored, bytes):
        return None
    stored = stored.decode("utf-8", "replace")
    check_seal(path, stored)
    return stored


def _form(file: File, fields: Fields, path: str, *, external: bool) -> Form:
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")

    def is_dataset(name: object) -> bool:
        if not isinstance(name, str):
            return False
        elsewhere = not external and leads_out(file, name)
        return elsewhere or (name in file and isinstance(file[name], h5py.Dataset))

    check_fields(fields)
    requested = names_in(fields)
    if requested and all(map(is_dataset, requested)):
        return Form.of(fields, requested, path)
    # Walking through the whole file takes long if it has many datasets, so do it only now.
    names: list[str] = []
    file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
    if fields is None:
        names = in_packed_order(names, stored_in(file, path))
        names = [name for name in names if has_samples(file[name])]
        if not names:
            raise BadOption(f"{path} has no dataset with an axis that counts samples.")
    return Form.of(fields, names, path)


def _length(form: Form, datasets: list[Dataset], path: str, *, shortest: bool) -> int:
    lengths = [int(dataset.shape[0]) for dataset in datasets]
    if shortest:  # the writer appends to one field after the other
        return min(lengths)
    for name, length in zip(form.names, lengths, strict=True):
        if length != lengths[0]:
            raise BadOption(
                f"All fields need the same length, but in {path} {form.names[0]!r} has {lengths[0]} and {name!r} has "
                f"{length} rows. Choose fields that belong together with fields=."
            )
    return lengths[0]
