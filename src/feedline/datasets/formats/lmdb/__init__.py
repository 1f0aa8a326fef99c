"""Samples in an LMDB database."""

from feedline.datasets.formats.lmdb.dataset import LMDBDataset

__all__ = ["LMDBDataset"]
