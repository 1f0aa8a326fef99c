"""CSV files as datasets."""

from feedline.datasets.formats.csv.dataset import CSVDataset

__all__ = ["CSVDataset"]
