"""Datasets that are made to be loaded quickly."""

from feedline.datasets.arrays import ArrayDataset
from feedline.datasets.mix import mix

__all__ = ["ArrayDataset", "mix"]
