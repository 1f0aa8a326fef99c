"""Chunks of LitData."""

from feedline.datasets.formats.litdata.dataset import LitDataDataset

__all__ = ["LitDataDataset"]
