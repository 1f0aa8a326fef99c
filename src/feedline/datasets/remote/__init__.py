"""Bytes from where they lie: local files, http(s), object storage."""

from feedline.datasets.remote.blob import Blob
from feedline.datasets.remote.storage import Storage

__all__ = ["Blob", "Storage"]
