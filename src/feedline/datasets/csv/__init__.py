"""CSV files as datasets."""

from feedline.datasets.csv.dataset import CSVDataset

__all__ = ["CSVDataset"]
