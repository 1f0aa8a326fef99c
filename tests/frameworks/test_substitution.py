"""Replacing one object by another, in whichever order modules are imported."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import feedline.errors
from feedline.frameworks.substitution import substitute
from feedline.system.optional import when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a module that imports a name from another one, like Accelerate."""
    folder = tmp_path / "a_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from a_package.user import call\n")
    (folder / "maker.py").write_text("def make():\n    return 'theirs'\n")
    (folder / "user.py").write_text("from a_package.maker import make\ndef call():\n    return make()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "a_package"
    for name in [name for name in sys.modules if name.startswith("a_package")]:
        del sys.modules[name]


def ours() -> str:
    return "ours"


def take_over(module: types.ModuleType) -> None:
    substitute(module.make, ours)


def test_replaces_names_in_modules_imported_later(package: str) -> None:
    when_imported("a_package.maker", take_over)
    assert "a_package" not in sys.modules
    assert importlib.import_module(package).call() == "ours"


def test_replaces_names_in_modules_imported_before(package: str) -> None:
    module = importlib.import_module(package)
    when_imported("a_package.maker", take_over)
    assert module.call() == "ours"


def test_names_in_feedlines_own_modules_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = object()
    monkeypatch.setattr(feedline.errors, "of_a_library", theirs, raising=False)
    monkeypatch.setattr(types, "of_a_library", theirs, raising=False)
    substitute(theirs, ours)
    assert vars(feedline.errors)["of_a_library"] is theirs
    assert vars(types)["of_a_library"] is ours
