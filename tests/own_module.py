"""A module of a test's own, that programs and `open_object` can import by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def own_module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """Write a module into a folder, make the folder the current one, and return the name of the module."""
    name = f"own_{folder.name}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name
