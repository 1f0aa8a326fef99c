"""Pack datasets into formats that read fast, and inspect the result."""

from feedline.tools.write.pack import pack
from feedline.tools.write.run import Packed, Stage

__all__ = ["Packed", "Stage", "pack"]
