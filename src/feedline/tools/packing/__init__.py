"""Datasets into formats that read fast, and what is in such a store."""

from feedline.tools.packing.pack import pack
from feedline.tools.packing.run import Packed, Stage

__all__ = ["Packed", "Stage", "pack"]
