"""Samples that are computed once and kept: in memory that all workers share, on disk, or precomputed as a whole."""

from feedline.datasets.cache.cached import CachedDataset
from feedline.datasets.cache.precomputed import PrecomputedDataset

__all__ = ["CachedDataset", "PrecomputedDataset"]
