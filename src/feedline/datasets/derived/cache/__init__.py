"""Samples that are computed once and kept: in memory that all workers share, on disk, or precomputed as a whole."""

from feedline.datasets.derived.cache.cached import CachedDataset
from feedline.datasets.derived.cache.precomputed import PrecomputedDataset

__all__ = ["CachedDataset", "PrecomputedDataset"]
