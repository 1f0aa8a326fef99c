"""From what users write for a dataset, a path or `module:object`, to the dataset; for `pack` and `inspect` alike.

Folders of files, and tables that name files, are datasets of what is in the files. These are not decoded: they are
packed as they are, unless pictures are to be encoded again.
"""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from feedline.datasets.cache.fingerprint import fingerprint as fingerprint_of
from feedline.datasets.csv.rows import delimiter_of
from feedline.datasets.files import FileDataset, ImageFolder
from feedline.datasets.files.image_folder import IMAGES
from feedline.datasets.files.labels import numbers_in
from feedline.datasets.objects import open_object
from feedline.datasets.opening import FACTS, Recognised, is_picture_name, recognise, some
from feedline.datasets.remote.storage import local_path, protocol_of
from feedline.datasets.tar import TarDataset, TarStream
from feedline.errors import BadOption, SourceError
from feedline.failures import words
from feedline.packing.line import dataset_text, fields_for, unpacked_option
from feedline.packing.options import Renamed
from feedline.packing.schema import Sample, Schema, listed
from feedline.packing.writers.contract import FORMATS
from feedline.packing.writers.npy import stored as stored_in_folder


@dataclass(frozen=True)
class Unused:
    """What is in a source and is not packed, without being a fault."""

    files: int = 0
    """Files that are no samples."""
    notes: tuple[str, ...] = ()
    """What it is, and why: the first three files of each kind by name."""

    def and_files(self, files: Sequence[Path], root: Path, why: str) -> Unused:
        """Return it with some files more."""
        many = "s" if len(files) > 1 else ""
        note = f"{len(files):,} file{many} ({some(list(files), root)}), {why}"
        return Unused(self.files + len(files), (*self.notes, note)) if files else self


@dataclass(frozen=True, eq=False, repr=False)
class TableFiles:
    """The content of the files that a table names, and its other columns."""

    root: Path
    """The folder that paths are relative to."""
    paths: Sequence[str]
    content: str
    """What the field with the content is called."""
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.paths)

    def path_of(self, index: int) -> str:
        """Return the path of a sample's file."""
        return str(self.root / self.paths[index])

    def __getitem__(self, index: int) -> Sample:
        path = self.path_of(index)
        try:
            content = Path(path).read_bytes()
        except OSError as exc:
            raise SourceError(f"Sample {index}, the file {path}, cannot be read: {str(exc).rstrip('.')}.") from exc
        columns = {name: values[index] for name, values in self.columns.items()}
        return {self.content: content, **columns, "path": self.paths[index]}

    def __repr__(self) -> str:
        return f"<{len(self)} files in {self.root}>"


# Any: a dataset of any class.
def called(dataset: Any, number: int) -> str:
    """Return what people call a sample: by its file, if the dataset says which that is, as torchvision's do, too."""
    path = None
    if callable(path_of := getattr(dataset, "path_of", None)):
        path = path_of(number)
    elif isinstance(pairs := getattr(dataset, "samples", None), list) and number < len(pairs):
        path = pairs[number][0] if isinstance(pairs[number], tuple) and pairs[number] else None
    return f"sample {number} ({path})" if isinstance(path, (str, os.PathLike)) else f"sample {number}"


@dataclass(frozen=True)
class Relative:
    """A transform: the path of a sample as seen from its folder."""

    root: str

    def __call__(self, sample: Sample) -> Sample:
        return {**sample, "path": os.path.relpath(sample["path"], self.root)}


def open_folder(found: Recognised) -> tuple[FileDataset, tuple[str, ...], dict[str, Any]]:
    """Return a folder of files as a dataset, the fields that are packed, and facts about all samples.

    Pictures in folders of it are labelled by them, as by `ImageFolder`. Raises SourceError: there are folders without
    pictures among others.
    """
    root = Path(found.path)
    below = Relative(found.path)
    if found.format == "files":
        return FileDataset(root, transform=below), ("data", "path"), {}
    if "labels" in found.options():  # there are none
        renamed = {"image": "data", "path": "path"}
        return FileDataset(root, extensions=sorted(IMAGES), fields=renamed, transform=below), ("image", "path"), {}
    fields = ["image", "label", "path"]
    images = ImageFolder(root, decode="bytes", fields=fields, transform=below, allow_empty=True)
    _check_classes(images, root)
    return images, ("image", "label"), {"classes": images.classes}


def _check_classes(images: ImageFolder, root: Path) -> None:
    """Refuse folders without pictures beside folders with some, in words that fit `pack`."""
    assert images.targets is not None  # they are what folders are for
    assert images.classes is not None
    full = set(images.targets.tolist())
    empty = [name for number, name in enumerate(images.classes) if number not in full]
    if not empty:
        return
    what = ", ".join(map(repr, empty[:3])) + (f" and {len(empty) - 3} more" if len(empty) > 3 else "")
    raise SourceError(
        f"In {root}, each folder is a class, but there are no pictures ({', '.join(sorted(IMAGES))}) in {what}. Move "
        "it elsewhere, convert what is in it, or list the files in a CSV file and pack that one. In Python, pack "
        'ImageFolder(..., decode="bytes", allow_empty=True).'
    )


