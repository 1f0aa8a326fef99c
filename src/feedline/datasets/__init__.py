"""Datasets that are made to be loaded quickly."""

from feedline.datasets.arrays import ArrayDataset

__all__ = ["ArrayDataset"]
