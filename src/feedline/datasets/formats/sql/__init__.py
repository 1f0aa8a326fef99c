"""Databases as datasets."""

from feedline.datasets.formats.sql.dataset import SQLDataset

__all__ = ["SQLDataset"]
