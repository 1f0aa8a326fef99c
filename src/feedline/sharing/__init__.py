"""Lists and dicts that all workers read from one place."""

from feedline.sharing.share import share
from feedline.sharing.shared_dict import SharedDict
from feedline.sharing.shared_list import SharedList

__all__ = ["SharedDict", "SharedList", "share"]
