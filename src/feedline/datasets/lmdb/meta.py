"""What `feedline pack` says of the samples in a database it wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.datasets.pictures import EXTENSIONS
from feedline.errors import CorruptSource

META_KEY = b"__feedline__"
_VERSION = 1


def numbered_key(number: int) -> bytes:
    """Return the key of a sample."""
    return b"%012d" % number


@dataclass(frozen=True)
class Meta:
    """What is in a database."""

    count: int
    fields: tuple[str, ...]
    texts: dict[str, str]
    """What each field is, for people."""
    pictures: frozenset[str]
    """Fields that are the files of pictures."""

    @classmethod
    def read(cls, content: bytes, path: str) -> Meta:
        """Return what is stored under `META_KEY`.

        Raises:
            CorruptSource: it is damaged, or of a later version.
        """
        try:
            # Any: what JSON holds.
            stored: dict[str, Any] = json.loads(content)
            if stored["encoding"] != "record" or stored["feedline"] > _VERSION:
                raise CorruptSource(
                    f"{path} was written by a later version of feedline, with samples as {stored['encoding']!r}. "
                    "Install that version to read it."
                )
            texts = {field["name"]: _text(field) for field in stored["fields"]}
            pictures = frozenset(field["name"] for field in stored["fields"] if field.get("extension") in EXTENSIONS)
            return cls(int(stored["count"]), tuple(texts), texts, pictures)
        except (ValueError, KeyError, TypeError) as exc:
            raise CorruptSource(f"What {path} says of its samples, under {META_KEY!r}, is damaged: {exc!r}.") from exc


def _text(field: dict[str, Any]) -> str:
    if not field.get("dtype"):
        return str(field.get("kind", "value"))
    shape = ", ".join("?" if length < 0 else str(length) for length in field.get("shape", ()))
    return f"{np.dtype(field['dtype'])}[{shape}]"
