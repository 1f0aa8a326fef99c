"""WebDataset shards: tar archives of samples."""

from feedline.datasets.tar.dataset import TarDataset
from feedline.datasets.tar.stream import TarStream

__all__ = ["TarDataset", "TarStream"]
