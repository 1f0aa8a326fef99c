"""Which kind of store something is, by its content."""

from __future__ import annotations

import contextlib
import glob
import importlib
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from feedline.datasets.cache.folder import FILE as SAMPLES
from feedline.datasets.csv.dataset import ENDINGS as CSV_ENDINGS
from feedline.datasets.tar.packed import packing_of
from feedline.errors import CorruptSource, FeedlineError, SourceError
from feedline.failures import words
from feedline.packing.contents import folder, table
from feedline.packing.contents.contents import COUNTED, Contents, Field
from feedline.packing.formats import FORMATS
from feedline.packing.line import CLASSES, stored_text, unpacked_option
from feedline.packing.recognition import (
    DATABASES,
    ENVIRONMENT,
    TABLES,
    Folder,
    class_for,
    ending_of,
    folder_at,
    shown,
    suffixes,
)
from feedline.packing.schema import Sample
from feedline.packing.writers import npy
from feedline.values.shown import shown_address

_MAGIC = (
    (b"\x89HDF\r\n\x1a\n", "hdf5", "look"),
    (b"PAR1", "parquet", "look"),
    (b"ARROW1", "parquet", "look_at_arrow"),
    (b"\xff\xff\xff\xff", "parquet", "look_at_arrow"),
    (b"SQLite format 3\0", "sqlite", "look"),
    (b"FDLVAULT", "vault", "look"),
    (b"\x93NUMPY", "npy", "look"),
    (b"PK\x03\x04", "npy", "look"),
    (b"PK\x05\x06", "npy", "look"),
    (b"\x1f\x8b", "tar", "look"),
    (b"\x28\xb5\x2f\xfd", "tar", "look"),
    (b"\xfd7zXZ\0", "tar", "look"),
    (b"BZh", "tar", "look"),
)
_TABLES = {
    ".csv": "look_at_csv",
    ".tsv": "look_at_csv",
    ".json": "look_at_json",
    ".jsonl": "look_at_json",
    ".ndjson": "look_at_json",
}
_IN_FOLDERS = (ENVIRONMENT, SAMPLES)
"""Files that make their folder a store."""
_MODULES = {"environment": "lmdb", "precomputed": "vault", "arrays": "npy"}
"""Who looks at folders that are stores."""
_MOST_STORES = 20


def look(path: Path) -> Contents:
    """Say what is in a file or folder.

    Raises:
        SourceError: it is not there, or of no kind that is known.
        CorruptSource: it is damaged.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> file = Path(tempfile.mkdtemp()) / "x.npy"
        >>> np.save(file, np.zeros((5, 3), np.float32))
        >>> contents = look(file)
        >>> contents.count, contents.fields[0].type
        (5, 'float32[3]')
    """
    with _reading(path):
        if not path.exists() and glob.has_magic(str(path)) and str(path).lower().endswith(CSV_ENDINGS):
            return table.look_at_csv(path)
        if not path.exists():
            raise SourceError(f"There is nothing at {shown_address(str(path))}.")
        if not path.is_file() and not path.is_dir():
            raise SourceError(f"{path} is neither a file nor a folder, but a device or a pipe.")
        contents = _look_into_folder(path) if path.is_dir() else _looker(path)(path)

    def take(wanted: int) -> list[Sample]:
        with _reading(path):
            return contents.take(wanted)

    return replace(contents, take=take)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FeedlineError as exc:
        if type(exc) is not CorruptSource or str(path) in str(exc):
            raise
        raise CorruptSource(f"{path} cannot be read: {words(exc)}.") from exc
    except Exception as exc:  # whatever a library makes of damaged bytes
        if isinstance(exc, OSError) and exc.errno is not None and exc.strerror:
            raise SourceError(f"{exc.filename or path} cannot be read: {exc.strerror.rstrip('.')}.") from exc
        raise CorruptSource(
            f"{path} cannot be read: {type(exc).__name__}: {words(exc)}. It is damaged or cut off."
        ) from exc


