"""From what users write for a dataset, a path or `module:object`, to the dataset."""

from __future__ import annotations

import glob
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from feedline import datasets
from feedline.datasets.cache.fingerprint import fingerprint as fingerprint_of
from feedline.datasets.cache.folder import FILE as SAMPLES
from feedline.datasets.csv.dataset import ENDINGS as CSV_ENDINGS
from feedline.datasets.csv.dataset import PACKED
from feedline.datasets.csv.rows import delimiter_of
from feedline.errors import BadOption, SourceError
from feedline.failures import words
from feedline.packing.folders import (
    fingerprint,
    first_row,
    is_picture_name,
    names_files,
    open_folder,
    open_table,
    unused_in,
)
from feedline.packing.formats import FORMATS
from feedline.packing.line import CLASSES, fields_for
from feedline.packing.objects import open_object
from feedline.packing.options import Renamed
from feedline.packing.progress import Unused
from feedline.packing.recognition import COMPRESSED, ENVIRONMENT, Folder, class_for, folder_at, shown, suffixes
from feedline.packing.schema import Schema, listed
from feedline.packing.writers.npy import stored as stored_in_folder
from feedline.shown import shown_address

_IN_FOLDERS = (ENVIRONMENT, SAMPLES)
_KEYS = (
    "the keys of the samples (__key__): samples get numbers. To keep them, name all fields: --fields key=__key__,..."
)


