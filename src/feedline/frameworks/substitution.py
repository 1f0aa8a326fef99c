"""Replace a function or class of a library in every module that refers to it, for example by a wrapped function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


# Any: functions and methods with any arguments.
def wrapped(function: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function or method that calls `ours` with `function` and its arguments."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return ours(function, *arguments, **options)

    return call


def substitute(old: object, new: object) -> None:
    """Replace `old` with `new` in every module that refers to it, except feedline's own.

    This includes names imported with `from ... import ...`, but not references kept elsewhere: base classes, default
    arguments, attributes of objects.
    """
    modules: dict[str, object] = dict(sys.modules)  # object: programs put other objects there, too
    for name, module in modules.items():
        if not isinstance(module, ModuleType) or name.partition(".")[0] == "feedline":
            continue
        names = vars(module)
        for key in [key for key, value in list(names.items()) if value is old]:
            names[key] = new
