"""Parquet, Arrow and Feather files as datasets."""

from feedline.datasets.parquet.arrow import ArrowDataset
from feedline.datasets.parquet.parquet import ParquetDataset

__all__ = ["ArrowDataset", "ParquetDataset"]
