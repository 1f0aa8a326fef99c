"""`open_dataset`: the source that reads a path. Only this module decides what a path holds."""

from __future__ import annotations

import glob
import json
import os
import re
import sqlite3
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from feedline.datasets.array_file import opened_zip
from feedline.datasets.arrays import ArrayDataset
from feedline.datasets.cache import PrecomputedDataset
from feedline.datasets.cache.sample_store import FILE as SAMPLES
from feedline.datasets.csv import CSVDataset
from feedline.datasets.csv.dataset import ENDINGS as CSV_ENDINGS
from feedline.datasets.csv.dataset import PACKED
from feedline.datasets.csv.rows import delimiter_of
from feedline.datasets.files import FileDataset, ImageFolder
from feedline.datasets.files.image_folder import IMAGES
from feedline.datasets.form import names_in
from feedline.datasets.hdf5 import HDF5Dataset
from feedline.datasets.indexed_shards import INDEX
from feedline.datasets.lines import JSONLines, TextLines
from feedline.datasets.lines.places import JSON_ENDINGS, TEXT_ENDINGS
from feedline.datasets.litdata import LitDataDataset
from feedline.datasets.lmdb import LMDBDataset
from feedline.datasets.manifest import FACTS, Manifest, folder_of, manifest_in
from feedline.datasets.mds import MDSDataset
from feedline.datasets.megatron import MAGIC as MEGATRON
from feedline.datasets.megatron import MegatronDataset
from feedline.datasets.parquet import ArrowDataset, ParquetDataset
from feedline.datasets.remote.storage import Storage, checked_options, protocol_of
from feedline.datasets.sql import SQLDataset
from feedline.datasets.tar import TarDataset
from feedline.datasets.tar.arrays import decode_npy
from feedline.datasets.tar.packed import packing_of
from feedline.datasets.tfrecord import TFRecordDataset
from feedline.datasets.tfrecord.framing import is_record
from feedline.datasets.unread import beginning_of, described, guess_kind
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.system.failures import words
from feedline.types import JsonObject
from feedline.types.shown import counted, shown_address
from feedline.types.sizes import check_size, most_bytes

# Any: a class, or a function that is called like one.
SOURCES: dict[str, Callable[..., Any]] = {
    "lmdb": LMDBDataset,
    "hdf5": HDF5Dataset,
    "tar": TarDataset,
    "parquet": ParquetDataset,
    "arrow": ArrowDataset,
    "npy": ArrayDataset,
    "npz": ArrayDataset,
    "csv": CSVDataset,
    "jsonl": JSONLines,
    "text": TextLines,
    "sqlite": SQLDataset,
    "precomputed": PrecomputedDataset,
    "mds": MDSDataset,
    "litdata": LitDataDataset,
    "megatron": MegatronDataset,
    "tfrecord": TFRecordDataset,
    "pictures": ImageFolder,
    "files": FileDataset,
}
"""The source for each format."""
COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tar.xz", ".tar.bz2")
"""Suffixes of compressed tar files."""
SUFFIXES = {
    "lmdb": (".lmdb", ".mdb"),
    "hdf5": (".h5", ".hdf5", ".hdf"),
    "tar": (".tar", *COMPRESSED),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather"),
    "npy": (".npy",),
    "npz": (".npz",),
    "jsonl": (".jsonl", ".ndjson", ".jsonlines"),
    "tfrecord": (".tfrecord", ".tfrecords"),
}
"""Suffixes of files that hold samples; several files in a folder may be shards of one dataset. The usual one is
first."""
_FORMATS = {suffix: format_ for format_, suffixes in SUFFIXES.items() for suffix in suffixes}
_MAGIC = (
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"SQLite format 3\0", "sqlite"),
    (b"FDLVAULT", "precomputed"),
    (b"\x93NUMPY", "npy"),
    (MEGATRON, "megatron"),
)
_SHARDED = ("tar", "hdf5", "parquet", "arrow", "jsonl", "tfrecord")
_RECORDS = re.compile(r".*\.tfrecords?(-\d+-of-\d+|-\*)?(\.gz)?", re.DOTALL)
"""What the names of TFRecord files end in. TensorFlow Datasets appends the number of a shard."""
_PAIR = (".idx", ".bin")
"""Suffixes of the two files that Megatron-LM writes."""
_DATABASES = (".db", ".sqlite", ".sqlite3")
_ENVIRONMENT = "data.mdb"
"""The file that makes its folder an LMDB environment."""
_BESIDE = (".json", ".md", ".txt", ".yaml", ".yml")
"""Suffixes of files that describe the shards beside them."""


