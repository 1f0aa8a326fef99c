"""Replace a function or class of a library in every module that has it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def substitute(old: object, new: object) -> None:
    """Let every module that has `old` under some name have `new` there. feedline's own modules are left alone.

    This reaches names that were imported with `from ... import ...`. It does not reach what is kept elsewhere: base
    classes, default arguments, attributes of objects.
    """
    modules: dict[str, Any] = dict(sys.modules)  # Any: programs put other things there, too
    for name, module in modules.items():
        if not isinstance(module, ModuleType) or name.partition(".")[0] == "feedline":
            continue
        names = vars(module)
        for key in [key for key, value in list(names.items()) if value is old]:
            names[key] = new
