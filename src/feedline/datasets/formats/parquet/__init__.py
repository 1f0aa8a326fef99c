"""Parquet, Arrow and Feather files as datasets."""

from feedline.datasets.formats.parquet.arrow import ArrowDataset
from feedline.datasets.formats.parquet.dataset import ParquetDataset

__all__ = ["ArrowDataset", "ParquetDataset"]