@dataclass(frozen=True)
class Recognised:
    """The recognised content of a path."""

    path: str
    """As given."""
    format: str
    """A key of `SOURCES`; "stores" for a folder of several stores that are not read as one dataset."""
    files: list[Path] = field(default_factory=list)
    """The shards of a folder, or the stores in it, in order."""
    beside: list[Path] = field(default_factory=list)
    """Other files in that folder."""
    manifest: Manifest | None = None
    """The manifest of a folder in a store."""

    @property
    def is_compressed(self) -> bool:
        """True for tar and TFRecord files that can only be read from front to back."""
        first = self.files[0] if self.files else self.path
        if os.path.isfile(first):
            with open(first, "rb") as file:
                head = file.read(12)
                return packing_of(head) is not None and not is_record(head)
        return str(first).lower().endswith(COMPRESSED)

    # Any: options of any source.
    def options(self) -> dict[str, Any]:
        """Return options for the source that users need not set themselves."""
        if self.format == "csv" and os.path.isfile(self.path) and not self.path.lower().endswith(PACKED):
            with open(self.path, encoding="utf-8-sig", errors="replace") as file:
                delimiter = delimiter_of(file.readline())
            usual = "\t" if self.path.lower().endswith(".tsv") else ","
            return {} if delimiter == usual else {"delimiter": delimiter}
        if self.format == "pictures":
            root = self.path.rstrip(os.sep)
            folders = (names for folder, _, names in os.walk(root) if folder != root)
            return {} if any(any(map(is_picture_name, names)) for names in folders) else {"labels": None}
        return {}

    def open(self, **options: Any) -> Any:
        """Open the path with the source that reads it.

        Raises BadOption: no single source reads it.
        """
        if self.format == "stores":
            raise self._several()
        if self.format == "sqlite":
            if "query" not in options:
                options = {**_table_in(self.path), **options}
            path = os.path.abspath(self.path).replace("%", "%25").replace("?", "%3F").replace("#", "%23")
            return SQLDataset(f"sqlite:///{path}", options.pop("query"), **options)
        # An existing path is never a pattern, even if it contains pattern characters.
        place: Any = self.files or (Path(self.path) if os.path.exists(self.path) else self.path)
        if self.format == "megatron" and self.files:
            place = self.files[0]
        if self.format == "precomputed" and os.path.isfile(self.path):
            place = os.path.dirname(os.path.abspath(self.path))
        if self.format == "npz":
            place = _unpacked(self.path, options.get("fields")) or self.path
        dataset = SOURCES[self.format](place, **{**self.options(), **options})
        return dataset.stream() if self.format in ("tar", "tfrecord") and self.is_compressed else dataset

    def _several(self) -> BadOption:
        first = self.files[0]
        one = first.parent if first.name in (_ENVIRONMENT, SAMPLES) else first
        why = "which are not read as one dataset" if len(self.files) > 1 else "which is a store, not a sample"
        if len({format_by_name(file.name) for file in self.files}) == 1 and self.beside and len(self.files) > 1:
            why += f" because of what is beside them ({some(self.beside, self.path)})"
        return BadOption(
            f"In the folder {self.path} are {some(self.files, self.path)}, {why}. Name one of them: {one}."
        )


