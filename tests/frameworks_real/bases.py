"""Lets a library that is imported afterwards build its loaders on torch's class or on feedline's."""

from __future__ import annotations

import torch.utils.data
import torch.utils.data.dataloader

import feedline

NAMES = ("torch", "feedline")


def use_base(name: str) -> None:
    """Put one of the two in the place where libraries look for `DataLoader`."""
    kind = {"torch": torch.utils.data.DataLoader, "feedline": feedline.DataLoader}[name]
    for module in (torch.utils.data, torch.utils.data.dataloader):
        module.DataLoader = kind  # type: ignore[misc]
