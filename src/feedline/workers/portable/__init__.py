"""Worker processes that use only the parts of Python's multiprocessing that every system has."""

from feedline.workers.portable.engine import PortableEngine

__all__ = ["PortableEngine"]
