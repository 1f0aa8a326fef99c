"""The only way to import an optional package, and how feedline learns that the program has imported one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from feedline.errors import MissingExtra


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or say which extra brings it.

    Raises:
        MissingExtra: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != module.partition(".")[0]:
            raise  # installed but broken: its own error says more than ours would
        raise MissingExtra(module=module, extra=extra, purpose=purpose) from exc


def is_tensor(value: Any) -> bool:
    """True for torch tensors. torch is not imported to find out: without it nobody can have made one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def when_imported(module: str, act: Callable[[ModuleType], None]) -> None:
    """Call `act` with a module as soon as it has been imported, by anybody: now if it is there already.

    `act` runs before whoever imports the module sees it.
    """
    if sys.modules.get(module) is not None:  # None forbids to import it
        act(importlib.import_module(module))  # which waits for another thread that is still at it
    else:
        sys.meta_path.insert(0, _Watch(module, act))


class _Watch(MetaPathFinder):
    """Finds a module as Python's other finders do, and has something done after it.

    It stays where it is: whoever removed it while another thread goes through the finders would hide one from it.
    """

    def __init__(self, module: str, act: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        # Those after this one only: two watches that ask all others would ask each other for ever.
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenAct(spec.loader, self._act)
        return spec


class _ThenAct(Loader):
    """Loads a module as another loader does, and has something done after it.

    It stands before that loader instead of changing it: one loader may serve many modules, or be a proxy.
    """

    # Any: a loader of whatever make.
    def __init__(self, loader: Any, act: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act(module)
