"""Datasets with one sample per file."""

from feedline.datasets.files.dataset import FileDataset
from feedline.datasets.files.image_folder import ImageFolder

__all__ = ["FileDataset", "ImageFolder"]
