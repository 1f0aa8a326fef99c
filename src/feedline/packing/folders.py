"""Folders of files, and tables that name files, as datasets of what is in the files.

Files are not decoded: they are packed as they are, unless pictures are to be encoded again.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.datasets.csv.rows import delimiter_of
from feedline.datasets.files import FileDataset, ImageFolder
from feedline.datasets.files.image_folder import IMAGES
from feedline.datasets.files.labels import numbers_in
from feedline.datasets.opening import Recognised, is_picture_name, some
from feedline.errors import BadOption, SourceError
from feedline.packing.schema import Sample, listed


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


Files = FileDataset | TableFiles


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
