"""Worker processes that use only what Python's multiprocessing has on every system."""

from feedline.workers.portable.engine import PortableEngine

__all__ = ["PortableEngine"]
