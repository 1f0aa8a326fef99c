"""Lists and dicts that all workers read from one place."""

from feedline.sharing.share import share
from feedline.sharing.shared import SharedDict, SharedList

__all__ = ["SharedDict", "SharedList", "share"]
