"""WebDataset shards: tar archives of samples."""

from feedline.datasets.formats.tar.dataset import TarDataset
from feedline.datasets.formats.tar.stream import TarStream

__all__ = ["TarDataset", "TarStream"]
