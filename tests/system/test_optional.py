"""Callbacks that run as soon as a module is imported anywhere."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from feedline.system.optional import when_imported


@pytest.fixture(autouse=True)
def _finders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that has not been imported yet."""
    name = "feedline_test_comes_later"
    (tmp_path / f"{name}.py").write_text(
        "import sys\nvalue = 7\nif getattr(sys, 'refuse_it', False): raise OSError('broken')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_the_callback_runs_before_the_importing_code_sees_the_module(later: str) -> None:
    def change(module: Any) -> None:
        module.value += 1

    when_imported(later, change)
    assert later not in sys.modules
    assert importlib.import_module(later).value == 8
    assert importlib.import_module(later).value == 8


def test_the_callback_runs_after_a_failed_import_is_retried(later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[ModuleType] = []
    when_imported(later, found.append)
    monkeypatch.setattr(sys, "refuse_it", True, raising=False)
    with pytest.raises(OSError, match="broken"):
        importlib.import_module(later)
    assert found == []
    monkeypatch.setattr(sys, "refuse_it", False)
    importlib.import_module(later)
    assert len(found) == 1


def test_a_loader_shared_by_several_modules_is_not_modified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("feedline_test_first.py", "value = 1\n")
        file.writestr("feedline_test_second.py", "value = 2\n")
    monkeypatch.syspath_prepend(archive)
    found: list[ModuleType] = []
    when_imported("feedline_test_first", found.append)
    first, second = map(importlib.import_module, ("feedline_test_first", "feedline_test_second"))
    assert found == [first]
    assert type(first.__loader__) is type(second.__loader__)
    for module in (first, second):
        del sys.modules[module.__name__]


def test_a_module_that_does_not_exist_is_still_not_found(later: str) -> None:
    when_imported("feedline_test_never_comes", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("feedline_test_never_comes")
