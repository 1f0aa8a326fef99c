"""OpenCV, where it is installed."""

from __future__ import annotations

import functools
import multiprocessing
import os
from types import ModuleType

from feedline.errors import MissingExtra
from feedline.system.optional import require


def opencv() -> ModuleType | None:
    """Return OpenCV's module, or None if it is not installed."""
    return _opencv_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _opencv_of(process: int) -> ModuleType | None:
    try:
        cv2 = require("cv2", extra="images", purpose="Resizing images")
    except MissingExtra:
        return None
    if multiprocessing.parent_process() is not None:
        cv2.setNumThreads(0)  # the workers provide the parallelism, and a fork has no threads of OpenCV
    return cv2