def _looker(path: Path) -> Callable[[Path], Contents]:
    with open(path, "rb") as file:
        start = file.read(512)
    if start and path.name.lower().endswith(CSV_ENDINGS) and packing_of(start) is not None:
        return table.look_at_csv
    found = next(((module, name) for magic, module, name in _MAGIC if start.startswith(magic)), None)
    if found is None and start[257:262] == b"ustar":
        found = ("tar", "look")
    if found is None and start[16:20] == b"\xde\xc0\xef\xbe":
        found = ("lmdb", "look")
    if found is None and path.suffix.lower() == ".tar" and start and tarfile.is_tarfile(path):
        found = ("tar", "look")  # empty, or of the format before POSIX
    if found is None and start and path.suffix.lower() in _TABLES:
        found = ("table", _TABLES[path.suffix.lower()])
    if found is None:
        raise _unknown(path, start)
    looker: Callable[[Path], Contents] = getattr(
        importlib.import_module(f"feedline.packing.contents.{found[0]}"), found[1]
    )
    return looker


def _unknown(path: Path, start: bytes) -> SourceError:
    suffix = path.suffix.lower()
    if start[:4] == b"FEA1":
        return SourceError(f"{path} is of version 1 of Feather, which Arrow gave up. Write it again, with version 2.")
    if suffix in (*suffixes(), *_TABLES):
        begins = (
            f"begins with {start[:8]!r}, as no {suffix} file does" if start else f"is empty, which no {suffix} file is"
        )
        return CorruptSource(f"{path} {begins}: it is damaged, cut off, or misnamed.")
    if not start:
        return SourceError(f"{path} is empty: there is nothing in it to look at.")
    return SourceError(
        f"{path} begins with {start[:8]!r}, and is of no kind that is known: HDF5, LMDB, tar, Parquet, Arrow, .npy, "
        ".npz, SQLite, CSV, JSON lines, or a folder of these or of files."
    )


def _look_into_folder(path: Path) -> Contents:
    found = folder_at(path)
    if found.kind == "empty":
        hidden = ", but for hidden ones" if any(path.iterdir()) else ""
        raise SourceError(f"{path} is empty: there are no files in it{hidden}.")
    if found.kind in _MODULES:
        contents: Contents = importlib.import_module(f"feedline.packing.contents.{_MODULES[found.kind]}").look(path)
        return contents
    if found.kind == "shards":
        return _look_at_shards(path, found)
    endings = Counter({ending or "(none)": count for ending, count in found.endings.items()})
    if found.kind == "stores":
        return _look_at_several(path, sorted((*found.files, *found.beside)), endings)
    return folder.look(path, endings)


def _look_at_several(path: Path, files: list[Path], endings: Counter[str]) -> Contents:
    """Look at each store in a folder that holds several things, which are no samples of one dataset."""
    stores = [one for one in files if _is_known(one)]
    places = list(dict.fromkeys(one.parent if one.name in _IN_FOLDERS else one for one in stores))
    found: dict[str, str] = {}
    for place in places[:_MOST_STORES]:
        try:
            contents = look(place)
            count = "" if contents.count is None else f", {contents.count:,} samples"
            found[str(place.relative_to(path))] = f"{contents.kind}{count}"
        except FeedlineError as exc:
            found[str(place.relative_to(path))] = f"cannot be read: {exc}"
    details: dict[str, object] = {"suffixes": dict(endings.most_common(10)), "stores": found}
    if len(places) > _MOST_STORES:
        details["further stores"] = len(places) - _MOST_STORES
    details["to see more"] = "inspect one of them"
    size = sum(one.stat().st_size for one in files)
    return Contents(
        path, "folder of different things", None, size, (), lambda wanted: [], details, "", None, len(files)
    )


def _is_known(path: Path) -> bool:
    return class_for(path.name) is not None or ending_of(path.name) in (*TABLES, *DATABASES) or path.name in _IN_FOLDERS


