"""Pack datasets into formats that read fast, and inspect the result."""

from feedline.tools.packing.pack import pack
from feedline.tools.packing.run import Packed, Stage

__all__ = ["Packed", "Stage", "pack"]
