"""Databases as datasets."""

from feedline.datasets.sql.dataset import SQLDataset

__all__ = ["SQLDataset"]
