"""Python datasets that users name as `module:object` or `path/to/file.py:object`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from feedline.errors import BadOption, DatasetFailed
from feedline.system.failures import words

_PACKAGE = f"{Path(__file__).resolve().parents[1]}{os.sep}"


# Any: a dataset of any class.
def open_object(source: str) -> Any:
    """Return the dataset that `module:object` names: the object itself, or the result of calling a class or function.

    Modules in the current folder are found, and so are files, as `path/to/file.py:object`, and modules beside them.
    Raises BadOption: there is no such dataset; DatasetFailed: the user's module, class or function raised an exception.
    """
    found = open_named(source)
    if isinstance(found, type) or (callable(found) and not _is_dataset(found)):
        found = _called(found, source)
    if not _is_dataset(found) or isinstance(found, (str, bytes, ModuleType)):
        raise BadOption(
            f"{source} is {_describe(found)}, which is not a dataset: a dataset has __getitem__ and __len__, or "
            "__iter__. Name a dataset, a dataset class that needs no arguments, or a function that returns a dataset."
        )
    return found


def open_named(source: str) -> Any:
    """Return the object that `module:object` names, without calling it. Raises the same errors as `open_object`."""
    check_name(source)
    module_name, _, attribute = source.rpartition(":")
    file = Path(module_name) if module_name.endswith(".py") else None
    found: object = _imported(module_name, source) if file is None else _run_file(file)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise BadOption(f"The module {module_name!r} has no {attribute!r}, which {source!r} names.")
        found = getattr(found, name)
    return found


def check_name(source: str) -> None:
    """Raise BadOption if a text is a path, or names an object in a file that does not exist; import nothing."""
    module_name, _, attribute = source.rpartition(":")
    wanted = "Name a Python object as package.module:name, in the folder of the package, or as path/to/file.py:name."
    if os.path.exists(source):
        if source.endswith(".py") and os.path.isfile(source):
            raise BadOption(f"{source} is a file, and no object in it is named. Add the name of one: {source}:dataset.")
        what = "a folder" if os.path.isdir(source) else "a file"
        raise BadOption(
            f"{source} is {what}, not an object in Python. {wanted} `feedline inspect {source}` shows what samples are "
            "in it, and how to read them."
        )
    if ":" not in source:
        raise BadOption(f"There is no file or folder {source!r} in {os.getcwd()}. {wanted}")
    is_file = module_name.endswith(".py")
    parts = [*([Path(module_name).stem] if is_file else module_name.split(".")), *attribute.split(".")]
    if not all(map(str.isidentifier, parts)):
        raise BadOption(f"{source!r} is neither an existing path nor module:object. {wanted}")
    if is_file and not os.path.isfile(module_name):
        raise BadOption(f"There is no file {module_name!r} in {os.getcwd()}, which {source!r} names.")


def _run_file(file: Path) -> ModuleType:
    """Import a file under the name a script beside it would use, so that worker processes find it too."""
    folder, name = str(file.resolve().parent), file.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    assert spec is not None  # the file ends in .py
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        del sys.modules[name]
        raise _failed(f"Importing {file}", exc) from exc
    return module


def _imported(module_name: str, source: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # like `python -m`: users run the command where their module is
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            raise BadOption(
                f"{source!r} is neither a path nor module:object: there is no file of that name, and no module "
                f"{module_name!r} in {here} or among the installed packages."
            ) from exc
        raise _failed(f"Importing the module {module_name!r}", exc) from exc
    except (Exception, SystemExit) as exc:  # anything the user's code raises; some modules are scripts and exit
        raise _failed(f"Importing the module {module_name!r}", exc) from exc


def _called(function: Callable[..., object], source: str) -> object:
    try:
        inspect.signature(function).bind()
    except TypeError as exc:
        name = source.rpartition(":")[2]
        raise BadOption(
            f"{source} cannot be called without arguments: {words(exc)}. Write a function without parameters that "
            f"returns the dataset, `def make(): return {name}(...)`, and name that one."
        ) from exc
    except ValueError:
        pass  # some builtins have no signature: just call them
    try:
        return function()
    except (Exception, SystemExit) as exc:
        raise _failed(f"Calling {source}", exc) from exc


def _failed(what: str, error: BaseException) -> DatasetFailed:
    """Return an error that describes an exception in the user's code, and where it was raised."""
    text = str(error).strip() or "no message"
    frames = users_frames(error)
    if isinstance(error, SyntaxError) and error.filename:
        place, text = f" ({error.filename}, line {error.lineno})", error.msg
    else:
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return DatasetFailed(
        f"{what} failed: {type(error).__name__}: {text.rstrip('.')}{place}. Fix that, then run again.",
        traceback=users_traceback(error),
    )


def users_traceback(error: BaseException) -> str:
    """Return the traceback of an exception as Python prints it, starting at the user's code."""
    frames = users_frames(error)
    text = "".join(traceback.format_exception_only(type(error), error))
    return "Traceback (most recent call last):\n" + "".join(traceback.format_list(frames)) + text if frames else text


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an exception, starting at the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((place for place, frame in enumerate(frames) if not _is_ours(frame.filename)), len(frames))
    return frames[first:]


def _is_ours(file: str) -> bool:
    return file.startswith((_PACKAGE, "<frozen importlib")) or file == importlib.__file__


def _is_dataset(value: object) -> bool:
    return hasattr(type(value), "__getitem__") or hasattr(type(value), "__iter__")


def _describe(value: object) -> str:
    return "None" if value is None else f"{value!r:.60}, of type {type(value).__name__}"
