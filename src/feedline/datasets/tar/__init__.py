"""WebDataset shards: tar archives of samples."""

from feedline.datasets.tar.dataset import TarDataset
from feedline.datasets.tar.stream import TarStream
from feedline.datasets.tar.table import TarTable

__all__ = ["TarDataset", "TarStream", "TarTable"]
