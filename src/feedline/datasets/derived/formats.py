"""The formats of files: the source that reads each, and how a name or the first bytes of a file show it.

Also what files look like that no source reads, and how to load them anyway.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from feedline.datasets.derived.cache import PrecomputedDataset
from feedline.datasets.formats.arrays import ArrayDataset
from feedline.datasets.formats.csv import CSVDataset
from feedline.datasets.formats.files import FileDataset, ImageFolder
from feedline.datasets.formats.hdf5 import HDF5Dataset
from feedline.datasets.formats.lance import LanceDataset
from feedline.datasets.formats.lines import JSONLines, TextLines
from feedline.datasets.formats.litdata import LitDataDataset
from feedline.datasets.formats.lmdb import LMDBDataset
from feedline.datasets.formats.mds import MDSDataset
from feedline.datasets.formats.megatron import MegatronDataset
from feedline.datasets.formats.parquet import ArrowDataset, ParquetDataset
from feedline.datasets.formats.sql import SQLDataset
from feedline.datasets.formats.tar import TarDataset
from feedline.datasets.formats.tfrecord import TFRecordDataset
from feedline.datasets.formats.tfrecord.framing import is_record
from feedline.datasets.storage.blob import LocalBlob
from feedline.datasets.storage.content import PACKED, content_of, packing_of
from feedline.errors import CorruptSource, MissingExtra

COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tar.xz", ".tar.bz2")
"""Suffixes of compressed tar files."""


def _packed(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"{one}{packing}" for packing in ("", *PACKED) for one in suffixes)


@dataclass(frozen=True)
class Format:
    """A format, and the source that reads it."""

    source: Callable[..., Any]  # Any: a dataset, made by a class or by a function that is called like one
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files. The usual one is first."""
    start: bytes = b""
    """How its files begin: a regular expression."""
    is_sharded: bool = False
    """True if several files in a folder are read as one dataset."""
    is_store: bool = True
    """False for files that may as well be one sample, or describe samples."""


