"""Parquet, Arrow and Feather files as datasets."""

from feedline.datasets.formats.parquet.dataset import ArrowDataset, ParquetDataset

__all__ = ["ArrowDataset", "ParquetDataset"]