def unused_in(root: Path, fields: Sequence[str]) -> Unused:
    """Return which files of a folder are not packed, given the fields that are."""
    if "image" not in fields:
        return Unused()  # all files are
    others: list[Path] = []
    outside: list[Path] = []
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            if not is_picture_name(name):
                others.append(Path(place, name))
            elif "label" in fields and place == str(root):
                outside.append(Path(place, name))
    endings = ", ".join(sorted({one.suffix.lower() or "none" for one in others})[:6])
    unused = Unused().and_files(others, root, f"not named as pictures are, but {endings}")
    return unused.and_files(outside, root, "pictures that are beside the folders of classes, and so in none")


def first_row(path: Path) -> list[str]:
    """Return the cells below the names of columns of a CSV file; none if there are no rows."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        delimiter = delimiter_of(file.readline())
        return next(csv.reader(file, delimiter=delimiter), [])


def names_files(path: Path) -> bool:
    """True if a cell of the first row of a CSV file is the path of a file, seen from the folder of the table."""
    return any(cell and "\0" not in cell and os.path.isfile(path.parent / cell) for cell in first_row(path))


def open_table(
    path: Path, *, root: Path | None, path_column: str | None
) -> tuple[TableFiles, tuple[str, ...], dict[str, Any]]:
    """Return a CSV file that names files as a dataset, the fields that are packed, and facts about all samples.

    Files are relative to `root`, by default the folder of the table. They stand in `path_column`, by default the first
    one whose first value is a file. Raises BadOption: no column names files; SourceError: the table cannot be read.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, restkey="", restval=None))
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise SourceError(f"The table {path} cannot be read: {str(exc).rstrip('.')}.") from exc
    if not rows:
        raise SourceError(f"The table {path} has no rows under its first line, so that there is nothing to pack.")
    names = [name for name in rows[0] if name]
    for number, row in enumerate(rows, 2):
        if "" in row or any(row[name] is None for name in names):
            raise SourceError(f"Row {number} of {path} has not {len(names)} cells, as its first line has.")
    folder = path.parent if root is None else root
    if path_column is None:
        path_column = next((name for name in names if rows[0][name] and (folder / rows[0][name]).is_file()), None)
        if path_column is None:
            raise BadOption(
                f"No column of {path} names files in {folder}: it has {listed(names)}, and the first row {rows[0]}. "
                "Say which one by --path-column, and where the files are by --root."
            )
    elif path_column not in names:
        raise BadOption(f"--path-column {path_column} is no column of {path}: it has {listed(names)}.")
    paths = [row[path_column] for row in rows]
    content = "image" if is_picture_name(paths[0]) else "data"
    columns = {name: numbers_in([row[name] for row in rows]) for name in names if name not in (path_column, content)}
    return TableFiles(folder, paths, content, columns), (content, *columns), {}


_KEYS = (
    "the keys of the samples (__key__): samples get numbers. To keep them, name all fields: --fields key=__key__,..."
)


