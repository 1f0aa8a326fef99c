"""Open a dataset that the user named, or an output; read all of it, and print the line that reads it.

A folder of files is a dataset of the files' contents. The contents are not decoded: they are packed unchanged, unless
pictures are to be encoded again.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from feedline.datasets.derived.cache.fingerprint import fingerprint as fingerprint_of
from feedline.datasets.derived.formats import READABLE
from feedline.datasets.derived.objects import open_object
from feedline.datasets.derived.opening import open_found
from feedline.datasets.derived.recognition import Recognised, recognise
from feedline.datasets.formats.tar import TarDataset
from feedline.datasets.framework.manifest import FACTS
from feedline.datasets.framework.shard_stream import ShardStreamBase
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import local_path, protocol_of
from feedline.errors import BadOption, SourceError
from feedline.system.failures import words
from feedline.system.process import core_count
from feedline.tools.write.options import Renamed, check_apart
from feedline.tools.write.schema import Sample, Schema
from feedline.tools.write.writers.contract import FORMATS
from feedline.tools.write.writers.npy import stored as stored_in_folder
from feedline.tools.write.writers.tar import member_names
from feedline.types import JsonObject

_READ_SAMPLES, _READ_BYTES = 256, 1 << 24
"""Limits on the samples and (approximate) bytes read in one step."""
_WORKERS = 4
"""Workers of the loader in a line for people, on a machine with at least as many cores."""


@dataclass(frozen=True)
class Relative:
    """A transform that makes the path of a sample relative to its folder."""

    root: str

    def __call__(self, sample: Sample) -> Sample:
        return {**sample, "path": os.path.relpath(sample["path"], self.root)}


@dataclass(frozen=True)
class Opened:
    """A dataset, and what is known about it."""

    path: str
    """The name that the user gave."""
    dataset: Any  # of any class
    text: str
    """Description for people. A resumed run also compares it to recognise the dataset."""
    fields: tuple[str, ...] | None = None
    """Fields that are packed by default."""
    metadata: dict[str, object] = field(default_factory=dict)
    """Metadata about all samples, such as the names of classes; stored with the samples."""
    left_out: int = 0
    """Number of files in the folder that are not samples."""
    format: str = "Python"
    """A format of `feedline.datasets.derived.formats`, or "Python" for `module:object`."""
    files: tuple[Path, ...] = ()
    """The files that the dataset is read from, as far as they are known."""
    stored: JsonObject | None = None
    """The summary that `feedline pack` stored with the samples; None if `feedline pack` did not write them."""
    expression: str = ""
    """The `feedline.datasets` call that opens the dataset; "" if there is none."""

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the dataset, if it has a `close` method."""
        if callable(close := getattr(self.dataset, "close", None)):
            close()


# object: a dataset of any class, or the name of one.
@contextmanager
def open_given(
    dataset: object, out: Path | None, *, fields: Renamed | None = None, remote: Remote | None = None
) -> Iterator[Opened]:
    """Open a dataset that is given by its name, to be written to a local output; yield any other dataset unchanged."""
    if isinstance(dataset, os.PathLike):
        dataset = os.fspath(dataset)
    if isinstance(dataset, (bytes, bytearray, memoryview)):
        raise BadOption(f"{bytes(dataset[:40])!r} is not a dataset. Give a dataset, or the path of one as a string.")
    if not isinstance(dataset, str):
        yield Opened("", dataset, "")
        return
    if out is not None:
        check_apart(dataset, out)
    with open_source(dataset, fields=fields, remote=remote) as opened:
        yield opened


def open_source(source: str, *, fields: Renamed | None = None, remote: Remote | None = None) -> Opened:
    """Open a dataset by its name: a folder, a store in any of the formats, or `module:object`.

    Only the wanted fields of a store are read. Raises BadOption: the name is none of these, or a field does not exist;
    SourceError: the path does not exist, or is empty.
    """
    if not os.path.exists(source) and ":" in source and "://" not in source:
        dataset = open_object(source)
        return Opened(source, dataset, f"{source} {dataset_fingerprint(dataset)}".rstrip())
    return open_recognised(recognise(source, remote), None if fields is None else [old for _, old in fields], remote)


def open_recognised(found: Recognised, wanted: list[str] | None = None, remote: Remote | None = None) -> Opened:
    """Open what `recognise` found, without importing or running anything."""
    return _open_folder(found) if found.format in ("pictures", "files") else _open_store(found, wanted, remote)


