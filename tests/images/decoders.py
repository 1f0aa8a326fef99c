"""The decoders of images, one at a time: those that would be preferred seem not to be installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from feedline.images import decoding

PACKAGES = ("simplejpeg", "cv2", "PIL")
"""The first that is installed decodes JPEGs."""
INSTALLED = tuple(package for package in PACKAGES if importlib.util.find_spec(package))


@contextmanager
def best_installed(package: str) -> Iterator[None]:
    """Let a package be the best decoder that is installed."""
    missing = PACKAGES[: PACKAGES.index(package)]
    with mock.patch.dict(sys.modules, dict.fromkeys(missing)):  # None forbids to import them
        decoding._decoder.cache_clear()
        try:
            yield
        finally:
            decoding._decoder.cache_clear()