# Any: a dataset of any of the sources, and its options.
def open_dataset(path: str | os.PathLike[str], **options: object) -> Any:
    """Open a file or folder with the source of `feedline.datasets` that reads it.

    A file is recognised by its first bytes, a folder by its contents, a pattern or an address by its suffix. Tar files
    are opened for random access unless they are compressed. Folders of folders of pictures are opened as an
    `ImageFolder` with classes; other folders as shards of one dataset, or as a dataset of files. The arrays of a
    compressed .npz file are held in memory.

    Args:
        path: a file, a folder, a pattern such as `"train/*.parquet"`, an address that the source can read, or the
            address of a folder in a store that `feedline pack` wrote: `"s3://bucket/train"`.
        options: options of the source, such as `fields=` or `transform=`. For a SQLite database of several tables,
            `query=` and `key=`.

    Raises:
        BadOption: the path holds several datasets.
        TypeError: the source has no such option.
        SourceError: the path does not exist, or no source reads it.
        CorruptSource: the file is damaged.

    Example:
        >>> import tempfile, pathlib
        >>> import numpy as np
        >>> from feedline.datasets import open_dataset
        >>> path = pathlib.Path(tempfile.mkdtemp(), "points.npy")
        >>> np.save(path, np.zeros((5, 3), np.float32))
        >>> open_dataset(path)
        ArrayDataset(5 samples of float32[3])
    """
    given = options.get("storage_options")
    return recognise(path, checked_options(given)).open(**options)


