"""The only way an optional package gets imported."""

from __future__ import annotations

import importlib
import sys
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
