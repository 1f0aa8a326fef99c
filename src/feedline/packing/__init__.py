"""Datasets into formats that read fast, and what is in such a store."""

from feedline.packing.pack import Packed, Stage, pack

__all__ = ["Packed", "Stage", "pack"]
