"""What is said of an object that cannot be pickled, and what to do about it."""

from __future__ import annotations

import functools
import math
import queue
import re
import sqlite3
import sys
import threading
import weakref
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.engines.unpicklable import objects
from tests.engines.unpicklable.objects import (
    Holding,
    Opaque,
    Raising,
    Record,
    decorated,
    explained,
    local_class,
    local_function,
    numbers,
    path_in,
    spec_of,
)

HERE = re.escape(__file__)
THERE = re.escape(str(objects.__file__))


@pytest.mark.parametrize(
    ("kept", "what", "advice"),
    [
        (lambda: 1, rf"a lambda, defined at {HERE}:\d+\.", "at the top level.*functools.partial"),
        (local_function(), rf"local_function.<locals>.inside, defined at {THERE}:\d+", "top level"),
        (vars(decorated)["__wrapped__"], "does not lead to it", "decorator"),
        (functools.cache(local_function()), "the function local_function.<locals>.inside", "top level of a module"),
        (
            local_class(),
            rf"the class .*<locals>.Inside, .* inside a function at {THERE}:\d+",
            "top level",
        ),
        (local_class()(), "an object of the class .*<locals>.Inside", "Define the class at the top level"),
        (threading.Lock(), "threading.Lock", "first used.*__getstate__"),
        (threading.RLock(), "threading.RLock", "first used.*__getstate__"),
        (threading.Event(), "threading.Event", "first used.*__getstate__"),
        (queue.Queue(), "queue.Queue", "first used.*__getstate__"),
        (numbers(), "a generator, made by numbers", "__iter__"),
        (math, "the module math", "Import it where it is used"),
        (weakref.ref(spec_of), "a weak reference", "Keep the object itself"),
        (weakref.WeakValueDictionary(), "a weak reference", "Keep the object itself"),
        ({}.keys(), "a view of a dictionary", "list"),
        (torch.ones(2, requires_grad=True) * 2, "part of a computation", r"detach\(\)"),
        (Raising(), "a __getstate__ of its own, which fails", "ValueError: not today.*correct __getstate__"),
        (type("Unlisted", (), {})(), "the class .*Unlisted, and that name", "notebook.*put the class into"),
        (memoryview(b"x"), "of type memoryview, which pickle does not know", "__getstate__.*__reduce__"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_message_says_what_it_is_and_what_to_do(kept: Any, what: str, advice: str) -> None:
    if "view" in what and "multiprocessing.managers" in sys.modules:
        pytest.skip("multiprocessing.managers was imported, which lets views be pickled")
    message = explained(spec_of(Holding(kept=kept)))
    assert path_in(message) == "dataset.kept"
    assert re.search(f"it is .*{what}.*spawn or forkserver .*{advice}", message), message
    assert 'multiprocessing_context="fork"' in message
    assert 'engine="thread"' in message


def test_open_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"data")
    with open(tmp_path / "x.bin", "rb") as file, zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for kept in (file, archive):
            message = explained(spec_of(Holding(kept=kept)))
            assert path_in(message) == "dataset.kept"
            assert "it is an open file" in message
            assert "Keep the path" in message
            assert "open it in __getitem__" in message
        assert repr(str(tmp_path / "x.bin")) in explained(spec_of(Holding(kept=file)))


def test_a_class_that_was_defined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Record(1)
    monkeypatch.setattr(objects, "Record", type("Record", (), {}))
    message = explained(spec_of(dataset))
    assert path_in(message) == "dataset"
    assert "run again" in message


def test_database_handles_are_opened_by_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = ModuleType("h5py")
    vars(h5py)["File"] = Opaque
    monkeypatch.setitem(sys.modules, "h5py", h5py)
    connection = sqlite3.connect(":memory:")
    try:
        for kept, name in (
            (connection, "sqlite3.Connection"),
            (connection.cursor(), "sqlite3.Cursor"),
            (Opaque(), "h5py.File"),
        ):
            message = explained(spec_of(Holding(kept=kept)))
            assert path_in(message) == "dataset.kept"
            assert f"of type {name}" in message
            assert "open it in __getitem__" in message
            assert "does not survive a fork" in message
    finally:
        connection.close()
