"""What `pack` can be told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedline.errors import BadOption
from feedline.packing.formats import Format
from feedline.packing.pictures import Pictures
from feedline.packing.writers.contract import Layout


@dataclass(frozen=True)
class Options:
    """The options of `feedline.pack`, checked.

    Raises:
        BadOption: one that makes no sense.
    """

    pictures: Pictures = field(default_factory=Pictures)
    fields: tuple[str, ...] | None = None
    """Names of fields to keep, or names for the elements of tuples."""
    ragged: tuple[str, ...] = ()
    """Array fields whose shapes differ."""
    samples_per_shard: int | None = None
    shard_bytes: int | None = None
    layout: Layout = field(default_factory=Layout)
    on_error: str = "raise"
    """"raise" or "skip"."""
    facts: dict[str, Any] = field(default_factory=dict)
    """About all samples, stored with them."""
    checkpoint_every: int = 4096
    """Samples between two points from which an interrupted run can go on; fewer if they are large."""

    def __post_init__(self) -> None:
        for name in ("samples_per_shard", "shard_bytes", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise BadOption(f"{name}={value!r} is not a number of at least 1.")
        if self.on_error not in ("raise", "skip"):
            raise BadOption(f"on_error={self.on_error!r} is neither 'raise' nor 'skip'.")
        for name in ("fields", "ragged"):
            names = getattr(self, name) or ()
            if isinstance(names, str) or not all(isinstance(one, str) for one in names):
                raise BadOption(f"{name}={names!r} is not a list of names.")
            if len(set(names)) < len(names):
                raise BadOption(f"{name}={list(names)} names a field twice.")
        if self.fields == ():
            raise BadOption("fields=() names no field, so that nothing would be written.")

    @property
    def is_sharded(self) -> bool:
        """True if a size of shards was given."""
        return self.samples_per_shard is not None or self.shard_bytes is not None

    def as_json(self) -> dict[str, Any]:
        """Return all that decides about the output, in values that JSON keeps."""
        return asdict(self)


def check_place(out: Path, format_: Format, options: Options, *, overwrite: bool) -> bool:
    """Refuse an output that cannot be, and return whether it is a folder of shards.

    Raises:
        BadOption: it exists already, or does not fit the format.
    """
    compressions = format_.writer.compressions
    if options.layout.compression is not None and options.layout.compression not in compressions:
        known = f"one of {', '.join(compressions)}" if compressions else "none: its values are stored as they are"
        raise BadOption(f"compression={options.layout.compression!r} is not known to {format_.name}. It knows {known}.")
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
    if out.is_dir() and not (out / "feedline.json").exists():
        raise BadOption(
            f"{out} is a folder that feedline did not write, and is not replaced. Remove it, or give another name."
        )
    if out.is_file() and (sharded or format_.name == "npy"):
        raise BadOption(f"{out} is a file, but {format_.name} would be a folder here. Remove it, or give another name.")
    if out.is_dir() and not sharded and format_.name != "npy":
        raise BadOption(f"{out} is a folder, but {format_.name} would be a file here. Give another name.")
    if not out.parent.is_dir():
        raise BadOption(f"There is no folder {out.parent} to write {out.name} into. Make it first.")
    return sharded


def as_path(out: Any) -> Path:
    """Return where an output goes.

    Raises:
        BadOption: it is no path, or the name of a folder that cannot be replaced.
    """
    if not isinstance(out, (str, os.PathLike)):
        raise BadOption(f"out={out!r} is not a path.")
    path = Path(os.path.abspath(out))
    if not path.name:
        raise BadOption(f"{path} cannot be an output.")
    return path


def as_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names as a tuple; a single string stays one, to be refused."""
    return None if names is None else names if isinstance(names, str) else tuple(names)  # type: ignore[return-value]


def check_apart(source: str, out: Path) -> None:
    """Refuse an output that would become part of its own source.

    Raises:
        BadOption: it lies in the folder that is packed.
    """
    folder = Path(source)
    if folder.is_dir() and folder.resolve() in (out.resolve(), *out.resolve().parents):
        raise BadOption(f"{out} lies in {source}, which is to be packed: give a place outside of it.")