def _open_folder(found: Recognised) -> Opened:
    """Open a folder in which each file is a sample; the names of subfolders are the labels of pictures."""
    has_labels = found.format == "pictures" and "labels" not in found.options()
    content, options = ("data", {}) if found.format == "files" else ("image", {"decode": "bytes"})
    fields = [content, "label", "path"] if has_labels else [content, "path"]
    dataset = open_found(found, fields=fields, transform=Relative(found.path), **options)
    files = tuple(Path(dataset.path_of(number)) for number in range(len(dataset)))
    return Opened(
        found.path,
        dataset,
        f"{found.path} {fingerprint(files)}",
        tuple(fields[:2]),
        {"classes": dataset.classes} if has_labels else {},
        dataset.left_out,
        found.format,
        files,
        expression=f"open_dataset({found.path!r})",
    )


def _open_store(found: Recognised, wanted: list[str] | None, remote: Remote | None) -> Opened:
    """Open a store. Samples that `feedline pack` wrote get back their original form and field names."""
    stored = _stored(found)
    fields = _fields(found, stored, wanted)
    options = {} if fields is None else {"fields": fields}
    if remote is not None and protocol_of(found.path):  # sources of local files have no such option
        options["remote"] = remote
    if found.format == "csv":  # read once: nothing is kept for later programs
        options["cache"] = False
    dataset = open_found(found, **options)
    files = tuple(found.files or _local_files(found.path, dataset))
    if stored is not None and wanted is None:
        suffix = FORMATS[found.format].suffixes[0]
        place = os.path.join(found.path, f"*{suffix}") if found.files else found.path
        expression = dataset_text(found.format, place, Schema.from_json(stored["fields"]), stored["form"])
    else:
        given = "" if fields is None else f", fields={fields!r}"
        expression = f"open_dataset({found.path!r}{given})"
    metadata = stored.get("metadata", {}) if stored else {}
    text = f"{found.path} {fingerprint(files) if found.manifest is None else found.manifest.fingerprint}"
    return Opened(found.path, dataset, text, None, metadata, len(found.beside), found.format, files, stored, expression)


def _local_files(source: str, dataset: object) -> list[Path]:
    if isinstance(dataset, (TarDataset, ShardStreamBase)):  # their patterns are richer than those of `glob`
        shards = dataset.shards if isinstance(dataset, TarDataset) else dataset.shards.addresses
        return [Path(local_path(shard)) for shard in shards if not protocol_of(shard)]
    path = Path(source)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path] if path.exists() else sorted(map(Path, glob.glob(source, recursive=True)))


# object: whatever type the `fields=` option of a source takes.
def _fields(found: Recognised, stored: JsonObject | None, wanted: list[str] | None) -> object:
    """Return the `fields=` option that makes a source read only the wanted fields."""
    if stored is None:
        is_one_array = found.format == "npy" and os.path.isfile(found.path)
        return None if found.format in ("lmdb", "megatron", "precomputed") or is_one_array else wanted
    schema, form = Schema.from_json(stored["fields"]), stored["form"]
    if wanted is None or (form != "dict" and not set(wanted) <= set(schema.names)):
        return fields_for(found.format, schema, form)  # for tuples, `wanted` may also contain new names
    chosen = fields_for(found.format, schema.chosen(wanted, found.path), form)
    return wanted if chosen is None else chosen


def _stored(found: Recognised) -> JsonObject | None:
    """Return the summary that `feedline pack` stored; None if another program wrote the store, or it is damaged."""
    if found.manifest is not None:
        return found.manifest.stored
    if found.files and os.path.exists(os.path.join(found.path, FACTS)):
        return stored_in_folder(Path(found.path))
    first = found.files[0] if found.files else Path(found.path)
    is_single_array = found.format == "npy" and first.is_file()
    if found.format not in FORMATS or not first.exists() or is_single_array or found.is_compressed:
        return None
    try:
        stored: dict[str, object] | None = FORMATS[found.format].module.stored(first)
    except Exception:  # libraries raise all kinds of exceptions on damaged bytes; the source reports the damage
        return None
    return stored


