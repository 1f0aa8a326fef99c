"""Datasets with one sample per file."""

from feedline.datasets.formats.files.dataset import FileDataset
from feedline.datasets.formats.files.image_folder import ImageFolder

__all__ = ["FileDataset", "ImageFolder"]
