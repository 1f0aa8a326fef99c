"""Replace a function or class of a library in every module that refers to it."""

from __future__ import annotations

import sys
from types import ModuleType


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
