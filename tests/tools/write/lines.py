"""The lines of Python that `feedline pack` and `feedline inspect` print, made ready to run in a test."""

from __future__ import annotations

import re


def without_workers(line: str) -> str:
    """Return the line with a loader that makes its batches in the training loop."""
    return re.sub(r"\bworkers=\d+", "workers=0", line)
