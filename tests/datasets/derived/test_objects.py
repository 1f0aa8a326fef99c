from __future__ import annotations

import sys
from pathlib import Path

import pytest

from feedline.datasets.derived.objects import check_name, open_object
from feedline.errors import BadOption, DatasetFailed
from tests.own_module import own_module

MODULE = """
class Points:
    def __len__(self): return 3
    def __getitem__(self, index): return {"x": index}

class Rooted(Points):
    def __init__(self, root, *, split="train"): self.root = root

class Optional(Points):
    def __init__(self, root="here"): self.root = root

class Failing(Points):
    def __init__(self): raise FileNotFoundError("there is no folder /data")

class Callable(Points):
    def __call__(self): raise AssertionError("a dataset is not called")

points = Points()
callable = Callable()
make = lambda: Points()
number, text, none = 3, "photos", None
nothing = lambda: None
needs = lambda a, b: a
class Space:
    points = Points()
def leaves():
    raise SystemExit(4)
def inner():
    return undefined_name
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return own_module(tmp_path, monkeypatch, MODULE)


@pytest.mark.parametrize("name", ["points", "Points", "make", "Optional", "callable", "Space.points"])
def test_datasets(module: str, name: str) -> None:
    assert len(open_object(f"{module}:{name}")) == 3


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{module}:Rooted", ":Rooted failed: TypeError: .*'root'"),
        ("{module}:Failing", r":Failing failed: FileNotFoundError: .*own_.*.py, line 13\)"),
        ("{module}:inner", r"NameError: name 'undefined_name' is not defined \(.*, line 29\)"),
        ("{module}:leaves", "SystemExit: 4"),
        ("{module}:number", "3, of type int"),
        ("{module}:text", "'photos', of type str"),
        ("{module}:nothing", "None"),
        ("{module}:missing", "'missing'"),
        ("{module}:Space.missing", "'Space.missing'"),
        ("{module}:Space", "Space object"),
        ("{module}:", "no file or folder"),
        ("{module}:points:x", "no file or folder"),
        ("not_there_either:x", "'not_there_either'"),
        ("{module}.below:x", r"'\w+\.below'"),
        ("elsewhere/a.py:points", r"'elsewhere/a\.py'"),
    ],
)
def test_rejects_objects_that_are_not_datasets(module: str, source: str, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        open_object(source.replace("{module}", module))


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("x = 1 / 0", r"'broken_\w+' failed: ZeroDivisionError: .*, line 1\)"),
        ("\ndef f(:", r"SyntaxError: .*broken_\w+.py, line 2\)"),
        ("import not_there_at_all", "ModuleNotFoundError: .*'not_there_at_all'"),
        ("from os import not_there", "ImportError: .*'not_there'"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_modules_that_fail(tmp_path: Path, module: str, code: str, named: str) -> None:
    name = f"broken_{module}"
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(BadOption, match=named):
        open_object(f"{name}:x")


def test_a_file_that_fails_does_not_unload_a_module_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "a_module_of_its_name.py"
    own.write_text("raise ValueError")
    monkeypatch.setitem(sys.modules, own.stem, sys)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(DatasetFailed):
        open_object(f"{own}:dataset")
    assert sys.modules[own.stem] is sys


def test_files_in_place_of_modules(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "beside.py").write_text(f"from {module} import make")
    for file in (f"{module}.py", "beside.py"):
        assert len(open_object(f"{tmp_path / file}:make")) == 3
    monkeypatch.delitem(sys.modules, "beside")


def test_the_traceback_contains_only_user_code(tmp_path: Path, module: str) -> None:
    (tmp_path / "deep.py").write_text("def f():\n    return 1 / 0\nf()")
    for source, expected in ((f"{module}:inner", "NameError"), (f"{tmp_path / 'deep.py'}:x", "ZeroDivisionError")):
        with pytest.raises(DatasetFailed) as caught:
            open_object(source)
        formatted = caught.value.traceback
        assert formatted.startswith(f'Traceback (most recent call last):\n  File "{tmp_path}')
        assert expected in formatted
        assert "objects.py" not in formatted


def test_an_interrupted_import_is_an_interruption(tmp_path: Path, module: str) -> None:
    (tmp_path / f"interrupted_{module}.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        open_object(f"interrupted_{module}:x")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/folder", "There is no file or folder 'no/such/folder' in "),
        ("nofile.py:dataset", "There is no file 'nofile.py' in .*, which 'nofile.py:dataset' names"),
        ("rows.csv", "rows.csv is a file or folder, not an object in Python.* `feedline inspect rows.csv`"),
        ("s3://bucket/rows", "There is no file or folder .* nor an object"),
    ],
)
def test_paths_are_not_objects(module: str, source: str, message: str) -> None:
    Path("rows.csv").write_text("x\n1\n")
    for check in (open_object, check_name):
        with pytest.raises(BadOption, match=message):
            check(source)
