"""Something is done as soon as a module is imported, by whomever."""

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
    """A module that nobody has imported yet."""
    name = "feedline_test_comes_later"
    (tmp_path / f"{name}.py").write_text(
        "import sys\nvalue = 7\nif getattr(sys, 'refuse_it', False): raise OSError('broken')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_now_if_it_is_there() -> None:
    found: list[ModuleType] = []
    when_imported("json", found.append)
    assert found == [sys.modules["json"]]


def test_before_anybody_sees_it(later: str) -> None:
    def change(module: Any) -> None:
        module.value += 1

    when_imported(later, change)
    assert later not in sys.modules
    assert importlib.import_module(later).value == 8
    assert importlib.import_module(later).value == 8


def test_several_wait_for_it(later: str) -> None:
    found: list[str] = []
    when_imported(later, lambda module: found.append("first"))
    when_imported(later, lambda module: found.append("second"))
    importlib.import_module(later)
    assert sorted(found) == ["first", "second"]


def test_looking_for_it_is_not_importing_it(later: str) -> None:
    found: list[ModuleType] = []
    when_imported(later, found.append)
    assert importlib.util.find_spec(later) is not None
    assert found == []
    importlib.import_module(later)
    assert len(found) == 1


def test_an_import_that_fails_may_be_tried_again(later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[ModuleType] = []
    when_imported(later, found.append)
    monkeypatch.setattr(sys, "refuse_it", True, raising=False)
    with pytest.raises(OSError, match="broken"):
        importlib.import_module(later)
    assert found == []
    monkeypatch.setattr(sys, "refuse_it", False)
    importlib.import_module(later)
    assert len(found) == 1


def test_what_does_not_exist_is_not_found(later: str) -> None:
    when_imported("feedline_test_never_comes", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("feedline_test_never_comes")


def test_one_loader_of_several_modules_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_finders_of_old_are_passed_over(later: str) -> None:
    found: list[ModuleType] = []
    when_imported(later, found.append)
    sys.meta_path.insert(1, object())  # type: ignore[arg-type]  # Python passes over it as well
    assert found == []
    assert importlib.import_module(later) is found[0]


def test_a_module_that_must_not_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "feedline_test_forbidden", None)
    when_imported("feedline_test_forbidden", lambda module: pytest.fail("it is not there"))