def fingerprint(files: Iterable[Path]) -> str:
    """Return a digest of names, sizes and times, which changes if a file is changed, added or removed."""
    hashed = blake2b(digest_size=16)
    for path in files:
        try:
            found = os.stat(path)
        except OSError as exc:
            raise SourceError(f"Cannot stat the file {path}: {words(exc)}.") from exc
        hashed.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return hashed.hexdigest()


def dataset_fingerprint(dataset: object) -> str:
    """Return a fingerprint of a Python dataset; "" if it cannot be computed."""
    try:
        return fingerprint_of(dataset).hex()[:32]
    except Exception:  # inspecting a user's objects can raise anything
        return ""


def called(dataset: object, number: int) -> str:
    """Return a sample's name for messages, with its file if the dataset knows it (torchvision's datasets do, too)."""
    path = None
    if callable(path_of := getattr(dataset, "path_of", None)):
        path = path_of(number)
    elif isinstance(pairs := getattr(dataset, "samples", None), list) and number < len(pairs):
        path = pairs[number][0] if isinstance(pairs[number], tuple) and pairs[number] else None
    return f"sample {number} ({path})" if isinstance(path, (str, os.PathLike)) else f"sample {number}"


# object: whatever type the `fields=` option of a source takes.
def fields_for(format_name: str, schema: Schema, form: str) -> object:
    """Return the `fields=` option with which a source returns samples in their original form; None if not needed."""
    names = schema.names
    if format_name == "tar":
        members = member_names(schema)
        if form == "dict":
            return members
        names = tuple(members[name] for name in names)
    return {"dict": None, "tuple": names, "one": names[0] if names else None}[form]


def dataset_text(format_name: str, place: str, schema: Schema, form: str) -> str:
    """Return the `feedline.datasets` call that opens an output."""
    fields = fields_for(format_name, schema, form)
    return f"{READABLE[format_name].source.__name__}({place!r}{'' if fields is None else f', fields={fields!r}'})"


def loader_text(dataset: str, schema: Schema, *, is_stream: bool = False) -> str:
    """Return the line of Python that loads the dataset which the call `dataset` opens.

    Example:
        >>> loader_text("HDF5Dataset('a.h5')", Schema.of([{"x": 1}])).partition(", workers=")[0]
        "loader = feedline.Loader(feedline.datasets.HDF5Dataset('a.h5'), batch_size=32, shuffle=True"
    """
    call = f"loader = feedline.Loader(feedline.datasets.{dataset}, {loader_options(is_stream=is_stream)}"
    if all(column.stacks for column in schema.columns):
        return f"{call})"
    return f"{call}, collate_fn=list)  # its samples do not stack: put a function there, such as feedline.collate.pad()"


def loader_options(*, is_stream: bool = False) -> str:
    """Return the options of the loader in a line for people, with no more workers than this machine has cores."""
    return f"batch_size=32, {'' if is_stream else 'shuffle=True, '}workers={min(_WORKERS, core_count())}"


# Any, from here on: a dataset of any class.
def open_packed(format_name: str, files: Path | list[Path], schema: Schema, form: str) -> Any:
    """Open an output, or shards of one, with the source that reads it."""
    options: dict[str, object] = {"fields": fields_for(format_name, schema, form)}
    if format_name == "tar":
        options["cache"] = False
    # A path, not a string: the file's name may look like a pattern.
    return READABLE[format_name].source(files, **options)


def count_samples(dataset: object, size: int, report: Callable[[int], object]) -> int:
    """Read all samples of a dataset of about `size` bytes, so that the source compares all checksums.

    Calls `report` with the number of samples from time to time, and at the end.
    """
    count = 0
    for count, _ in enumerate(_all_of(dataset, size), 1):
        if count % _READ_SAMPLES == 0:
            report(count)
    report(count)
    return count


def _all_of(dataset: Any, size: int) -> Iterator[object]:
    if not hasattr(dataset, "__getitems__"):
        yield from (dataset[index] for index in range(len(dataset))) if hasattr(dataset, "__getitem__") else dataset
        return
    count = len(dataset)
    step = max(1, min(_READ_SAMPLES, _READ_BYTES * count // max(1, size)))
    for first in range(0, count, step):
        yield from dataset.__getitems__(range(first, min(first + step, count)))


def size_on_disk(paths: Iterable[Path]) -> int:
    """Return the total size of files, including all files in folders."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    return sum(file.stat().st_size for file in files if file.is_file())
