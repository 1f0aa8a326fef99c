"""Datasets into formats that read fast, and what is in such a store."""

from feedline.packing.pack import pack
from feedline.packing.progress import Packed, Stage, Unused

__all__ = ["Packed", "Stage", "Unused", "pack"]
