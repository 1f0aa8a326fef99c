"""Samples that are files of their own."""

from feedline.datasets.files.dataset import FileDataset
from feedline.datasets.files.image_folder import ImageFolder

__all__ = ["FileDataset", "ImageFolder"]
