"""Lists and dicts that all workers share."""

from feedline.memory.sharing.share import SharedDict, SharedList, share

__all__ = ["SharedDict", "SharedList", "share"]
