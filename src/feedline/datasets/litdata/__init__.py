"""Chunks of LitData."""

from feedline.datasets.litdata.dataset import LitDataDataset

__all__ = ["LitDataDataset"]
