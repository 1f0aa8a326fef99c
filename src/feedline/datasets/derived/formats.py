"""The formats of files: the source that reads each, and how a name or the first bytes of a file show it."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable
from typing import Any

from feedline.datasets.derived.cache import PrecomputedDataset
from feedline.datasets.derived.unread import beginning_of
from feedline.datasets.formats.arrays import ArrayDataset
from feedline.datasets.formats.csv import CSVDataset
from feedline.datasets.formats.csv.dataset import ENDINGS as CSV_ENDINGS
from feedline.datasets.formats.files import FileDataset, ImageFolder
from feedline.datasets.formats.files.image_folder import IMAGES
from feedline.datasets.formats.hdf5 import HDF5Dataset
from feedline.datasets.formats.lines import JSONLines, TextLines
from feedline.datasets.formats.lines.places import JSON_ENDINGS, TEXT_ENDINGS
from feedline.datasets.formats.litdata import LitDataDataset
from feedline.datasets.formats.lmdb import LMDBDataset
from feedline.datasets.formats.mds import MDSDataset
from feedline.datasets.formats.megatron import MAGIC as MEGATRON
from feedline.datasets.formats.megatron import MegatronDataset
from feedline.datasets.formats.parquet import ArrowDataset, ParquetDataset
from feedline.datasets.formats.sql import SQLDataset
from feedline.datasets.formats.tar import TarDataset
from feedline.datasets.formats.tfrecord import TFRecordDataset
from feedline.datasets.formats.tfrecord.framing import is_record
from feedline.datasets.storage.unpacking import packing_of

# Any: a dataset, made by a class or by a function that is called like one.
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
SHARDED = ("tar", "hdf5", "parquet", "arrow", "jsonl", "tfrecord")
"""Formats of which several files in a folder are read as one dataset."""
_RECORDS = re.compile(r".*\.tfrecords?(-\d+-of-\d+|-\*)?(\.gz)?", re.DOTALL)
"""How the names of TFRecord files end. TensorFlow Datasets appends the number of a shard."""


def format_by_content(path: str) -> str | None:
    """Return the format that the first bytes of a file indicate; None if they indicate none."""
    with open(path, "rb") as file:
        start = file.read(512)
    if start[16:20] == b"\xde\xc0\xef\xbe":
        return "lmdb"
    if is_record(start[:12]):
        return "tfrecord"
    if _is_tar(start) or (packing_of(start) is not None and _is_tar(beginning_of(path)[0][:512])):
        return "tar"
    return next((format_ for magic, format_ in _MAGIC if start.startswith(magic)), None)


def _is_tar(start: bytes) -> bool:
    """True if these bytes are the header of a tar archive, including pre-POSIX archives, which have no magic."""
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return start[257:262] == b"ustar"
    return True


def format_by_name(path: str) -> str | None:
    """Return the format that the name of a file or a pattern indicates; None if it indicates none."""
    for format_, endings in (("csv", CSV_ENDINGS), ("text", TEXT_ENDINGS)):
        if path.lower().endswith(endings):
            return format_
    return store_of(path)


def store_of(path: str) -> str | None:
    """As `format_by_name`, but None for tables and texts, which may be samples or describe them."""
    if path.lower().endswith(JSON_ENDINGS):
        return "jsonl"
    return "tfrecord" if _RECORDS.fullmatch(path.lower()) else _FORMATS.get(ending_of(path))


def usual_suffix(format_: str) -> str:
    """Return the suffix that most files of a format have."""
    return SUFFIXES[format_][0] if format_ in SUFFIXES else f".{format_}"


def ending_of(name: str) -> str:
    """Return the suffix of a name in lower case; both suffixes of a compressed tar file.

    Example:
        >>> ending_of("a.b.TAR.GZ"), ending_of("a.b.h5"), ending_of("a.gz")
        ('.tar.gz', '.h5', '.gz')
    """
    stem, ending = os.path.splitext(name.lower())
    return f".tar{ending}" if f".tar{ending}" in COMPRESSED and stem.endswith(".tar") else ending


def is_picture_name(path: str) -> bool:
    """True if a file has the suffix of an image."""
    return os.path.splitext(path)[1].lower() in IMAGES
