"""What `pack` can be told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline.datasets.opening import FACTS
from feedline.errors import BadOption
from feedline.tools.packing.pictures import Pictures
from feedline.tools.packing.writers.contract import Format

Renamed = tuple[tuple[str, str], ...]
"""Pairs: what a field is called in the output, and in the dataset."""


@dataclass(frozen=True)
class Options:
    """The options of `feedline.pack`, checked. Raises BadOption: one that makes no sense."""

    pictures: Pictures = field(default_factory=Pictures)
    fields: Renamed | None = None
    """Fields to keep, or names for the elements of tuples."""
    ragged: tuple[str, ...] = ()
    """Array fields whose shapes differ."""
    samples_per_shard: int | None = None
    shard_bytes: int | None = None
    compression: str | None = None
    on_error: str = "raise"
    """"raise" or "skip"."""
    facts: dict[str, Any] = field(default_factory=dict)
    """About all samples, stored with them."""

    def __post_init__(self) -> None:
        for name in ("samples_per_shard", "shard_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise BadOption(f"{name}={value!r} is not a number of at least 1.")
        if self.on_error not in ("raise", "skip"):
            raise BadOption(f"on_error={self.on_error!r} is neither 'raise' nor 'skip'.")

    @property
    def skips(self) -> bool:
        """True if samples that cannot be packed are left out."""
        return self.on_error == "skip"

    @property
    def is_sharded(self) -> bool:
        """True if a size of shards was given."""
        return self.samples_per_shard is not None or self.shard_bytes is not None


def check_place(out: Path, format_: Format, options: Options, *, overwrite: bool) -> bool:
    """Refuse an output that cannot be, and return whether it is a folder of shards.

    Raises BadOption: it exists already, or does not fit the format.
    """
    compressions = format_.writer.compressions
    if options.compression is not None and options.compression not in compressions:
        known = f"one of {', '.join(compressions)}" if compressions else "none: its values are stored as they are"
        raise BadOption(f"compression={options.compression!r} is not known to {format_.name}. It knows {known}.")
    is_file_name = out.suffix.lower() in format_.suffixes
    if options.is_sharded and not format_.has_shards:
        raise BadOption(f"{format_.name} has no shards: leave out the size of shards.")
    if options.is_sharded and is_file_name:
        raise BadOption(
            f"Shards are files in a folder, but {out.name!r} is the name of one file. Give a folder and the format: "
            f"{str(out.with_suffix(''))!r} --format {format_.name}."
        )
    sharded = format_.has_shards and not is_file_name
    if out.is_symlink() or (out.exists() and not overwrite):
        raise BadOption(f"{out} exists already. Say --overwrite (overwrite=True) to replace it, or give another name.")
    if out.is_dir() and not (out / FACTS).exists():
        raise BadOption(
            f"{out} is a folder that feedline did not write, and is not replaced. Remove it, or give another name."
        )
    kinds = ("file", "folder")
    is_folder = sharded or format_.is_folder
    if out.exists() and out.is_dir() != is_folder:
        raise BadOption(
            f"{out} is a {kinds[out.is_dir()]}, but {format_.name} would be a {kinds[is_folder]} here. Remove it, or "
            "give another name."
        )
    if not out.parent.is_dir():
        raise BadOption(f"There is no folder {out.parent} to write {out.name} into. Make it first.")
    return sharded


def as_path(out: Any) -> Path:
    """Return where an output goes. Raises BadOption: it is no path, or the name of a folder that cannot be replaced."""
    if not isinstance(out, (str, os.PathLike)):
        raise BadOption(f"out={out!r} is not a path.")
    path = Path(os.path.abspath(out))
    if not path.name:
        raise BadOption(f"{path} cannot be an output.")
    return path


# Any: whatever a user gives.
def as_fields(fields: Any) -> Renamed | None:
    """Return which fields are kept, with their new names first.

    Raises BadOption: it is neither a list of names nor a dict of them.
    """
    if fields is None:
        return None
    names = as_names(fields, "fields")
    old_names = as_names(fields.values(), "fields") if isinstance(fields, Mapping) else names
    pairs = tuple(zip(names, old_names, strict=True))
    if not names:
        raise BadOption("fields=() names no field, so that nothing would be written.")
    if len(set(names)) < len(names):
        raise BadOption(f"fields={list(names)} names a field twice.")
    odd = next((name for name in names if not is_name(name)), None)
    if odd is not None:
        old = next(old for new, old in pairs if new == odd)
        raise BadOption(
            f"{odd!r} cannot be the name of a field in every format: it is empty, begins with a dot or two "
            f"underscores, or has a slash in it. Give it another: --fields x={old} (fields={{'x': {old!r}}} in Python)."
        )
    return pairs


def is_name(name: str) -> bool:
    """True if a field may have this name in every format."""
    return bool(name) and not name.startswith((".", "__")) and not any(sign in name for sign in "/\\\0\n")


def as_names(names: Any, option: str) -> tuple[str, ...]:
    """Return names of fields as a tuple. Raises BadOption: it is no list of names."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise BadOption(f"{option}={names!r} is not a list of names.")
    found = tuple(names)
    if not all(isinstance(one, str) for one in found):
        raise BadOption(f"{option}={names!r} is not a list of names.")
    return found


def check_apart(source: str, out: Path) -> None:
    """Refuse an output that would become part of its own source.

    Raises BadOption: it lies in the folder that is packed.
    """
    folder = Path(source)
    if folder.is_dir() and folder.resolve() in (out.resolve(), *out.resolve().parents):
        raise BadOption(f"{out} lies in {source}, which is to be packed: give a place outside of it.")
