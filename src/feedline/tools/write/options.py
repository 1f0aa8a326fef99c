"""The options of `pack`, and the checks on them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from feedline.datasets.framework.checksums import SEAL, check_seal
from feedline.datasets.framework.manifest import FACTS, INDEX_FOLDER, WORK_FOLDER
from feedline.datasets.framework.paths import local_output
from feedline.datasets.storage.addresses import shown_url
from feedline.datasets.storage.storage import protocol_of
from feedline.errors import BadOption, CorruptSource
from feedline.system.files import make_folder_for
from feedline.tools.write.pictures import Pictures
from feedline.tools.write.writers.contract import Format

Renamed = tuple[tuple[str, str], ...]
"""Pairs of a field's name in the output and its name in the dataset."""


@dataclass(frozen=True)
class Options:
    """The checked options of `feedline.pack`. Raises BadOption: an option makes no sense."""

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
    metadata: dict[str, object] = field(default_factory=dict)
    """Metadata about all samples, stored with them."""

    def __post_init__(self) -> None:
        for name in ("samples_per_shard", "shard_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise BadOption(f"{name}={value!r} is not an integer of at least 1.")
        if self.on_error not in ("raise", "skip"):
            raise BadOption(f"on_error={self.on_error!r} is neither 'raise' nor 'skip'.")

    @property
    def skips(self) -> bool:
        """True if samples that cannot be packed are left out."""
        return self.on_error == "skip"

    @property
    def is_sharded(self) -> bool:
        """True if a shard size was given."""
        return self.samples_per_shard is not None or self.shard_bytes is not None


def check_place(out: Path, format_: Format, options: Options, *, overwrite: bool) -> bool:
    """Refuse an impossible output, and return whether the output is a folder of shards.

    Raises BadOption: the output exists already, or does not suit the format.
    """
    _check_compression(format_, options)
    is_file_name = out.suffix.lower() in format_.suffixes
    if options.is_sharded and not format_.has_shards:
        raise BadOption(f"{format_.name} does not support shards. Leave out the shard size.")
    if options.is_sharded and is_file_name:
        raise BadOption(
            f"Shards are files in a folder, but {out.name!r} is the name of one file. Give a folder and the format: "
            f"{str(out.with_suffix(''))!r} --format {format_.name}."
        )
    sharded = format_.has_shards and not is_file_name
    check_replaceable(out, is_folder=sharded or format_.is_folder, overwrite=overwrite, stranger_in=stranger_in)
    return sharded


def check_replaceable(
    out: Path, *, is_folder: bool, overwrite: bool, stranger_in: Callable[[Path], str | None]
) -> None:
    """Refuse an output that exists already, or would replace what feedline did not write. Raises BadOption.

    `stranger_in` returns a name in a folder that is not part of an output; None if there is none.
    """
    if out.is_symlink() or (out.exists() and not overwrite):
        raise BadOption(f"{out} exists already. Use --overwrite (overwrite=True) to replace it, or give another name.")
    stranger = stranger_in(out) if out.is_dir() else None
    if stranger is not None:
        raise BadOption(
            f"{out} is not replaced, because feedline did not write {stranger!r} there. Remove it, or give another "
            "name."
        )
    if out.exists() and out.is_dir() != is_folder:
        kinds = ("folder", "file") if out.is_dir() else ("file", "folder")
        raise BadOption(f"{out} is a {kinds[0]}, but would become a {kinds[1]}. Remove it, or give another name.")
    make_folder_for(out)


def stranger_in(folder: Path) -> str | None:
    """Return a name in a folder that is not part of an output of `pack`; None if there is none."""
    names = sorted(os.listdir(folder))
    if not names:
        return None
    try:
        content = (folder / FACTS).read_bytes()
        check_seal(str(folder), content, is_own=True)
        stored = json.loads(content)
        own = {str(one["name"]) for one in stored.get("shards", ())}
        arrays = {f"{name}.npy" for name in stored.get("sums", ())}
        is_own = SEAL in stored
    except (OSError, LookupError, TypeError, ValueError, CorruptSource):
        is_own = False
    if not is_own:
        return next((name for name in names if name != FACTS), FACTS)
    indices = os.listdir(folder / INDEX_FOLDER) if INDEX_FOLDER in names else []
    files = own | arrays | {FACTS}
    others = [name for name in names if name != INDEX_FOLDER and (name not in files or (folder / name).is_dir())]
    return next(iter([*others, *(os.path.join(INDEX_FOLDER, name) for name in indices if name not in own)]), None)


def _check_compression(format_: Format, options: Options) -> None:
    compressions = format_.writer.compressions
    if options.compression is not None and options.compression not in compressions:
        known = f"{', '.join(compressions)}" if compressions else "none: it stores values uncompressed"
        raise BadOption(f"{format_.name} does not support compression={options.compression!r}. It supports {known}.")


_IN_STORES = ("tar", "parquet")
"""Formats whose sources read from stores."""


def check_store_place(address: str, format_: Format, options: Options) -> bool:
    """Refuse an impossible output in a store, and return True: it is a folder of shards. Raises BadOption."""
    _check_compression(format_, options)
    shown, place = shown_url(address), address.partition("://")[2]
    if protocol_of(address) in ("http", "https"):
        raise BadOption(f"{shown} is on a web server, and feedline does not write there. Give s3://, gs:// or another.")
    if format_.name not in _IN_STORES:
        raise BadOption(
            f"{format_.name} is not read from stores, so it is not packed into {shown}. Use --format tar or parquet, "
            "or pack into a local path and copy the result."
        )
    if os.path.splitext(place)[1].lower() in format_.suffixes:
        raise BadOption(
            f"{shown} is the name of one file, and outputs in stores are folders of shards. Give a folder and the "
            f"format: {os.path.splitext(shown)[0]} --format {format_.name}."
        )
    if "?" in place or any(sign in place for sign in "*[{") or not place.strip("/"):
        raise BadOption(f"{shown} is not the address of a folder, such as s3://bucket/train.")
    return True


def as_path(out: object) -> Path:
    """Return the path of an output. Raises BadOption: `out` is not a path, or has no file name (such as "/")."""
    path = local_output("out", out)
    if not path.name:
        raise BadOption(f"{path} cannot be an output.")
    return path


def as_fields(fields: object) -> Renamed | None:
    """Return the fields to keep, as pairs with the new name first.

    Raises BadOption: `fields` is neither a list of names nor a dict of them.
    """
    if fields is None:
        return None
    names = as_names(fields, "fields")
    old_names = as_names(fields.values(), "fields") if isinstance(fields, Mapping) else names
    if not names or len(set(names)) < len(names):
        raise BadOption(f"fields={list(names)} names {'a field twice' if names else 'no field'}.")
    for new, old in zip(names, old_names, strict=True):
        if not is_name(new):
            raise BadOption(
                f"Not every format allows the field name {new!r}: it is empty, starts with a dot or two underscores, "
                "or contains a slash, a backslash, a line break or a NUL character. Rename the field: "
                f"--fields x={old} (fields={{'x': {old!r}}} in Python)."
            )
    return tuple(zip(names, old_names, strict=True))


def is_name(name: str) -> bool:
    """True if every format allows this field name."""
    return bool(name) and not name.startswith((".", "__")) and not any(sign in name for sign in "/\\\0\n")


def as_names(names: object, option: str) -> tuple[str, ...]:
    """Return field names as a tuple. Raises BadOption: `names` is not a list of names."""
    found = tuple(names) if isinstance(names, Iterable) and not isinstance(names, (str, bytes)) else (None,)
    if not all(isinstance(one, str) for one in found):
        raise BadOption(f"{option}={names!r} is not a list of names.")
    return found


def check_apart(source: str, out: Path) -> None:
    """Refuse a source and an output that share files, and a source in the work folder, which is emptied.

    Raises BadOption: one of them lies in the other.
    """
    read, written, work = Path(source).resolve(), out.resolve(), out.with_name(out.name + WORK_FOLDER).resolve()
    if read in (written, *written.parents):
        raise BadOption(f"{out} lies in {source}, which is to be packed. Choose a place outside it.")
    for place in (written, work):
        if place in read.parents:
            raise BadOption(f"{source} lies in {place}, where the output would be written. Give another output.")
    if read == work:
        raise BadOption(f"{out} would be built in {source}, which is to be packed. Give the output another name.")
