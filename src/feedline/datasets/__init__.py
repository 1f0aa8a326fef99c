"""Datasets that load quickly."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedline.datasets.derived.cache import CachedDataset, PrecomputedDataset
    from feedline.datasets.derived.opening import open_dataset
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
    from feedline.datasets.formats.ray_rows import RayRows
    from feedline.datasets.formats.remote_arrays import RemoteArrays
    from feedline.datasets.formats.sql import SQLDataset
    from feedline.datasets.formats.streams import Feed, Message, RedisStream, StreamDataset
    from feedline.datasets.formats.tar import TarDataset
    from feedline.datasets.formats.tfrecord import TFRecordDataset
    from feedline.datasets.storage.remote import Remote
    from feedline.pipes.pipe import mix

__all__ = [
    "ArrayDataset",
    "ArrowDataset",
    "CSVDataset",
    "CachedDataset",
    "Feed",
    "FileDataset",
    "HDF5Dataset",
    "ImageFolder",
    "JSONLines",
    "LMDBDataset",
    "LanceDataset",
    "LitDataDataset",
    "MDSDataset",
    "MegatronDataset",
    "Message",
    "ParquetDataset",
    "PrecomputedDataset",
    "RayRows",
    "RedisStream",
    "Remote",
    "RemoteArrays",
    "SQLDataset",
    "StreamDataset",
    "TFRecordDataset",
    "TarDataset",
    "TextLines",
    "mix",
    "open_dataset",
]

_PLACES = {
    "ArrayDataset": "formats.arrays",
    "ArrowDataset": "formats.parquet",
    "CSVDataset": "formats.csv",
    "CachedDataset": "derived.cache",
    "Feed": "formats.streams",
    "FileDataset": "formats.files",
    "HDF5Dataset": "formats.hdf5",
    "ImageFolder": "formats.files",
    "JSONLines": "formats.lines",
    "LMDBDataset": "formats.lmdb",
    "LanceDataset": "formats.lance",
    "LitDataDataset": "formats.litdata",
    "MDSDataset": "formats.mds",
    "MegatronDataset": "formats.megatron",
    "Message": "formats.streams",
    "ParquetDataset": "formats.parquet",
    "PrecomputedDataset": "derived.cache",
    "RayRows": "formats.ray_rows",
    "RedisStream": "formats.streams",
    "Remote": "storage.remote",
    "RemoteArrays": "formats.remote_arrays",
    "SQLDataset": "formats.sql",
    "StreamDataset": "formats.streams",
    "TFRecordDataset": "formats.tfrecord",
    "TarDataset": "formats.tar",
    "TextLines": "formats.lines",
    "mix": ".pipes.pipe",
    "open_dataset": "derived.opening",
}
"""Where each name is defined, relative to this module. A source is imported on first use: a loader needs none."""


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{place}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
