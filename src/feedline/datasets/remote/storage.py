"""Opens addresses of any kind."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from feedline._optional import require
from feedline.datasets.remote.blob import Blob, LocalBlob, Patience, Transient, read_range
from feedline.errors import BadOption, MissingExtra, SourceChanged, SourceError
from feedline.failures import words
from feedline.values.shown import shown_url, without_secrets

if TYPE_CHECKING:
    from feedline.datasets.remote.http import Connections

_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, ValueError, TypeError)
_PLAIN = ("endpoint_url", "region_name")
"""Options that help to see what is wrong, and say nothing of who asks."""

_SHORTEST = 4
"""Characters of a value that is hidden: shorter ones are words of other texts."""


class StoreBlob(Blob):
    """An object of a store that fsspec knows: s3, gs and others.

    fsspec, not obstore: a process that was forked after its parent had used obstore hangs in its first request (0.12,
    its threads stay behind), and loaders fork. fsspec begins anew in the child, provided that the file system object is
    a new one too, which `Storage` sees to.
    """

    def __init__(self, address: str, system: Any, patience: Patience) -> None:
        self.name = shown_url(address)
        self.address = address
        self._system = system
        self._path = system._strip_protocol(address)
        self._patience = patience
        self.size, self.tag = self._ask()

    def _ask(self) -> tuple[int, str]:
        found: dict[str, Any] = {}

        def ask(_start: int, _stop: int) -> Iterator[bytes]:
            with _told_as(self.address, self._system):
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
        with _told_as(self.address, self._system):
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


_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}


def protocol_of(address: str) -> str:
    """Return the protocol of an address; empty for the path of a local file."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", address)
    protocol = found[1].lower() if found else ""
    return "" if protocol == "file" else protocol


def local_path(address: str) -> str:
    """Return the path of an address without protocol, or with file://."""
    return re.sub(r"^file://", "", address, count=1, flags=re.IGNORECASE)


class Storage:
    """What one process has open of its stores; threads may share it."""

    def __init__(
        self,
        patience: Patience | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        unsafe_redirects: bool = False,
    ) -> None:
        self._patience = patience or Patience()
        self._unsafe_redirects = unsafe_redirects
        self._options = dict(options or {})
        self._pid = os.getpid()
        self._connections: Connections | None = None
        self._systems: dict[str, Any] = {}
        self._lock = threading.Lock()

    def open(self, address: str) -> Blob:
        """Open a path, or an address that begins with http://, https://, or a protocol that fsspec knows.

        Raises SourceError: there is no such thing, or it cannot be reached; MissingExtra: a package is needed that is
        not installed.
        """
        protocol = protocol_of(address)
        if not protocol:
            return LocalBlob(local_path(address))
        if protocol in ("http", "https"):
            return self._open_http(address)
        return StoreBlob(address, self._system(protocol), self._patience)

    def _open_http(self, address: str) -> Blob:
        # Imported here, since it brings ssl and much else that nobody needs who reads local files: 30 ms.
        from feedline.datasets.remote.http import Connections, HttpBlob

        with self._lock:
            if self._connections is None:
                self._connections = Connections(self._patience.timeout_s)
        return HttpBlob(address, self._connections, self._patience, unsafe_redirects=self._unsafe_redirects)

    def _system(self, protocol: str) -> Any:
        with self._lock:
            if protocol not in self._systems:
                self._systems[protocol] = make_system(protocol, self._options)
            return self._systems[protocol]

    def close(self) -> None:
        """Close all connections. May be called twice, and used again."""
        with self._lock:
            systems, self._systems = self._systems, {}
            connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()
        for system in systems.values():
            close_system(system)

    def __del__(self) -> None:
        # What a forked process inherited is not its own to close: the thread behind it stayed with the parent.
        if self.__dict__.get("_pid") == os.getpid():
            self.close()


def make_system(protocol: str, options: Mapping[str, Any]) -> Any:
    """Return a new file system of fsspec's. Any: fsspec has no types."""
    extra = _EXTRAS.get(protocol, "s3")
    purpose = f"reading {protocol}://"
    fsspec = require("fsspec", extra=extra, purpose=purpose)
    try:
        if extra == "gs":
            # Not what newer versions of gcsfs have by this name: that asks by gRPC what kind of bucket it is, which
            # gives up after a minute where only http gets through, and is not made for processes that fork (not tried).
            require("gcsfs", extra="gs", purpose=purpose)
            kind = require("gcsfs.core", extra="gs", purpose=purpose).GCSFileSystem
        else:
            kind = fsspec.get_filesystem_class(protocol)
    except ImportError as exc:
        if isinstance(exc, MissingExtra):
            raise
        raise MissingExtra(
            module=exc.name or {"s3": "s3fs"}.get(extra, protocol), extra=extra, purpose=purpose
        ) from exc
    except ValueError as exc:
        raise BadOption(f"Addresses that begin with {protocol}:// are unknown: {words(exc)}.") from exc
    try:
        # A new one in every process: one that was made before a fork does not work after it.
        system = kind(skip_instance_cache=True, **options)
    except Exception as exc:  # of any kind: each has checks of its own
        why = without_values(words(exc), options)
        raise BadOption(
            f"The storage_options do not fit {protocol}://, of which {sorted(map(str, options))} were given: {why}."
        ) from (exc if why == words(exc) else None)
    if "retries" not in options and hasattr(system, "retries"):
        system.retries = 1  # of s3fs: trying again is done here, and patience should not be multiplied
    return system