@dataclass(frozen=True)
class Opened:
    """A dataset, and what is known of it."""

    dataset: Any  # of any class
    text: str
    """What it is, for people, and to recognise it by when a run goes on."""
    fields: tuple[str, ...] | None = None
    """That are packed if nothing else was said."""
    facts: dict[str, Any] = field(default_factory=dict)
    """About all samples, such as the names of classes; stored with them."""
    unused: Unused = field(default_factory=Unused)
    """What is in the source and is not packed."""

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the dataset, if it can be."""
        if callable(close := getattr(self.dataset, "close", None)):
            close()


def open_source(
    source: str, *, fields: Renamed | None = None, root: Path | None = None, path_column: str | None = None
) -> Opened:
    """Open what a user names: a folder, a table, a store of any of the formats, or `module:object`.

    Args:
        source: what the user names.
        fields: that are wanted; None for all. Of a store no others are looked at.
        root: the folder that the files of a table are relative to.
        path_column: the column of a table that names files.

    Raises:
        BadOption: it is nothing of these, or has no such fields.
        SourceError: it is not there, or empty.
    """
    path = Path(source)
    if not path.exists() and ":" in source and "://" not in source:
        found = open_object(source)
        return Opened(found, f"{source} {dataset_fingerprint(found)}".rstrip())
    wanted = None if fields is None else [old for _, old in fields]
    if path.is_dir():
        return _open_folder(path, source, wanted)
    name = class_for(source)
    if name is not None:
        return _open_store(name, source, [], wanted)
    if source.lower().endswith(CSV_ENDINGS) and (path.suffix.lower() in PACKED or glob.has_magic(source)):
        return _open_rows(source, wanted)
    if not path.exists():
        raise SourceError(
            f"There is nothing at {shown_address(source)}. A source is a folder, a CSV file, a file or pattern of one "
            f"of the formats ({', '.join(suffixes())}), or module:object for a dataset in Python."
        )
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise BadOption(f"{source} is of no kind that can be packed: known are {', '.join(suffixes())} and .csv.")
    # Names of pictures that are not there are a mistake, and no samples.
    about_files = root or path_column or names_files(path) or any(map(is_picture_name, first_row(path)))
    if not about_files:
        return _open_rows(source, wanted)
    table, names, facts = open_table(path, root=root, path_column=path_column)
    return Opened(table, f"{source} {fingerprint(table)}", names, facts)


def _open_rows(source: str, wanted: list[str] | None) -> Opened:
    """Open a CSV file, or those that fit a pattern, each row of which is a sample."""
    delimiter = None
    if os.path.isfile(source) and not source.lower().endswith(PACKED):
        with open(source, encoding="utf-8-sig", errors="replace") as file:
            delimiter = delimiter_of(file.readline())
    return Opened(datasets.CSVDataset(source, wanted, delimiter=delimiter), f"{source} {_stamp(source)}")


def _open_folder(path: Path, source: str, wanted: list[str] | None) -> Opened:
    """Open a folder as what `inspect` says it is."""
    found = folder_at(path)
    if found.kind == "stores":
        raise _no_samples(found, path)
    if found.dataset:
        shards = [str(one) for one in found.files] if found.kind == "shards" else []
        opened = _open_store(found.dataset, source, shards, wanted)
        if not found.beside:
            return opened
        note = f"{len(found.beside):,} beside the {len(found.files):,} stores, such as {shown(found.beside, path)}"
        return replace(opened, unused=opened.unused.and_files(len(found.beside), note))
    files, names, facts = open_folder(path)
    return Opened(files, f"{source} {fingerprint(files)}", names, facts, unused_in(path, names))


def _no_samples(folder: Folder, path: Path) -> BadOption:
    first = folder.files[0]
    one = first.parent if first.name in _IN_FOLDERS else first
    kinds = {class_for(one.name) for one in folder.files} - {None}
    why = "which are not read as one dataset" if len(folder.files) > 1 else "which is a store, not a sample"
    if len(kinds) == 1 and folder.beside and len(folder.files) > 1:
        why += f" because of what is beside them ({shown(folder.beside, path)})"
    return BadOption(f"In the folder {path} are {shown(folder.files, path)}, {why}. Pack one of them: {one}.")


def _open_store(name: str, source: str, files: list[str], wanted: list[str] | None) -> Opened:
    """Open a store; what `feedline pack` wrote with samples in the form, and with the names, that they had.

    Args:
        name: of the class that reads it.
        source: its path, or a pattern.
        files: of a folder of shards.
        wanted: names of fields; None for all.
    """
    path = Path(source)
    options: dict[str, Any] = {}
    stored = _stored(name, path, files)
    fields = _fields(name, path, stored, wanted)
    if fields is not None:
        options["fields"] = fields
    unused = Unused()
    if name == CLASSES["tar"] and stored is None and fields is None:
        unused = Unused(notes=(_KEYS,))
    unpacked = _unpacked(path, wanted) if path.suffix.lower() == ".npz" else None
    dataset = getattr(datasets, name)(files or source if unpacked is None else unpacked, **options)
    if name == CLASSES["tar"] and any(one.lower().endswith(COMPRESSED) for one in files or [source]):
        dataset = dataset.stream()
    facts = stored.get("facts", {}) if stored else {}
    return Opened(dataset, f"{source} {_stamp(source)}", None, facts, unused)


# Any: arrays of any type.
def _unpacked(path: Path, wanted: list[str] | None) -> dict[str, Any] | None:
    """Return the arrays of a compressed .npz file, which cannot be mapped, but held in memory; None if it is no such.

    Raises:
        BadOption: one of them cannot be read.
    """
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info.compress_type for info in archive.infolist()}
    names = list(members) if wanted is None else wanted
    if all(members.get(name, zipfile.ZIP_STORED) == zipfile.ZIP_STORED for name in names):
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except (ValueError, KeyError, OSError, zlib.error, zipfile.BadZipFile) as exc:
        raise BadOption(
            f"{path} cannot be read: {words(exc)}. Choose fields that can be with --fields (fields=)."
        ) from exc


# Any: whatever `fields=` of a source takes.
def _fields(name: str, path: Path, stored: dict[str, Any] | None, wanted: list[str] | None) -> Any:
    """Return `fields=` for a source, so that it looks at no others than are wanted."""
    if stored is None:
        has_names = name not in (CLASSES["lmdb"], "PrecomputedDataset") and not (
            name == CLASSES["npy"] and path.suffix.lower() == ".npy"
        )
        return wanted if has_names else None
    format_name = next(one for one, kind in CLASSES.items() if kind == name)
    schema, form = Schema.from_json(stored["fields"]), stored["form"]
    if wanted is None or (form != "dict" and not set(wanted) <= set(schema.names)):
        return fields_for(format_name, schema, form)  # of tuples, names may also be new ones
    missing = next((one for one in wanted if one not in schema.names), None)
    if missing is not None:
        raise BadOption(f"{path} has no field {missing!r}, only {listed(schema.names)}.")
    columns = {column.name: column for column in schema.columns}
    chosen = fields_for(format_name, Schema(tuple(columns[one] for one in wanted)), form)
    return list(wanted) if chosen is None else chosen


def _stored(name: str, path: Path, files: Sequence[str]) -> dict[str, Any] | None:
    """Return what `feedline pack` stored about all samples, None if it was someone else."""
    format_ = next((one for one in FORMATS.values() if CLASSES[one.name] == name), None)
    first = Path(files[0]) if files else path
    if format_ is None or not first.exists() or first.name.lower().endswith(COMPRESSED):
        return None
    if format_.name == "npy" and first.is_file():
        return None
    in_folder = stored_in_folder(path) if files else None
    found: dict[str, Any] | None = in_folder or format_.module.stored(first)
    return found


def _stamp(source: str) -> str:
    path = Path(source)
    if not path.exists():
        return ""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return " ".join(f"{one.stat().st_size}@{one.stat().st_mtime_ns}" for one in files[:1000])


# Any: a dataset of any class.
def dataset_fingerprint(dataset: Any) -> str:
    """Return what differs if a dataset in Python does; "" if that cannot be told."""
    try:
        return fingerprint_of(dataset).hex()[:32]
    except Exception:  # whatever the objects of a user raise that are looked into
        return ""
