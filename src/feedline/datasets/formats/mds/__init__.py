"""MDS shards, the format of MosaicML Streaming."""

from feedline.datasets.formats.mds.dataset import MDSDataset

__all__ = ["MDSDataset"]
