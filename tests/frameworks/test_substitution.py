"""One object in the place of another, whichever module comes first."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedline.frameworks.substitution import _watch, substitute, when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose part is imported by its other part by name, as Accelerate has it."""
    folder = tmp_path / "a_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from a_package.user import call\n")
    (folder / "maker.py").write_text("def make():\n    return 'theirs'\n")
    (folder / "user.py").write_text("from a_package.maker import make\ndef call():\n    return make()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "a_package"
    for name in [name for name in sys.modules if name.startswith("a_package")]:
        del sys.modules[name]
    _watch.actions.pop("a_package.maker", None)


def ours() -> str:
    return "ours"


def take_over(module: types.ModuleType) -> None:
    substitute(module.make, ours)


def test_module_that_is_imported_later(package: str) -> None:
    when_imported("a_package.maker", take_over)
    assert "a_package" not in sys.modules
    assert importlib.import_module(package).call() == "ours"


def test_module_that_was_imported_before(package: str) -> None:
    module = importlib.import_module(package)
    when_imported("a_package.maker", take_over)
    assert module.call() == "ours"


def test_every_action_is_taken_once(package: str) -> None:
    taken: list[str] = []
    when_imported("a_package.maker", lambda module: taken.append("first"))
    when_imported("a_package.maker", lambda module: taken.append("second"))
    importlib.import_module(package)
    importlib.reload(sys.modules["a_package.maker"])
    assert taken == ["first", "second"]


def test_module_that_is_not_there_stays_an_import_error() -> None:
    when_imported("no_such_package", take_over)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        importlib.import_module("no_such_package")
    _watch.actions.pop("no_such_package")


def test_exception_of_the_module_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    when_imported("a_broken_module", take_over)
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("a_broken_module")
    _watch.actions.pop("a_broken_module")


def test_feedlines_own_names_stay() -> None:
    import feedline.errors

    old = feedline.errors.BadOption
    substitute(old, ours)
    assert feedline.errors.BadOption is old
