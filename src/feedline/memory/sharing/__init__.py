"""Lists and dicts that all workers share."""

from feedline.memory.sharing.share import share
from feedline.memory.sharing.shared import SharedDict, SharedList

__all__ = ["SharedDict", "SharedList", "share"]
