"""Opens addresses of any kind."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from feedline._optional import require
from feedline.datasets.remote.blob import Blob
from feedline.datasets.remote.local import LocalBlob
from feedline.datasets.remote.patience import Patience
from feedline.datasets.remote.store import StoreBlob, close_system, without_values
from feedline.errors import BadOption, MissingExtra
from feedline.failures import words

if TYPE_CHECKING:
    from feedline.datasets.remote.http import Connections

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}


def protocol_of(address: str) -> str:
    """Return the protocol of an address; empty for the path of a local file.

    Example:
        >>> protocol_of("s3://bucket/a.tar"), protocol_of("/data/a.tar"), protocol_of("file:///data/a.tar")
        ('s3', '', '')
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", address)
    protocol = found[1].lower() if found else ""
    return "" if protocol == "file" else protocol


def local_path(address: str) -> str:
    """Return the path of an address without protocol, or with file://."""
    return re.sub(r"^file://", "", address, count=1, flags=re.IGNORECASE)


class Storage:
    """What one process has open of its stores; threads may share it.

    Args:
        patience: how often to try when a connection drops.
        options: for fsspec's file systems, such as `endpoint_url` and `anon` of s3. Any: their own affair.
        unsafe_redirects: True to follow from https to http, and from public addresses to private ones.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(b"hello")
        ...     file.flush()
        ...     storage = Storage()
        ...     blob = storage.open(file.name)
        ...     blob.size, blob.read(1, 3)
        (5, b'el')
        >>> blob.close(); storage.close()
    """

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

        Raises:
            SourceError: there is no such thing, or it cannot be reached.
            MissingExtra: a package is needed that is not installed.
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
    """Return a new file system of fsspec's. Any: fsspec has no types.

    Raises:
        MissingExtra: a package is missing.
        BadOption: fsspec does not know the protocol or the options.
    """
    extra = _EXTRAS.get(protocol, "s3")
    purpose = f"reading {protocol}://"
    fsspec = require("fsspec", extra=extra, purpose=purpose)
    kind = _gs_system(purpose) if extra == "gs" else _kind_of(fsspec, protocol, extra, purpose)
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


def _kind_of(fsspec: Any, protocol: str, extra: str, purpose: str) -> Any:
    try:
        return fsspec.get_filesystem_class(protocol)
    except ImportError as exc:
        module = exc.name or {"s3": "s3fs"}.get(extra, protocol)
        raise MissingExtra(module=module, extra=extra, purpose=purpose) from exc
    except ValueError as exc:
        raise BadOption(f"Addresses that begin with {protocol}:// are unknown: {words(exc)}.") from exc


def _gs_system(purpose: str) -> Any:
    """Return gcsfs's file system, but not what newer versions have by this name.

    That asks by gRPC what kind of bucket it is, which gives up after a minute where only http gets through (as to the
    server of the tests), and is not made for processes that fork (which was not tried).
    """
    require("gcsfs", extra="gs", purpose=purpose)
    return require("gcsfs.core", extra="gs", purpose=purpose).GCSFileSystem
