"""The decoders of images, one at a time: those that would be preferred seem not to be installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from feedline.images import decoding

PACKAGES = ("simplejpeg", "cv2", "PIL")
"""The first that is installed decodes JPEGs."""
INSTALLED = tuple(package for package in PACKAGES if importlib.util.find_spec(package))


@contextmanager
def best_installed(package: str) -> Iterator[None]:
    """Let a package be the best decoder that is installed."""
    # Not mock.patch.dict, which would also drop what is imported meanwhile: it would be imported again the next time.
    before = {name: sys.modules.pop(name, None) for name in PACKAGES[: PACKAGES.index(package)]}
    sys.modules.update(dict.fromkeys(before))  # type: ignore[arg-type]  # None forbids to import them
    decoding._decoder.cache_clear()
    try:
        yield
    finally:
        decoding._decoder.cache_clear()
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
