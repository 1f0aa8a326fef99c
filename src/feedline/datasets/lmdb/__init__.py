"""Samples in an LMDB database."""

from feedline.datasets.lmdb.dataset import LMDBDataset

__all__ = ["LMDBDataset"]
