"""Puts another function or class in the place of one of a library, whichever of us is imported first."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
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


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action` with a module: now if it is imported already, else as soon as it is, before anybody uses it."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
    _watch.actions.setdefault(name, []).append(action)


class _Watch(importlib.abc.MetaPathFinder):
    """Finds nothing itself; calls the actions when one of the modules was executed that another finder has found."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.actions:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                loader: Any = spec.loader  # a loader belongs to its spec, so it may be changed
                if hasattr(loader, "exec_module"):
                    loader.exec_module = self._then_act(fullname, loader.exec_module)
                return spec
        return None

    def _then_act(self, name: str, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in self.actions.pop(name, []):
                action(module)

        return exec_module


_watch = _Watch()
