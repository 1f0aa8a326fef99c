"""Which names are public: those that public packages list in `__all__`, and those that the reference shows."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import feedline

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
PACKAGES = (
    "abc",
    "audio",
    "collate",
    "datasets",
    "errors",
    "faults",
    "images",
    "samplers",
    "schedulers",
    "simulation",
    "testing",
    "text",
    "video",
)


def listed_names() -> list[str]:
    """Return what `__all__` of feedline and of its public packages lists."""
    names = [f"feedline.{name}" for name in feedline.__all__]
    for package in PACKAGES:
        names += [f"feedline.{package}.{name}" for name in importlib.import_module(f"feedline.{package}").__all__]
    return names


def shown_names() -> list[str]:
    """Return what the reference shows, in its order."""
    pages = [page.read_text("utf-8") for page in sorted(REFERENCE.glob("*.md"))]
    return [name for text in pages for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)]


# Any: whatever is public.
def value_of(name: str) -> Any:
    """Return the object of a public name. Raises MissingExtra if it needs a package that is not installed."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
