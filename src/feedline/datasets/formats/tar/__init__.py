"""WebDataset shards: tar archives of samples."""

from feedline.datasets.formats.tar.dataset import TarDataset

__all__ = ["TarDataset"]
