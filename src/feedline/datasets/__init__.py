"""Datasets that are made to be loaded quickly."""

from feedline.datasets.arrays import ArrayDataset
from feedline.datasets.cache import CachedDataset, PrecomputedDataset
from feedline.datasets.files import FileDataset, ImageFolder
from feedline.datasets.hdf5 import HDF5Dataset
from feedline.datasets.lmdb import LMDBDataset
from feedline.datasets.mix import mix
from feedline.datasets.parquet import ArrowDataset, ParquetDataset
from feedline.datasets.sql import SQLDataset
from feedline.datasets.streams import GrowingFile, RedisStream, StreamDataset
from feedline.datasets.tar import TarDataset

__all__ = [
    "ArrayDataset",
    "ArrowDataset",
    "CachedDataset",
    "FileDataset",
    "GrowingFile",
    "HDF5Dataset",
    "ImageFolder",
    "LMDBDataset",
    "ParquetDataset",
    "PrecomputedDataset",
    "RedisStream",
    "SQLDataset",
    "StreamDataset",
    "TarDataset",
    "mix",
]
