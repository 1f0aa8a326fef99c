"""The only way to import an optional package, and how feedline learns that the program has imported one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, TypeGuard

from feedline.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or raise an error that names the extra to install.

    Raises:
        MissingExtra: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != module.partition(".")[0]:
            raise  # installed but broken: its own error says more than ours would
        raise MissingExtra(module=module, extra=extra, purpose=purpose) from exc


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """True for torch tensors. Does not import torch: without it there can be no tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def when_imported(module: str, act: Callable[[ModuleType], None]) -> None:
    """Call `act` with a module as soon as any code has imported it: now if it is imported already.

    `act` runs before the importing code sees the module.
    """
    if sys.modules.get(module) is not None:  # None forbids its import
        act(importlib.import_module(module))  # waits for another thread that is still importing it
    else:
        sys.meta_path.insert(0, _Watch(module, act))


class _Watch(MetaPathFinder):
    """Finds a module as Python's other finders do, and arranges a call after its import.

    It is never removed: if it were, another thread that iterates over the finders would skip one.
    """

    def __init__(self, module: str, act: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        # Only those after this one: two watches that query all others would query each other forever.
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenAct(spec.loader, self._act)
        return spec


class _ThenAct(Loader):
    """Loads a module as another loader does, and calls a function afterwards.

    It wraps that loader instead of changing it: one loader may serve many modules, or be a proxy.
    """

    def __init__(self, loader: Loader, act: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._act = act

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act(module)
