"""Samples that are files of their own."""

from feedline.datasets.files.dataset import FileDataset, ImageFolder

__all__ = ["FileDataset", "ImageFolder"]
