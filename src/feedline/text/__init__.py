"""Tokens for language models: files of them, datasets of blocks, and turning texts into tokens."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedline.pipes.tokenizing import tokenize
    from feedline.text import packing
    from feedline.text.documents import TokenDocuments
    from feedline.text.token_dataset import TokenDataset
    from feedline.text.token_file import TokenFile, verify
    from feedline.text.writing import TokenWriter
    from feedline.tools.write.tokens import write_tokens

__all__ = [
    "TokenDataset",
    "TokenDocuments",
    "TokenFile",
    "TokenWriter",
    "packing",
    "tokenize",
    "verify",
    "write_tokens",
]

_PLACES = {
    "TokenDataset": "feedline.text.token_dataset",
    "TokenDocuments": "feedline.text.documents",
    "TokenFile": "feedline.text.token_file",
    "TokenWriter": "feedline.text.writing",
    "packing": "feedline.text.packing",
    "tokenize": "feedline.pipes.tokenizing",
    "verify": "feedline.text.token_file",
    "write_tokens": "feedline.tools.write.tokens",
}
"""The module that defines each name; imported on first use."""


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "packing":
        return importlib.import_module("feedline.text.packing")
    value = getattr(importlib.import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
