"""Datasets into formats that read fast, and what is in such a store."""

from feedline.packing.pack import pack
from feedline.packing.run import Packed, Stage

__all__ = ["Packed", "Stage", "pack"]
