"""Finds a tokenizer by name, for the command line and `write_tokens`."""

from __future__ import annotations

import os

from feedline.datasets.derived.objects import open_named
from feedline.errors import BadOption, SourceError
from feedline.system.failures import words
from feedline.system.optional import require

_FILE = "tokenizer.json"


def open_tokenizer(name: str) -> object:
    """Return the tokenizer that a name stands for.

    The name is the path of a `tokenizer.json`, or of a folder with one, as Hugging Face's libraries write it;
    `module:object` or `path/to/file.py:object`, for a tokenizer or a function from a text to token ids; or
    the name of a tokenizer on the Hugging Face Hub.

    Raises:
        BadOption: there is no such tokenizer.
        SourceError: the file cannot be read.
        MissingExtra: the package `tokenizers` is not installed.
    """
    path = os.path.join(name, _FILE) if os.path.isdir(name) else name
    if os.path.isfile(path):
        return _from_file(path)
    if name.endswith(".json") or os.path.isdir(name):
        raise SourceError(f"There is no file {path}, which should contain the tokenizer.")
    if ":" in name:
        found = open_named(name)
        if not callable(found) and not hasattr(found, "encode_batch"):
            raise BadOption(
                f"{name} is {found!r:.60}, which is not a tokenizer: name a function from a text to token ids, or an "
                "object with encode_batch."
            )
        return found
    package = require("tokenizers", extra="text", purpose=f"The tokenizer {name!r}")
    try:
        return package.Tokenizer.from_pretrained(name)
    except Exception as exc:  # that package raises Exception itself
        raise BadOption(
            f"{name!r} is neither a file, nor a folder with {_FILE}, nor module:object, and no tokenizer of that name "
            f"could be loaded from the Hugging Face Hub: {words(exc)}."
        ) from exc


def _from_file(path: str) -> object:
    package = require("tokenizers", extra="text", purpose=f"The tokenizer in {path}")
    try:
        return package.Tokenizer.from_file(path)
    except Exception as exc:  # that package raises Exception itself
        raise SourceError(
            f"{path} is not a tokenizer in the format of Hugging Face's libraries: {words(exc)}."
        ) from exc