# Any, throughout: a dataset of any class, and what JSON keeps.
@dataclass(frozen=True)
class Opened:
    """A dataset, and what is known of it."""

    path: str
    """What the user named."""
    dataset: Any
    text: str
    """What it is, for people, and to recognise it by when a run goes on."""
    fields: tuple[str, ...] | None = None
    """That are packed if nothing else was said."""
    facts: dict[str, Any] = field(default_factory=dict)
    """About all samples, such as the names of classes; stored with them."""
    unused: Unused = field(default_factory=Unused)
    """What is in the source and is not packed."""
    format: str = "Python"
    """A format of `feedline.datasets.opening`, or "Python" for `module:object`."""
    files: tuple[Path, ...] = ()
    """What it is read from, as far as that is known."""
    stored: dict[str, Any] | None = None
    """What `feedline pack` stored with the samples; None if it was not written by it."""
    expression: str = ""
    """The call of something in `feedline.datasets` that opens it; "" if there is none."""

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

    Of a store, no other than the wanted fields are looked at. Raises BadOption: it is nothing of these, or has no such
    fields; SourceError: it is not there, or empty.
    """
    if not os.path.exists(source) and ":" in source and "://" not in source:
        dataset = open_object(source)
        return Opened(source, dataset, f"{source} {dataset_fingerprint(dataset)}".rstrip())
    return open_path(source, fields=fields, root=root, path_column=path_column)


def open_path(
    source: str, *, fields: Renamed | None = None, root: Path | None = None, path_column: str | None = None
) -> Opened:
    """Open a path, as `open_source` does; nothing is imported or run."""
    found = recognise(source)
    wanted = None if fields is None else [old for _, old in fields]
    if found.format in ("pictures", "files"):
        return _open_folder(found)
    if found.format == "csv" and os.path.isfile(source) and Path(source).suffix.lower() in (".csv", ".tsv"):
        path = Path(source)
        # Names of pictures that are not there are a mistake, and no samples.
        if root or path_column or names_files(path) or any(map(is_picture_name, first_row(path))):
            table, names, facts = open_table(path, root=root, path_column=path_column)
            files = tuple(Path(table.path_of(number)) for number in range(len(table)))
            text = f"{source} {fingerprint(files)}"
            return Opened(source, table, text, names, facts, format="CSV table of files", files=files)
    return _open_store(found, wanted)


def _open_folder(found: Recognised) -> Opened:
    dataset, names, facts = open_folder(found)
    files = tuple(Path(dataset.path_of(number)) for number in range(len(dataset)))
    return Opened(
        found.path,
        dataset,
        f"{found.path} {fingerprint(files)}",
        names,
        facts,
        unused_in(Path(found.path), names),
        found.format,
        files,
        expression=f"open_dataset({found.path!r})",
    )


def _open_store(found: Recognised, wanted: list[str] | None) -> Opened:
    """Open a store; what `feedline pack` wrote with samples in the form, and with the names, that they had."""
    stored = _stored(found)
    fields = _fields(found, stored, wanted)
    options = {} if fields is None else {"fields": fields}
    dataset = found.open(**options)
    unused = Unused().and_files(found.beside, Path(found.path), f"beside the {len(found.files):,} stores")
    if found.format == "tar" and stored is None and fields is None:
        unused = Unused(unused.files, (*unused.notes, _KEYS))
    files = tuple(found.files or _local_files(found.path, dataset))
    if stored is not None and wanted is None:
        suffix = FORMATS[found.format].suffixes[0]
        place = os.path.join(found.path, f"*{suffix}") if found.files else found.path
        expression = dataset_text(found.format, place, Schema.from_json(stored["fields"]), stored["form"])
    else:
        given = "" if fields is None else f", fields={fields!r}"
        faster = unpacked_option(found.path) if found.format == "parquet" else ""
        expression = f"open_dataset({found.path!r}{given}{faster})"
    facts = stored.get("facts", {}) if stored else {}
    text = f"{found.path} {fingerprint(files)}"
    return Opened(found.path, dataset, text, None, facts, unused, found.format, files, stored, expression)


def _local_files(source: str, dataset: Any) -> list[Path]:
    if isinstance(dataset, (TarDataset, TarStream)):  # whose patterns are more than those of `glob`
        return [Path(local_path(shard)) for shard in dataset.shards if not protocol_of(shard)]
    path = Path(source)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path] if path.exists() else sorted(map(Path, glob.glob(source, recursive=True)))


# Any: whatever `fields=` of a source takes.
def _fields(found: Recognised, stored: dict[str, Any] | None, wanted: list[str] | None) -> Any:
    """Return `fields=` for a source, so that it looks at no others than are wanted."""
    if stored is None:
        is_one_array = found.format == "npy" and os.path.isfile(found.path)
        return None if found.format in ("lmdb", "precomputed") or is_one_array else wanted
    schema, form = Schema.from_json(stored["fields"]), stored["form"]
    if wanted is None or (form != "dict" and not set(wanted) <= set(schema.names)):
        return fields_for(found.format, schema, form)  # of tuples, names may also be new ones
    missing = next((one for one in wanted if one not in schema.names), None)
    if missing is not None:
        raise BadOption(f"{found.path} has no field {missing!r}, only {listed(schema.names)}.")
    columns = {column.name: column for column in schema.columns}
    chosen = fields_for(found.format, Schema(tuple(columns[one] for one in wanted)), form)
    return list(wanted) if chosen is None else chosen


def _stored(found: Recognised) -> dict[str, Any] | None:
    """Return what `feedline pack` stored about all samples; None if it was someone else, or the store is damaged."""
    if found.files and os.path.exists(os.path.join(found.path, FACTS)):
        return stored_in_folder(Path(found.path))
    first = found.files[0] if found.files else Path(found.path)
    is_single_array = found.format == "npy" and first.is_file()
    if found.format not in FORMATS or not first.exists() or is_single_array or found.is_compressed:
        return None
    try:
        stored: dict[str, Any] | None = FORMATS[found.format].module.stored(first)
    except Exception:  # whatever a library makes of damaged bytes: the source says it in words
        return None
    return stored


def fingerprint(files: Iterable[Path]) -> str:
    """Return a digest of names, sizes and times: another one if a file was changed, added or removed."""
    hashed = blake2b(digest_size=16)
    for path in files:
        try:
            found = os.stat(path)
        except OSError as exc:
            raise SourceError(f"The file {path} cannot be looked at: {words(exc)}.") from exc
        hashed.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return hashed.hexdigest()


def dataset_fingerprint(dataset: Any) -> str:
    """Return what differs if a dataset in Python does; "" if that cannot be told."""
    try:
        return fingerprint_of(dataset).hex()[:32]
    except Exception:  # whatever the objects of a user raise that are looked into
        return ""
