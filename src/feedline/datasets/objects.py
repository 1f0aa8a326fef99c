"""Datasets in Python that users name as `module:object`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from feedline.errors import BadOption
from feedline.failures import words


# Any: a dataset of any class.
def open_object(source: str) -> Any:
    """Return the dataset that `module:object` names: an object, or what a class or function returns that is called.

    Modules in the current folder are found. Raises BadOption: there is none, or making it failed.
    """
    module_name, _, attribute = source.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))) or (
        module_name.endswith(".py")
    ):
        raise BadOption(
            f"{source!r} is neither the path of something that is there nor module:object. A dataset in Python is "
            "named like package.module:name, without .py, in the folder of the package."
        )
    found: Any = _imported(module_name, source)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise BadOption(f"The module {module_name!r} has no {attribute!r}, which {source!r} asks for.")
        found = getattr(found, name)
    if isinstance(found, type) or (callable(found) and not _is_dataset(found)):
        found = _called(found, source)
    if not _is_dataset(found) or isinstance(found, (str, bytes, ModuleType)):
        raise BadOption(
            f"{source} is {_said(found)}, which is no dataset: a dataset has __getitem__ and __len__, or __iter__. "
            "Name one, a class of one that needs no arguments, or a function that returns one."
        )
    return found


def _imported(module_name: str, source: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: the module of a user lies where the command is run
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            raise BadOption(
                f"{source!r} is neither a path nor module:object: there is no file of that name, and no module "
                f"{module_name!r} in {here} or among the installed packages."
            ) from exc
        raise BadOption(_failed(f"Importing the module {module_name!r}", exc)) from exc
    except (Exception, SystemExit) as exc:  # whatever the code of a user raises; some modules are scripts, and leave
        raise BadOption(_failed(f"Importing the module {module_name!r}", exc)) from exc


def _called(function: Callable[..., Any], source: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as exc:
        name = source.rpartition(":")[2]
        raise BadOption(
            f"{source} cannot be called without arguments: {words(exc)}. Write a function without parameters that "
            f"returns the dataset, `def make(): return {name}(...)`, and name that one."
        ) from exc
    except ValueError:
        pass  # of some builtins there is no signature to ask: calling tells
    try:
        return function()
    except (Exception, SystemExit) as exc:
        raise BadOption(_failed(f"Calling {source}", exc)) from exc


def _failed(what: str, error: BaseException) -> str:
    """Say what an exception of a user's code was, and where."""
    text = str(error).strip() or "no message"
    if isinstance(error, SyntaxError) and error.filename:
        place, text = f" ({error.filename}, line {error.lineno})", error.msg
    else:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if not _is_ours(one.filename)]
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{what} failed: {type(error).__name__}: {text.rstrip('.')}{place}. Correct that, and run again."


def _is_ours(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen") or file == importlib.__file__


def _is_dataset(value: Any) -> bool:
    return hasattr(type(value), "__getitem__") or hasattr(type(value), "__iter__")


def _said(value: Any) -> str:
    return "None" if value is None else f"{value!r:.60}, of type {type(value).__name__}"
