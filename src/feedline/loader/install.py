"""Replace torch's and torchdata's loaders with feedline's, for a whole program."""

from __future__ import annotations

import contextlib
import importlib
import sys
from abc import ABCMeta
from typing import Any

import torch.utils.data

from feedline.frameworks.substitution import substitute
from feedline.loader.run.torch_types import B_co, S_co
from feedline.loader.torch import DataLoader

_TORCH: Any = torch.utils.data.DataLoader  # bound now: later the name may refer to our class

_originals: dict[type, type] = {}
"""The original class of each replacement. Entries stay after `uninstall`: other code may have kept a replacement."""

_installed: list[type] = []
"""The replacements that are active now."""


class _StandIn(ABCMeta):  # ABCMeta, so that a class may still derive from both a loader and an ABC
    """Makes `isinstance` and `issubclass` give the same results as for the class that is replaced."""

    def __instancecheck__(cls, instance: object) -> bool:
        original = _originals.get(cls)
        return super().__instancecheck__(instance) if original is None else isinstance(instance, original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        original = _originals.get(cls)
        return super().__subclasscheck__(subclass) if original is None else issubclass(subclass, original)


class InstalledDataLoader(DataLoader[S_co, B_co], metaclass=_StandIn):
    """The class that `torch.utils.data.DataLoader` refers to after `install()`."""


class InstalledStatefulDataLoader(DataLoader[S_co, B_co], metaclass=_StandIn):
    """The class that `torchdata.stateful_dataloader.StatefulDataLoader` refers to after `install()`."""


class Installed:
    """The result of `install()`. As a context manager it uninstalls at the end unless `install()` was called before."""

    def __init__(self, *, is_first: bool) -> None:
        self._is_first = is_first

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_first:
            uninstall()

    def __repr__(self) -> str:
        return f"Installed({', '.join(_originals[kind].__name__ for kind in _installed)})"


def install() -> Installed:
    """Replace torch's and torchdata's loaders with `feedline.DataLoader`, everywhere in this program.

    Afterwards `torch.utils.data.DataLoader` is feedline's, and so is every name that a module has imported with
    `from torch.utils.data import DataLoader`; the same holds for torchdata's `StatefulDataLoader`. So libraries that
    build loaders themselves build feedline's. Existing loaders stay as they are, and `isinstance` gives the same
    answers as before for all of them. Classes already derived from torch's loader stay torch's: call this early.

    Worker processes and other ranks are separate programs. Call it in each rank; workers need no loader.

    Returns:
        A context manager, in case you want it only for a while: it calls `uninstall` at the end.

    Example:
        >>> import torch.utils.data
        >>> import feedline
        >>> with feedline.install():
        ...     loader = torch.utils.data.DataLoader(range(4), batch_size=2, on_error="skip")
        >>> isinstance(loader, feedline.DataLoader), isinstance(loader, torch.utils.data.DataLoader)
        (True, True)
    """
    is_first = not _installed
    if is_first:
        # If torchdata were imported later, it would derive its own loader from ours.
        with contextlib.suppress(ImportError):  # it is not installed, or broken
            importlib.import_module("torchdata.stateful_dataloader")
        torchdata: Any = sys.modules.get("torchdata.stateful_dataloader")
        _substitute(_TORCH, InstalledDataLoader)
        if torchdata is not None:
            _substitute(torchdata.StatefulDataLoader, InstalledStatefulDataLoader)
    return Installed(is_first=is_first)


def uninstall() -> None:
    """Undo `install`. Loaders made in the meantime stay feedline's, and keep working.

    Example:
        >>> import torch.utils.data
        >>> import feedline
        >>> torch_loader = torch.utils.data.DataLoader
        >>> installed = feedline.install()
        >>> feedline.uninstall()
        >>> torch.utils.data.DataLoader is torch_loader
        True
    """
    while _installed:
        stand_in = _installed.pop()
        substitute(stand_in, _originals[stand_in])


def _substitute(original: type, stand_in: type) -> None:
    _originals[stand_in] = original
    _installed.append(stand_in)
    substitute(original, stand_in)
