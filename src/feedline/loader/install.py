"""Replace torch's and torchdata's loaders with feedline's, for a whole program."""

from __future__ import annotations

import contextlib
import importlib
import sys
from abc import ABC  # a class may derive from both a loader and an ABC, as with torch's
from typing import Any

import torch.utils.data

from feedline.frameworks.substitution import substitute
from feedline.loader import torch as drop_in
from feedline.loader.torch import B_co, S_co

_TORCH: Any = torch.utils.data.DataLoader  # bound now: later the name may refer to our class

_replaced: dict[type, tuple[type, ...]] = {}
"""For each replacement, the class that it replaces, then others whose loaders count as its own.

Entries stay after `uninstall`: other code may have kept a replacement.
"""

_installed: list[type] = []
"""The replacements that are active now."""


class DataLoader(drop_in.DataLoader[S_co, B_co], ABC):
    """The class that `torch.utils.data.DataLoader` refers to after `install()`.

    For `isinstance` and `issubclass`, torch's own loaders and the classes derived from them belong to it, too.
    """

    __init__ = drop_in.DataLoader.__init__  # here, too: Lightning wraps constructors that are a class's own

    def __init_subclass__(cls, **options: object) -> None:
        # The drop-in's would add feedline's options to the constructor: here, frameworks find them in the one above.
        super(drop_in.DataLoader, cls).__init_subclass__(**options)

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        return issubclass(subclass, _replaced.get(cls, ())) or NotImplemented


class StatefulDataLoader(DataLoader[S_co, B_co]):
    """The class that `torchdata.stateful_dataloader.StatefulDataLoader` refers to after `install()`.

    All of feedline's loaders belong to it, since all of them have a state.
    """


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
        return f"Installed({', '.join(kind.__name__ for kind in _installed)})"


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
        _substitute(DataLoader, _TORCH)
        if torchdata is not None:
            _substitute(StatefulDataLoader, torchdata.StatefulDataLoader, drop_in.DataLoader)
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
        substitute(stand_in, _replaced[stand_in][0])


def _substitute(stand_in: type, original: type, *others: type) -> None:
    _replaced[stand_in] = original, *others
    _installed.append(stand_in)
    substitute(original, stand_in)