def _look_at_shards(path: Path, found: Folder) -> Contents:
    """Look at each file, and put together what they say."""
    files = found.files
    shards = [look(file) for file in files]
    first = shards[0]
    odd = next((shard for shard in shards if _types(shard) != _types(first)), None)
    counts = [shard.count or 0 for shard in shards]
    count = None if any(shard.count is None for shard in shards) else sum(counts)
    details = _together([shard.details for shard in shards])
    details["shards"] = f"{len(shards)}, of {min(counts):,} to {max(counts):,} samples"
    stored = npy.stored(path)
    if odd is not None and stored is None:
        details["differ"] = (
            f"the fields of {odd.path.relative_to(path)} are not those of {first.path.relative_to(path)}"
        )
    if found.beside:
        details["beside"] = f"{len(found.beside):,} other files, such as {shown(found.beside, path)}"

    def take(wanted: int) -> list[Sample]:
        each = -(-wanted // len(shards))
        return [sample for shard in shards for sample in shard.take(each)][:wanted]

    name, _, rest = first.dataset.partition("(")
    is_flat = all(one.parent == path for one in files)
    place = str(path / ("" if is_flat else "**") / f"*{files[0].name[-len(ending_of(files[0].name)) :]}")
    rest = rest.partition(repr(str(first.path)))[2].replace(unpacked_option(str(first.path)), unpacked_option(place))
    text = f"{name}({place!r}{rest}" if first.dataset else ""
    fields = _fields_of(shards)
    common = [field.name for field in fields if all(field.name in _names(shard) for shard in shards)]
    if name != CLASSES["tar"] and len(common) < len(fields) and "fields=" not in text:
        text = f"{text[:-1]}, fields={common!r})" if common else ""  # which no file may lack
    format_ = next((one for one in FORMATS.values() if files[0].suffix in one.suffixes), None)
    if format_ is not None:
        text = stored_text(format_.name, place, stored, text)
    return replace(
        first,
        path=path,
        kind=f"folder of {first.kind} shards",
        count=count,
        size=sum(shard.size for shard in shards),
        fields=fields,
        take=take,
        details=details,
        dataset=text,
        stored=stored,
        file_count=len(files),
        collate=next((shard.collate for shard in shards if shard.collate), ""),
    )


def _names(contents: Contents) -> set[str]:
    return {field.name for field in contents.fields}


def _fields_of(shards: list[Contents]) -> tuple[Field, ...]:
    """Return the fields of all shards: counts are sums, and what differs is said of the first that has it."""
    groups: dict[str, list[Field]] = {}
    for shard in shards:
        for one in shard.fields:
            groups.setdefault(one.name, []).append(one)
    return tuple(_joined(group) for group in groups.values())


def _joined(group: list[Field]) -> Field:
    first = group[0]
    counts: Counter[str] = Counter()
    for one in group:
        counts.update(dict(one.counts))
    is_same = all(one.note == first.note for one in group)
    note = first.note if is_same or not first.note else f"{first.note} in the first of {len(group)} files"
    return replace(first, note=note, counts=tuple(counts.items()))


# Any: values that JSON keeps.
def _together(all_details: list[dict[str, Any]]) -> dict[str, Any]:
    """Put together what shards say: numbers that count something are added, what differs is said of the first."""
    first = all_details[0]
    if len(all_details) == 1:
        return dict(first)
    joined: dict[str, Any] = {}
    for name, value in first.items():
        values = [details.get(name) for details in all_details]
        if name in COUNTED and all(isinstance(one, int) for one in values):
            joined[name] = sum(values)
        elif all(one == value for one in values) and name not in COUNTED:
            joined[name] = value
        else:
            joined[f"{name} (first of {len(values)} files)"] = value
    return joined


def _types(contents: Contents) -> list[tuple[str, str]]:
    return [(field.name, field.type.partition("[")[0]) for field in contents.fields]
