"""Pack datasets into formats that read fast, and inspect the result."""

from feedline.tools.write.pack import Packed, pack
from feedline.tools.write.run import Stage

__all__ = ["Packed", "Stage", "pack"]
