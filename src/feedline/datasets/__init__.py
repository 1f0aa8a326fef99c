"""Datasets that load quickly."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from feedline.datasets.mix import mix  # import now: later, `mix` could resolve to the module of this name

if TYPE_CHECKING:
    from feedline.datasets.arrays import ArrayDataset
    from feedline.datasets.cache import CachedDataset, PrecomputedDataset
    from feedline.datasets.csv import CSVDataset
    from feedline.datasets.files import FileDataset, ImageFolder
    from feedline.datasets.hdf5 import HDF5Dataset
    from feedline.datasets.lines import JSONLines, TextLines
    from feedline.datasets.litdata import LitDataDataset
    from feedline.datasets.lmdb import LMDBDataset
    from feedline.datasets.mds import MDSDataset
    from feedline.datasets.megatron import MegatronDataset
    from feedline.datasets.opening import open_dataset
    from feedline.datasets.parquet import ArrowDataset, ParquetDataset
    from feedline.datasets.ray_rows import RayRows
    from feedline.datasets.remote_arrays import RemoteArrays
    from feedline.datasets.sql import SQLDataset
    from feedline.datasets.streams import RedisStream, StreamDataset
    from feedline.datasets.tar import TarDataset
    from feedline.datasets.tfrecord import TFRecordDataset

__all__ = [
    "ArrayDataset",
    "ArrowDataset",
    "CSVDataset",
    "CachedDataset",
    "FileDataset",
    "HDF5Dataset",
    "ImageFolder",
    "JSONLines",
    "LMDBDataset",
    "LitDataDataset",
    "MDSDataset",
    "MegatronDataset",
    "ParquetDataset",
    "PrecomputedDataset",
    "RayRows",
    "RedisStream",
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
    "ArrayDataset": "arrays",
    "ArrowDataset": "parquet",
    "CSVDataset": "csv",
    "CachedDataset": "cache",
    "FileDataset": "files",
    "HDF5Dataset": "hdf5",
    "ImageFolder": "files",
    "JSONLines": "lines",
    "LMDBDataset": "lmdb",
    "LitDataDataset": "litdata",
    "MDSDataset": "mds",
    "MegatronDataset": "megatron",
    "ParquetDataset": "parquet",
    "PrecomputedDataset": "cache",
    "RayRows": "ray_rows",
    "RedisStream": "streams",
    "RemoteArrays": "remote_arrays",
    "SQLDataset": "sql",
    "StreamDataset": "streams",
    "TFRecordDataset": "tfrecord",
    "TarDataset": "tar",
    "TextLines": "lines",
    "open_dataset": "opening",
}
"""The module that defines each name. A source is imported on first use: a loader needs none of them."""


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"feedline.datasets.{place}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
