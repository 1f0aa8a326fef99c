"""Objects of a store that fsspec knows: s3, gs and others.

fsspec, not obstore: a process that was forked after its parent had used obstore hangs in its first request (0.12, its
threads stay behind), and loaders fork. fsspec begins anew in the child, provided that the file system object is a new
one too, which `Storage` sees to.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from feedline.datasets.remote.blob import Blob
from feedline.datasets.remote.patience import Patience, Transient, read_range
from feedline.errors import SourceChanged, SourceError
from feedline.values.shown import shown_url, without_secrets

_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, ValueError, TypeError)
_PLAIN = ("endpoint_url", "region_name")
"""Options that help to see what is wrong, and say nothing of who asks."""

_SHORTEST = 4
"""Characters of a value that is hidden: shorter ones are words of other texts."""


class StoreBlob(Blob):
    """An object of a store.

    Args:
        address: with its protocol, as `s3://bucket/name`.
        system: fsspec's file system for it. Any: fsspec has no types.
        patience: how often to try.

    Raises:
        SourceError: there is no such object, or the store does not let one have it.
    """

    def __init__(self, address: str, system: Any, patience: Patience) -> None:
        self.name = shown_url(address)
        self._address = address
        self._system = system
        self._path = system._strip_protocol(address)
        self._patience = patience
        self.size, self.tag = self._ask()

    @property
    def address(self) -> str:
        return self._address

    def _ask(self) -> tuple[int, str]:
        found: dict[str, Any] = {}

        def ask(_start: int, _stop: int) -> Iterator[bytes]:
            with _told_as(self._address, self._system):
                self._system.invalidate_cache()
                found.update(self._system.info(self._path))
            yield b" "

        read_range(ask, 0, 1, name=self.name, patience=self._patience)
        if found.get("type") == "directory" or found.get("size") is None:
            raise SourceError(f"{self.name} is not an object that can be read.")
        tag = next((found[key] for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime") if found.get(key)), "")
        return int(found["size"]), str(tag)

    def read(self, start: int, stop: int) -> bytes:
        return read_range(self._get, start, stop, name=self.name, patience=self._patience)

    def _get(self, start: int, stop: int) -> Iterator[bytes]:
        with _told_as(self._address, self._system):
            yield self._system.cat_file(self._path, start=start, end=stop)

    def check(self) -> None:
        size, tag = self._ask()
        if (size, tag) != (self.size, self.tag):
            raise SourceChanged(f"{self.name} was changed while it was read.")

    def close(self) -> None:
        """Nothing: the connections belong to the file system."""


# Any: fsspec has no types.
@contextmanager
def _told_as(address: str, system: Any) -> Iterator[None]:
    """Turn exceptions of fsspec and what is below it into those of feedline."""
    try:
        yield
    except Exception as exc:
        name, said = shown_url(address), f"{type(exc).__name__}: {exc}"
        text = without_secrets(without_values(said, getattr(system, "storage_options", {})), address)
        cause = exc if text == said else None
        if isinstance(exc, FileNotFoundError):
            raise SourceError(f"{name}: there is no such object ({text}).") from cause
        if isinstance(exc, _FINAL) or "Credentials" in type(exc).__name__:
            raise SourceError(f"{name} cannot be read: {text.rstrip('.')}.") from cause
        raise Transient(text) from cause


def close_system(system: Any) -> None:
    """Close the connections of a file system."""
    session = getattr(system, "_s3", None) or getattr(system, "_session", None)
    loop = getattr(system, "loop", None)
    if session is None or loop is None or not loop.is_running():
        return
    ending = session.__aexit__(None, None, None) if hasattr(session, "__aexit__") else session.close()
    asyncio = sys.modules["asyncio"]  # fsspec has imported it
    asyncio.run_coroutine_threadsafe(_awaited(ending), loop).result(10)
    for name in ("_s3", "_s3creator", "_session"):
        if hasattr(system, name):
            setattr(system, name, None)


async def _awaited(ending: Any) -> None:
    await ending


# Any: options are those of fsspec's file systems, and may be secret.
def without_values(text: str, options: Mapping[Any, Any]) -> str:
    """Return a text without the values of options.

    Example:
        >>> without_values("The key AKIA1234 is unknown", {"key": "AKIA1234", "anon": False})
        'The key *** is unknown'
    """
    for value in sorted(set(_texts(options)), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name not in _PLAIN or "@" in str(part):
                yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, bytes):
        yield from _texts(value.decode("utf-8", "replace"))
    elif isinstance(value, str) and len(value) >= _SHORTEST:
        yield value