# object: options of fsspec.
def recognise(path: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> Recognised:
    """Recognise what a path holds. Raises SourceError: it does not exist, or no source reads it."""
    text = os.fspath(path)
    manifest = _packed_at(text, storage_options)
    if manifest is not None:
        return Recognised(f"{manifest.folder}/", manifest.format, manifest=manifest)
    if os.path.isdir(text):
        return _folder(text)
    if os.path.basename(text) == INDEX and os.path.isfile(text) and (listed := _listed_in(text)) is not None:
        return Recognised(text, listed)
    if all(map(os.path.isfile, _pair_of(text))):
        return Recognised(text, "megatron", [Path(_pair_of(text)[0])])
    found = _by_content(text) if os.path.isfile(text) else None
    found = found or _by_name(text)
    is_pattern = "://" in text or "{" in text or "::" in text or glob.has_magic(text)
    if found is not None and (os.path.isfile(text) or is_pattern):
        return Recognised(text, found)
    known = f"{', '.join(one for suffixes in SUFFIXES.values() for one in suffixes)}, .txt, .csv, .tsv and SQLite"
    known = f"feedline reads folders, and files of {known}."
    if os.path.isfile(text):
        guess = guess_kind(text)
        raise SourceError(f"feedline cannot read {text}: it looks like {guess.kind}. {guess.advice or known}")
    if os.path.exists(text):
        raise SourceError(f"{text} is neither a file nor a folder, but a device or a pipe.")
    if "://" in text:
        raise SourceError(f"The name {shown_address(text)} does not show which source reads it. {known}")
    if matched := sorted(filter(os.path.isfile, glob.glob(text, recursive=True))):
        raise _unread(text, matched, known)
    nothing = "No file matches" if glob.has_magic(text) else "There is nothing at"
    raise SourceError(f"{nothing} {shown_address(text)}. {known}")


def _packed_at(address: str, storage_options: Mapping[str, object] | None) -> Manifest | None:
    """Return the manifest of a folder in a store; None if the address names something else."""
    folder = folder_of(address)
    names_a_file = "." in address.rsplit("/", 1)[-1] or glob.has_magic(address)
    if not protocol_of(address) or (folder is None and names_a_file):
        return None
    storage = Storage(options=storage_options)
    try:
        found = manifest_in(folder or address, storage)
    finally:
        storage.close()
    return found if found is not None and found.format in SOURCES else None


def _unread(pattern: str, paths: list[str], known: str) -> SourceError:
    """Return the error for files that match a pattern whose suffix belongs to no format."""
    (first, *others) = {_by_content(path) for path in paths}
    if first is not None and not others:
        return SourceError(
            f"The name {pattern} does not show which source reads its {counted(len(paths), 'file')}. By content, "
            f"{SOURCES[first].__name__} does: open them with it, or give them the suffix {_usual(first)}."
        )
    kinds, advice = described(paths)
    return SourceError(
        f"feedline cannot read the {counted(len(paths), 'file')} of {pattern}: {kinds}. {advice or known}"
    )


def _usual(format_: str) -> str:
    return SUFFIXES[format_][0] if format_ in SUFFIXES else f".{format_}"


def _by_content(path: str) -> str | None:
    with open(path, "rb") as file:
        start = file.read(512)
    if start[16:20] == b"\xde\xc0\xef\xbe":
        return "lmdb"
    if is_record(start[:12]):
        return "tfrecord"
    if _is_tar(start) or (packing_of(start) is not None and _is_tar(beginning_of(path)[0][:512])):
        return "tar"
    return next((format_ for magic, format_ in _MAGIC if start.startswith(magic)), None)


def _by_name(path: str) -> str | None:
    """Return the format that a name indicates; None if, for example, a file named .tar.gz holds text."""
    named = format_by_name(path)
    return None if named == "tar" and os.path.isfile(path) and guess_kind(path).is_text else named


def _is_tar(start: bytes) -> bool:
    """True if these bytes are the header of a tar archive, including pre-POSIX archives, which have no magic."""
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return start[257:262] == b"ustar"
    return True


def _folder(path: str) -> Recognised:
    if os.path.exists(os.path.join(path, _ENVIRONMENT)):
        return Recognised(path, "lmdb")
    if os.path.exists(os.path.join(path, SAMPLES)):
        return Recognised(path, "precomputed")
    if (listed := _listed_in(os.path.join(path, INDEX))) is not None:
        return Recognised(path, listed)
    files = sorted(files_below(path), key=lambda one: one.split(os.sep))
    if not files:
        hidden = ", but for hidden ones" if os.listdir(path) else ""
        raise SourceError(f"{path} is empty: there are no files in it{hidden}.")
    pairs = [file for file in files if file.endswith(_PAIR[0]) and f"{file[:-4]}{_PAIR[1]}" in files]
    if 2 * len(pairs) >= max(2, len(files) - 1):
        return Recognised(path, "megatron" if len(pairs) == 1 else "stores", list(map(Path, pairs)))
    formats = Counter(_store_of(file) for file in files)
    others = [file for file in files if _store_of(file) is None]
    # A few texts beside shards describe them and are not samples. If there are as many texts as shards, they are
    # samples.
    few = len(others) <= max(1, (len(files) - len(others)) // 2) and {ending_of(one) for one in others} <= set(_BESIDE)
    found = [one for one in formats if one is not None]
    if few and len(found) == 1:
        (one,) = found
        shards = [Path(file) for file in files if _store_of(file) is not None]
        is_same = one == "tfrecord" or len({ending_of(file) for file in files if _store_of(file)}) == 1
        if one in _SHARDED and is_same:
            return Recognised(path, one, shards, [Path(other) for other in others])
        if one == "npy" and all(os.path.dirname(file) == path.rstrip(os.sep) for file in files):
            return Recognised(path, one, beside=[Path(other) for other in others])
    pictures = sum(map(is_picture_name, files))
    # An array or a table may well be one sample of many. Any other store is not, unless there are far more other files:
    # then it may list recordings, or hold the thumbnails of pictures.
    stores = [
        file
        for file in files
        if _store_of(file) not in (None, "npy")
        or ending_of(file) in _DATABASES
        or os.path.basename(file) in (_ENVIRONMENT, SAMPLES)
    ]
    if 4 * len(stores) >= len(files) > 2 * pictures:
        return Recognised(path, "stores", list(map(Path, stores)), [Path(one) for one in files if one not in stores])
    return Recognised(path, "pictures" if pictures else "files")


def _pair_of(path: str) -> tuple[str, str]:
    """Return the files of Megatron-LM that a path means, if they exist."""
    stem = path[:-4] if path.endswith(_PAIR) else path
    return f"{stem}{_PAIR[0]}", f"{stem}{_PAIR[1]}"


def _listed_in(path: str) -> str | None:
    """Return the format of the shards that an index.json lists; None if it is something else, or not there."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("chunks"), list) and isinstance(found.get("config"), dict):
        return "litdata"
    shards = found.get("shards")
    is_mds = isinstance(shards, list) and all(isinstance(one, dict) and one.get("format") == "mds" for one in shards)
    return "mds" if is_mds else None


def files_below(path: str) -> Iterator[str]:
    """Yield the data files in a folder: neither hidden files nor those that programs leave beside data."""
    for place, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith((".", "_")) and name != FACTS:
                yield os.path.join(place, name)


def _store_of(path: str) -> str | None:
    if path.lower().endswith(JSON_ENDINGS):
        return "jsonl"
    return "tfrecord" if _RECORDS.fullmatch(path.lower()) else _FORMATS.get(ending_of(path))


def format_by_name(path: str) -> str | None:
    """Return the format that the name of a file or a pattern indicates; None if it indicates none."""
    for format_, endings in (("csv", CSV_ENDINGS), ("text", TEXT_ENDINGS)):
        if path.lower().endswith(endings):
            return format_
    return _store_of(path)


def ending_of(name: str) -> str:
    """Return the suffix of a name in lower case; both suffixes of a compressed tar file.

    Example:
        >>> ending_of("a.b.TAR.GZ"), ending_of("a.b.h5"), ending_of("a.gz")
        ('.tar.gz', '.h5', '.gz')
    """
    stem, ending = os.path.splitext(name.lower())
    return f".tar{ending}" if f".tar{ending}" in COMPRESSED and stem.endswith(".tar") else ending


def is_picture_name(path: str) -> bool:
    """True if a file has the suffix of a picture."""
    return os.path.splitext(path)[1].lower() in IMAGES


def some(paths: list[Path], root: str | Path, most: int = 3) -> str:
    """Return the names of the first few files, relative to a folder."""
    names = ", ".join(str(one.relative_to(root)) for one in paths[:most])
    return f"{names} and {len(paths) - most:,} more" if len(paths) > most else names


# Any: any value that `fields=` takes, and arrays of any type.
def _unpacked(path: str, fields: Any) -> JsonObject | None:
    """Return the arrays of a compressed .npz file, which cannot be mapped; None if it is not compressed."""
    wanted = names_in(fields)
    arrays: dict[str, object] = {}
    try:
        with open(path, "rb") as file, opened_zip(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = {name: info for name, info in members.items() if wanted is None or name in wanted}
            if all(info.compress_type == zipfile.ZIP_STORED for info in chosen.values()):
                return None
            for name, info in chosen.items():
                check_size(f"{info.filename!r} of {path}", info.file_size, limit=most_bytes())
                arrays[name] = decode_npy(archive.read(info))
    except (CorruptSource, ValueError, OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as exc:
        advice = f" Choose fields that can be read with fields=: {', '.join(arrays)}." if arrays else ""
        raise CorruptSource(f"{path} cannot be read: {words(exc)}.{advice}") from exc
    return arrays


def _table_in(path: str) -> dict[str, object]:
    """Return `query=` and `key=` for the only table of a database."""
    listing = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    try:
        database = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True)
        try:
            names = [name for (name,) in database.execute(listing)]
            columns = database.execute("SELECT name, pk FROM pragma_table_info(?)", names[:1]).fetchall()
            quoted = '"' + "".join(names[:1]).replace('"', '""') + '"'
            is_taken = any(name.lower() == "rowid" for name, _ in columns)
            has_rowid = len(names) == 1 and not is_taken and _has_rowid(database, quoted)
        finally:
            database.close()
    except sqlite3.Error as exc:
        raise CorruptSource(f"{path} cannot be read: {words(exc)}. It is damaged or cut off.") from exc
    keys = [name for name, is_key in columns if is_key]
    if len(names) == 1 and len(keys) == 1:
        return {"query": f"SELECT * FROM {quoted}", "key": keys[0]}
    if has_rowid:
        return {"query": f"SELECT rowid, * FROM {quoted}", "key": "rowid"}
    found = f"the tables {', '.join(map(repr, names))}" if names else "no tables"
    raise BadOption(
        f"{path} is a SQLite database with {found}, and which rows are samples is not known: one table is read by "
        "itself if a primary key of one column, or the rowid, tells its rows apart. In Python, say it: "
        "open_dataset(path, query='SELECT ...', key='...'). For `feedline pack`, put that into a function of a file, "
        "such as data.py, and name it: data:function."
    )


def _has_rowid(database: sqlite3.Connection, table: str) -> bool:
    try:
        database.execute(f"SELECT rowid FROM {table} LIMIT 1")
    except sqlite3.OperationalError:  # a table WITHOUT ROWID
        return False
    return True


__all__ = ["open_dataset"]