READABLE = {
    "lmdb": Format(LMDBDataset, (".lmdb", ".mdb"), rb".{16}\xde\xc0\xef\xbe"),
    "hdf5": Format(HDF5Dataset, (".h5", ".hdf5", ".hdf"), rb"\x89HDF\r\n\x1a\n", is_sharded=True),
    "tar": Format(TarDataset, (".tar", *COMPRESSED), is_sharded=True),
    "parquet": Format(ParquetDataset, (".parquet", ".pq"), rb"PAR1", is_sharded=True),
    "arrow": Format(ArrowDataset, (".arrow", ".feather"), rb"ARROW1", is_sharded=True),
    "npy": Format(ArrayDataset, (".npy",), rb"\x93NUMPY"),
    "npz": Format(ArrayDataset, (".npz",)),
    "csv": Format(CSVDataset, _packed(".csv", ".tsv"), is_store=False),
    "jsonl": Format(JSONLines, _packed(".jsonl", ".ndjson", ".jsonlines"), is_sharded=True),
    "text": Format(TextLines, _packed(".txt"), is_store=False),
    "sqlite": Format(SQLDataset, (), rb"SQLite format 3\0"),
    "precomputed": Format(PrecomputedDataset, (), rb"FDLVAULT"),
    "lance": Format(LanceDataset, (".lance",)),
    "mds": Format(MDSDataset),
    "litdata": Format(LitDataDataset),
    "megatron": Format(MegatronDataset, (), rb"MMIDIDX\0\0"),
    "tfrecord": Format(TFRecordDataset, (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz"), is_sharded=True),
    "pictures": Format(ImageFolder),
    "files": Format(FileDataset),
}
_SHARD = re.compile(r"-(\d+-of-\d+|\*)(?=(\.gz)?$)")
"""What TensorFlow Datasets appends to names: the number of a shard."""


def format_by_name(path: str) -> str | None:
    """Return the format that the name of a file or a pattern indicates; None if it indicates none.

    Example:
        >>> format_by_name("a.TAR.GZ"), format_by_name("s3://b/x.tfrecord-00001-of-00002"), format_by_name("a.gz")
        ('tar', 'tfrecord', None)
    """
    name = _SHARD.sub("", path.lower())
    return next((one for one, known in READABLE.items() if name.endswith(known.suffixes)), None)


def format_by_content(path: str) -> str | None:
    """Return the format that the first bytes of a file indicate; None if they indicate none."""
    if _is_tar(_beginning(path, 512)[0]):
        return "tar"
    with open(path, "rb") as file:
        start = file.read(32)
    if is_record(start[:12]):
        return "tfrecord"
    return next((one for one, known in READABLE.items() if known.start and re.match(known.start, start, re.S)), None)


def _is_tar(start: bytes) -> bool:
    """True if these bytes are the header of a tar archive, including pre-POSIX archives, which have no magic."""
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return start[257:262] == b"ustar"
    return True


def _beginning(path: str, size: int) -> tuple[bytes, str | None]:
    """Return the first bytes of a file, decompressed if needed, and its compression.

    The bytes are empty if they cannot be decompressed, because the file is damaged or a package is missing.
    """
    with open(path, "rb") as file:
        start = file.read(size)
    packing = packing_of(start)
    if packing is None:
        return start, None
    try:
        with closing(LocalBlob(path)) as blob:
            return content_of(blob).take(size), packing
    except (CorruptSource, MissingExtra):
        return b"", packing


class Kind(NamedTuple):
    """What a file that no source reads looks like."""

    words: str
    """Such as "JSON lines compressed with gzip"."""
    advice: str = ""
    """How to load it, in a sentence or two."""
    is_text: bool = False


_START_BYTES = 1 << 16
"""Bytes to examine at the beginning of a file, after decompression."""
_OPENED_BY = {None: "open(path)", "gzip": "gzip.open(path)", "bzip2": "bz2.open(path)", "xz": "lzma.open(path)"}
_ONE_SAMPLE = "A file of this kind is one sample: name the folder that contains all of them."
_MADE_ONCE = (
    "Write a dataset class of your own that reads it (`__len__` and `__getitem__`, or `__iter__`). `feedline pack "
    "module:dataset out.parquet` then writes its samples into a format that reads fast."
)
_KINDS = (
    (
        rb"\xff\xd8\xff|\x89PNG\r\n|GIF8[79]a|RIFF....WEBP|II\*\0|MM\0\*|....ftyp(avi[fs]|mif1)|\0\0\0\x0cJXL ",
        Kind("an image", _ONE_SAMPLE),
    ),
    (rb"RIFF....WAVE|fLaC|OggS|ID3", Kind("a sound", _ONE_SAMPLE)),
    (rb"....ftyp|\x1aE\xdf\xa3|RIFF....AVI ", Kind("a video", _ONE_SAMPLE)),
    (rb"Obj\x01", Kind("Avro", _MADE_ONCE)),
    (rb"ORC", Kind("ORC", _MADE_ONCE)),
    (rb"\0\0[\x08\x09\x0b-\x0e][\x01-\x04]", Kind("an IDX array, as in MNIST", _MADE_ONCE)),
    (rb"%PDF-", Kind("PDF", _MADE_ONCE)),
    (
        rb"\x93FEEDTOK",
        Kind(
            "a token file of feedline",
            "`feedline.text.TokenDataset(path, block=2048)` reads blocks of tokens from it, and "
            "`feedline.text.verify(path)` checks it.",
        ),
    ),
    (
        rb"PK\x03\x04.{,4000}/data\.pkl",
        Kind("a file of torch.save", "`torch.load(path)` reads it. A list of samples is a dataset already."),
    ),
    (rb"PK\x03\x04", Kind("a zip archive", "Extract it, and name the folder.")),
    (
        rb"\x80[\x02-\x05]",
        Kind("a pickle", f"`pickle.load(open(path, 'rb'))` reads it, and runs any code in the file. {_MADE_ONCE}"),
    ),
    (rb"[^\0-\x08\x0e-\x1a]*[\0-\x08\x0e-\x1a]", Kind("binary data of an unknown kind", _MADE_ONCE)),
)
_JSON = Kind("JSON", "If it contains a list of samples, that list is a dataset: DataLoader(json.load({})).", True)
_JSON_LINES = Kind("JSON lines", "feedline.datasets.JSONLines(path) reads it, under any name.", True)
_LINES = Kind(
    "lines of text",
    "If each line is a sample, feedline.datasets.TextLines(path) reads it. If it is a table, CSVDataset(path, "
    "delimiter=...) does.",
    True,
)


def kind_of_file(path: str) -> Kind:
    """Return what a file looks like, by its first bytes."""
    start, packing = _beginning(path, _START_BYTES)
    if not os.path.getsize(path):
        return Kind("an empty file")
    if packing is not None and not start:
        advice = 'Decompress it, or run `pip install "feedline[tar]"`.' if packing == "zstd" else ""
        return Kind(f"a damaged or empty file compressed with {packing}", advice)
    found = next((kind for first, kind in _KINDS if re.match(first, start, re.DOTALL)), None) or _text(start)
    opened = _OPENED_BY.get(packing, "zstandard.open(path)")
    return found._replace(
        words=f"{found.words} compressed with {packing}" if packing else found.words, advice=found.advice.format(opened)
    )


def _text(start: bytes) -> Kind:
    text = start.decode("utf-8-sig", errors="replace").lstrip()
    if not text.startswith(("{", "[")):
        return _LINES
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        # A value that extends beyond the examined bytes is not an error.
        return _JSON if len(start) == _START_BYTES else _LINES
    return _JSON_LINES if text[end:].lstrip().startswith(("{", "[")) else _JSON
