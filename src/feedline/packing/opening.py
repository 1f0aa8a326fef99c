"""From what users write for a dataset, a path or `module:object`, to the dataset."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline import datasets
from feedline.datasets.cache.fingerprint import fingerprint as fingerprint_of
from feedline.errors import BadOption, SourceError
from feedline.packing.folders import Files, fingerprint, open_folder, open_table
from feedline.packing.formats import FORMATS
from feedline.packing.line import CLASSES, fields_for
from feedline.packing.schema import Schema

_OTHER_SUFFIXES = {".npz": "ArrayDataset", ".arrow": "ArrowDataset", ".feather": "ArrowDataset"}


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

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the dataset, if it can be."""
        if callable(close := getattr(self.dataset, "close", None)):
            close()


def open_source(source: str, *, root: Path | None = None, path_column: str | None = None) -> Opened:
    """Open what a user names: a folder, a table, a store of any of the formats, or `module:object`.

    Raises:
        BadOption: it is nothing of these.
        SourceError: it is not there, or empty.
    """
    path = Path(source)
    if not path.exists() and ":" in source and "://" not in source:
        return _open_object(source)
    name = class_for(source)
    if name is not None:
        return Opened(_open_store(name, source), f"{source} {_stamp(source)}")
    if not path.exists():
        raise SourceError(
            f"There is nothing at {source}. A source is a folder, a CSV file, a file or pattern of one of the formats "
            f"({', '.join(suffixes())}), or module:object for a dataset in Python."
        )
    files: Files
    if path.is_dir():
        files, fields, facts = open_folder(path)
    elif path.suffix.lower() in (".csv", ".tsv"):
        files, fields, facts = open_table(path, root=root, path_column=path_column)
    else:
        raise BadOption(f"{source} is of no kind that can be packed: known are {', '.join(suffixes())} and .csv.")
    return Opened(files, f"{source} {fingerprint(files)}", fields, facts)


# Any: a dataset of any class.
def _open_store(name: str, source: str) -> Any:
    """Open a store; what `feedline pack` wrote with samples in the form, and with the names, that they had."""
    path = Path(source)
    files = sorted(map(str, shards_in(path))) if path.is_dir() and name != CLASSES["npy"] else []
    options: dict[str, Any] = {}
    stored = _stored(name, Path(files[0]) if files else path)
    if stored is not None:
        format_name = next(one for one, kind in CLASSES.items() if kind == name)
        options["fields"] = fields_for(format_name, Schema.from_json(stored["fields"]), stored["form"])
    if name == CLASSES["tar"]:
        compressed = any(not one.endswith(".tar") for one in files or [source])
        options |= {"mode": "stream", "shuffle": False} if compressed else {"mode": "random"}
    return getattr(datasets, name)(files or source, **options)


def _stored(name: str, path: Path) -> dict[str, Any] | None:
    format_ = next((one for one in FORMATS.values() if CLASSES[one.name] == name), None)
    if format_ is None or not path.exists() or path.suffix in (".gz", ".tgz", ".zst", ".zstd"):
        return None
    if format_.name == "npy" and path.is_file():
        return None
    found: dict[str, Any] | None = format_.module.stored(path)
    return found


def suffixes() -> list[str]:
    """Return by which suffixes stores are recognised."""
    return [suffix for one in FORMATS.values() for suffix in one.suffixes] + list(_OTHER_SUFFIXES)


def class_for(source: str) -> str | None:
    """Return the class of `feedline.datasets` that reads a store; None if the path does not look like one."""
    path = Path(source)
    if path.is_dir():
        if (path / "data.mdb").exists():
            return CLASSES["lmdb"]
        found = {one.suffix.lower() for one in path.iterdir() if not one.name.startswith(".")} - {".json"}
        names = {name for suffix in found for name in [_by_suffix(suffix)] if name is not None}
        return names.pop() if len(names) == 1 and len(found) == 1 else None
    for ending in (".gz", ".zst", ".zstd", ".tgz"):
        if path.name.lower().endswith((f".tar{ending}", ".tgz")):
            return CLASSES["tar"]
    return _by_suffix(path.suffix.lower())


def _by_suffix(suffix: str) -> str | None:
    known = next((CLASSES[one.name] for one in FORMATS.values() if suffix in one.suffixes), None)
    return known or _OTHER_SUFFIXES.get(suffix)


def shards_in(folder: Path) -> Iterable[Path]:
    """Return the files of a folder of shards; empty for a folder that is one store itself."""
    if (folder / "data.mdb").exists():
        return []
    return [one for one in folder.iterdir() if not one.name.startswith(".") and _by_suffix(one.suffix.lower())]


def _stamp(source: str) -> str:
    path = Path(source)
    if not path.exists():
        return ""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return " ".join(f"{one.stat().st_size}@{one.stat().st_mtime_ns}" for one in files[:1000])


def _open_object(source: str) -> Opened:
    module_name, _, attribute = source.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: the module of a user lies where the command is run
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or module_name.split(".")[0] != exc.name.split(".")[0]:
            raise  # the module is there, and lacks one of its own
        raise BadOption(
            f"{source!r} is neither a path nor module:object: there is no file of that name, and no module "
            f"{module_name!r} in {here} or among the installed packages."
        ) from exc
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise BadOption(f"The module {module_name!r} has no {attribute!r}, which {source!r} asks for.")
        found = getattr(found, name)
    if isinstance(found, type) or (callable(found) and not _is_dataset(found)):
        found = found()
    return Opened(found, f"{source} {dataset_fingerprint(found)}".rstrip())


# Any: a dataset of any class.
def dataset_fingerprint(dataset: Any) -> str:
    """Return what differs if a dataset in Python does; "" if that cannot be told."""
    try:
        return fingerprint_of(dataset).hex()[:32]
    except Exception:  # whatever the objects of a user raise that are looked into
        return ""


def _is_dataset(value: Any) -> bool:
    return hasattr(type(value), "__getitem__") or hasattr(type(value), "__iter__")
