"""Select one image decoder at a time, by making the preferred ones look uninstalled."""

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
    """Make a package the best installed decoder."""
    # Not mock.patch.dict, which would also drop modules imported meanwhile, so that they would be imported again.
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
