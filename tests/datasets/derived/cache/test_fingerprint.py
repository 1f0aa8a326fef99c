"""Which changes give a dataset a new fingerprint."""

import functools
import importlib
import linecache
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.datasets.derived.cache.fingerprint import fingerprint
from feedline.errors import BadOption


def double(value: int) -> int:
    return value * 2


class Scaled:
    factor = 3

    def __init__(self, values: Any, transform: Any = None) -> None:
        self.values = values
        self.transform = transform


def made_by(source: str, path: Path | None = None) -> Any:
    """Run source code as a module of its own, perhaps from a file, and return its variable `made`."""
    space: dict[str, Any] = {"__name__": "program"}
    if path is not None:
        path.write_text(source)
        linecache.checkcache(str(path))
    exec(compile(source, "<string>" if path is None else str(path), "exec"), space)
    return space["made"]


BIG = np.zeros((1 << 12, 1 << 10), np.uint8)
CHANGED = BIG.copy()
CHANGED[::7, 3] = 1

DIFFERENT = [
    ([1, 2], [1, 3]),
    ([1, 2], (1, 2)),
    ([1, 2], [2, 1]),
    ([1], [1.0]),
    ([1], [True]),
    ("ab", b"ab"),
    ({"a": 1}, {"a": 2}),
    ({1, 2}, {1, 3}),
    ([["a"], "b"], [["a", "b"]]),
    (np.arange(3), np.arange(3.0)),
    (np.arange(4), np.arange(4).reshape(2, 2)),
    (np.zeros(3), np.zeros(4)),
    (BIG, CHANGED),
    (torch.zeros(3), torch.ones(3)),
    (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    (Scaled([1]), Scaled([2])),
    (Scaled([1]), Scaled([1], double)),
    (functools.partial(double, 1), functools.partial(double, 2)),
    (Path("a"), Path("b")),
    (list(range(5000)), [*range(4999), 0]),
]


@pytest.mark.parametrize("pair", DIFFERENT, ids=lambda pair: f"{type(pair[0]).__name__}")
def test_other_values_change_the_fingerprint(pair: tuple[Any, Any]) -> None:
    assert fingerprint(pair[0]) != fingerprint(pair[1])
    assert fingerprint(pair[0]) == fingerprint(pair[0])


SCALED = """
import functools
def scaled(k):
    def decorated(function):
        @functools.wraps(function)
        def wrapper(self, i): return function(self, i) * k
        return wrapper
    return decorated
"""

COMPOSE = """
class Compose:
    def __init__(self, *steps): self.steps = steps
"""

METHODS = "import functools, threading\nimport numpy as np\n" + COMPOSE + "class A:\n    MEMBER\nmade = A()"
"""Source of a class with one member, in which one number changes."""

MEMBERS = {
    "a method behind lru_cache": "@functools.lru_cache(None)\n    def f(self): return {}",
    "a special method behind lru_cache": "@functools.lru_cache(None)\n    def __getitem__(self, i): return {}",
    "a cached_property": "@functools.cached_property\n    def f(self): return {}",
    "the function of a partialmethod": "f = functools.partialmethod(lambda self, k: k + {}, 1)",
    "an argument of a partialmethod": "f = functools.partialmethod(lambda self, k: k, {})",
    "a special partialmethod": "__getitem__ = functools.partialmethod(lambda self, k, i: k, {})",
    "a setter": "f = property(lambda self: 1, lambda self, value: {})",
    "a deleter": "f = property(lambda self: 1, None, lambda self: {})",
    "a static method": "f = staticmethod(lambda: {})",
    "a class method": "f = classmethod(lambda cls: {})",
    "a static method behind lru_cache": "f = staticmethod(functools.lru_cache(None)(lambda: {}))",
    "a tuple of the class": "mean = (0.5, {})",
    "a list of the class": "mean = [0.5, {}]",
    "a dictionary of the class": "names = {'a': {}}",
    "an array of the class": "mean = np.full(3, {})",
    "an object of the class": "transform = Compose(1, {})",
    "an object beside what cannot be pickled": "transform = Compose(threading.Lock(), {})",
    "a class within the class": "class Inner:\n        size = {}",
}

PROGRAMS = {
    **{name: METHODS.replace("MEMBER", one) for name, one in MEMBERS.items()},
    "a function behind lru_cache": "import functools\n@functools.lru_cache(None)\ndef made(x): return x * {}",
    "the body of a function": "def made(x): return x + {}",
    "a default": "def made(x, y={}): return x + y",
    "a lambda": "made = lambda x: x + {}",
    "one of two lambdas in a line": "made = [lambda x: x + 4, lambda x: x - 4, lambda x: x + 3][{} - 4]",
    "an inner function": "def made(x):\n    def inner(y): return y * {}\n    return inner(x)",
    "a closure": "def make(n):\n    return lambda x: x + n\nmade = make({})",
    "a recursive closure": "def make():\n    def inner(x): return inner(x - {})\n    return inner\nmade = make()",
    "a method": "class A:\n    def __getitem__(self, i): return i + {}\nmade = A()",
    "an inherited method": "class B:\n    def f(self): return {}\nclass A(B): pass\nmade = A()",
    "an attribute of the class": "class A:\n    size = {}\nmade = A()",
    "a property": "class A:\n    @property\n    def f(self): return {}\nmade = A()",
    "an argument of a decorator": SCALED + "class A:\n    @scaled({})\n    def f(self, i): return i\nmade = A()",
    "slots": "class A:\n    __slots__ = ('a',)\nmade = A(); made.a = {}",
}


@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_code_changes_the_fingerprint(name: str, has_source: bool, tmp_path: Path) -> None:
    path = tmp_path / "program.py" if has_source else None
    old, new = (PROGRAMS[name].replace("{}", number) for number in "34")
    assert fingerprint(made_by(old, path)) == fingerprint(made_by(old, path))
    assert fingerprint(made_by(old, path)) != fingerprint(made_by(new, path))


FUNCTION = "def made(x):\n    return x + 1\n"


def test_source_text_stands_for_bytecode(tmp_path: Path) -> None:
    """So that another version of Python finds the same."""
    path = tmp_path / "program.py"
    made = made_by(FUNCTION, path)
    before = fingerprint(made)
    assert before != fingerprint(made_by(FUNCTION))
    assert fingerprint(made_by(FUNCTION.replace("return", "# because\n    return"), path)) == before
    assert fingerprint(made_by(FUNCTION.replace("x + 1", "x - 1"), path)) != before
    assert fingerprint(made) == before, "an edited file is not the code that runs"


def test_code_whose_file_was_edited_counts_by_its_bytecode(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    made, other = made_by(FUNCTION, path), FUNCTION.replace("1", "2")
    path.write_text(other)
    assert fingerprint(made) == fingerprint(made_by(FUNCTION)) != fingerprint(made_by(other, path))


def test_class_attributes_that_cannot_be_pickled_count_by_name_and_type() -> None:
    source = "import threading\nclass A:\n    {} = threading.Lock()\nmade = A()"
    found = {fingerprint(made_by(source.format(name))) for name in ("lock", "lock", "other")}
    assert len(found) == 2


def test_class_attributes_of_installed_packages_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec, for example, stores the process id in a class. Methods of these classes do count."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "installed_one.py").write_text("class A:\n    pid, opened = 1, {}\n    def f(self): return 1")
    monkeypatch.syspath_prepend(folder)
    kind: Any = importlib.import_module("installed_one").A
    before = fingerprint(kind())
    kind.pid, kind.opened = 2, {"a": 1}
    assert fingerprint(kind()) == before
    kind.f = lambda self: 2
    assert fingerprint(kind()) != before


@pytest.mark.parametrize("name", ["SIZE = {}", "def helper(x): return x + {}"])
def test_globals_that_code_refers_to_do_not_count(name: str) -> None:
    """That is what version= is for, as the page on caches says."""
    programs = [f"{name.format(number)}\ndef made(x): return x * SIZE + helper(x)" for number in (1, 2)]
    assert fingerprint(made_by(programs[0])) == fingerprint(made_by(programs[1]))


def test_rejects_values_that_are_nested_too_deeply() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(BadOption, match=r"method fingerprint\(\)"):
        fingerprint(value)


FORMS = [
    str,
    Path,
    lambda path: [str(path)],
    lambda path: [f"{path}"] * 1500,
    lambda path: [(f"{path}", 7)] * 1500,
    lambda path: [("A caption.", f"{path}")] * 4000,
    lambda path: [{"image": f"{path}", "boxes": [[1.0, 2.0]]}] * 1500,
    lambda path: [(path, 7)] * 1500,
    lambda path: [Scaled(f"{path}") for _ in range(1500)],
    lambda path: dict.fromkeys(range(1500), f"{path}"),
    lambda path: {"config": f"{path}", "samples": [("other.jpg", 7)] * 60_000},
]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_changed_file_behind_a_path_changes_the_fingerprint(form: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    found: set[bytes] = set()
    for content in ("one", "other", "three"):
        path.write_text(content)
        os.utime(path, ns=(len(found) * 10**9, len(found) * 10**9))
        dataset = Scaled(form(path))
        assert fingerprint(dataset) == fingerprint(dataset)
        found.add(fingerprint(dataset))
    path.unlink()
    found.add(fingerprint(Scaled(form(path))))
    assert len(found) == 4


MAPPED = [
    lambda path: np.load(path, mmap_mode="r"),
    lambda path: np.load(path, mmap_mode="c")[10:],
    lambda path: [np.asarray(np.load(path, mmap_mode="r"))[:, ::2]],
    lambda path: np.memmap(path, np.uint8, "r", offset=100),
]


@pytest.mark.parametrize("form", MAPPED)
def test_a_changed_file_behind_a_mapped_array_changes_the_fingerprint(form: Any, tmp_path: Path) -> None:
    path, other = tmp_path / "a.npy", tmp_path / "b.npy"
    values = np.zeros((10_000, 100), np.float32)
    np.save(path, values)
    os.utime(path, ns=(0, 0))
    before = fingerprint(Scaled(form(path)))
    assert fingerprint(Scaled(form(path))) == before
    values[100] = 1  # not in one of the pieces
    np.save(other, values)
    os.replace(other, path)
    assert fingerprint(Scaled(form(path))) != before


def test_the_place_in_a_mapped_file_counts(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", BIG)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    parts = [mapped[:2000], mapped[1:2001], mapped[1:2002], np.asarray(mapped)[2000:4000]]
    assert len({fingerprint(Scaled(part)) for part in parts}) == 4
    assert fingerprint(Scaled(mapped[1:2001])) == fingerprint(Scaled(mapped[1:2001]))


@pytest.mark.parametrize("form", [lambda name: name, lambda name: (name, 7), lambda name: Scaled(name)])
def test_only_a_sample_of_many_files_is_checked(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    dataset = Scaled([form(f"{number}.jpg") for number in range(20_000)])
    other = Scaled([form(f"{number}.jpg") for number in range(19_999)] + [form("other.jpg")])
    stat = os.stat

    def look(path: Any, **options: Any) -> os.stat_result:
        checked.append(path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", look)
    before = fingerprint(dataset)
    assert 500 < len(checked) < 2000
    assert fingerprint(other) != before


def test_strings_that_only_look_like_paths_are_harmless(tmp_path: Path) -> None:
    names = ["a\x00.b", "x" * 5000 + ".", "./", str(tmp_path), "\udcff.txt", "http://host/a.b"]
    assert fingerprint(names) == fingerprint(list(names))


@pytest.mark.parametrize("length", [1, 2000])
def test_reference_cycles(length: int) -> None:
    one, other = list[Any](range(length)), list[Any](range(1, length + 1))
    one.append(one)
    other.append(other)
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("count", [2, 2000])
def test_whether_equal_strings_are_one_object_does_not_matter(count: int) -> None:
    parts = "".join(["sam", "ple"])
    assert fingerprint([parts] * count) == fingerprint(["".join(["sam", "ple"]) for _ in range(count)])


PROGRAM = """
from feedline.datasets.derived.cache.fingerprint import fingerprint

class Dataset:
    words = {"k", "l", "mouse"}
    sizes = {"a": [1, 2], "b": (3, object())}
    def __init__(self):
        self.samples = [(f"{number}.jpg", number) for number in range(5000)]
        self.names = {"x", "y", "zebra"}
    def __getitem__(self, index):
        return index in {"p", "q", "r"}

print(fingerprint(Dataset(), "v1").hex())
"""


@pytest.mark.slow
def test_another_run_computes_the_same_fingerprint() -> None:
    """It does not depend on string hashes, which decide the order of sets."""
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
