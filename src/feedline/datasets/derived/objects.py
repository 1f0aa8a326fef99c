"""Python datasets that users name as `module:object` or `path/to/file.py:object`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from feedline.errors import BadOption, DatasetFailed

_PACKAGE = f"{Path(__file__).resolve().parents[2]}{os.sep}"


# Any: a dataset of any class.
def open_object(source: str) -> Any:
    """Return the dataset that `module:object` names: the object itself, or the result of calling a class or function.

    Modules in the current folder are found, and so are files, as `path/to/file.py:object`, and modules beside them.
    Raises BadOption: there is no such dataset; DatasetFailed: the user's module, class or function raised an exception.
    """
    found = open_named(source)
    if isinstance(found, type) or (callable(found) and not _is_dataset(found)):
        with _users_code(f"Calling {source}"):
            found = found()
    if not _is_dataset(found) or isinstance(found, (str, bytes, ModuleType)):
        raise BadOption(
            f"{source} is {found!r:.60}, of type {type(found).__name__}, which is not a dataset: a dataset has "
            "__getitem__ and __len__, or __iter__. Name one, or a class or function that returns one without arguments."
        )
    return found


def open_named(source: str) -> Any:
    """Return the object that `module:object` names, without calling it. Raises the same errors as `open_object`."""
    check_name(source)
    module_name, _, attribute = source.rpartition(":")
    found: object = _run_file(module_name) if module_name.endswith(".py") else _imported(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise BadOption(f"The module {module_name!r} has no {attribute!r}, which {source!r} names.")
        found = getattr(found, name)
    return found


def check_name(source: str) -> None:
    """Raise BadOption if a text is a path, or names an object in a file that does not exist; import nothing."""
    wanted = "Name a Python object as package.module:name, in the folder of the package, or as path/to/file.py:name."
    if os.path.exists(source):
        is_code = source.endswith(".py")
        inspect = f"`feedline inspect {source}` shows what samples are in it, and how to read them."
        advice = f"Add the name of one: {source}:dataset." if is_code else f"{wanted} {inspect}"
        raise BadOption(f"{source} is a file or folder, not an object in Python. {advice}")
    module_name, _, attribute = source.rpartition(":")
    is_file = module_name.endswith(".py")
    parts = [*([Path(module_name).stem] if is_file else module_name.split(".")), *attribute.split(".")]
    if not all(map(str.isidentifier, parts)):
        raise BadOption(f"There is no file or folder {source!r} in {os.getcwd()}, nor an object. {wanted}")
    if is_file and not os.path.isfile(module_name):
        raise BadOption(f"There is no file {module_name!r} in {os.getcwd()}, which {source!r} names.")


def _run_file(path: str) -> ModuleType:
    """Import a file under the name a script beside it would use, so that worker processes find it too."""
    file = Path(path).resolve()
    folder, name = str(file.parent), file.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # the file ends in .py
    assert spec.loader is not None
    before = sys.modules.get(name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _users_code(f"Importing {path}"):
            spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module


def _imported(module_name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # like `python -m`: users run the command where their module is
    try:
        with _users_code(f"Importing {module_name!r}"):
            return importlib.import_module(module_name)
    except DatasetFailed as exc:
        missing = exc.__cause__.name if isinstance(exc.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise
        raise BadOption(f"There is no file, and no module {module_name!r} in {here} or among the packages.") from exc


@contextlib.contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into an error that says where it was raised."""
    try:
        yield
    except (Exception, SystemExit) as exc:  # some modules are scripts and exit
        text = str(exc).strip() or "no message"
        frames = users_frames(exc)
        if isinstance(exc, SyntaxError) and exc.filename:
            place, text = f" ({exc.filename}, line {exc.lineno})", exc.msg
        else:
            place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise DatasetFailed(
            f"{what} failed: {type(exc).__name__}: {text.rstrip('.')}{place}. Fix that, then run again.",
            traceback=users_traceback(exc),
        ) from exc


def users_traceback(error: BaseException) -> str:
    """Return the traceback of an exception as Python prints it, starting at the user's code."""
    frames = users_frames(error)
    text = "".join(traceback.format_exception_only(type(error), error))
    return "Traceback (most recent call last):\n" + "".join(traceback.format_list(frames)) + text if frames else text


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an exception, starting at the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (_PACKAGE, "<frozen importlib", str(importlib.__file__))
    first = next((place for place, frame in enumerate(frames) if not frame.filename.startswith(ours)), len(frames))
    return frames[first:]


def _is_dataset(value: object) -> bool:
    return hasattr(type(value), "__getitem__") or hasattr(type(value), "__iter__")
