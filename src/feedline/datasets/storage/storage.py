"""Open addresses of any kind."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

from feedline.datasets.framework.paths import natural
from feedline.datasets.storage.addresses import shown_url
from feedline.datasets.storage.blob import Blob, LocalBlob, RetryPolicy, Transient, Version, read_range, retried
from feedline.datasets.storage.cached_blob import CachedBlob
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.systems import FileSystems, system_call, system_class
from feedline.errors import BadOption, MissingExtra, SourceChanged, SourceError
from feedline.system.handle import ClosedWhenDeleted

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from feedline.datasets.storage.http import Connections

T = TypeVar("T")


class StoreBlob(Blob):
    """An object in a store that fsspec supports: s3, gs and others.

    It uses fsspec, not obstore: a process forked after its parent had used obstore hangs in its first request (0.12,
    its threads stay behind), and loaders fork. fsspec starts afresh in the child if the file system object is new too;
    `Storage` ensures that.
    """

    def __init__(
        self,
        address: str,
        systems: FileSystems,
        retry_policy: RetryPolicy,
        version: Version | None = None,
    ) -> None:
        self.name = shown_url(address)
        self.address = address
        self._systems = systems
        self._retry_policy = retry_policy
        self._protocol = protocol_of(address)
        self._pin = _PINS.get(self._protocol, "")
        if version is None or not (self._pin and version.tag):
            version = self._ask()
        self.size, self.tag = version

    def _ask(self) -> Version:
        # Any: as each store describes objects.
        def info(system: AbstractFileSystem) -> Mapping[str, Any]:
            system.invalidate_cache()
            found: Mapping[str, Any] = system.info(self.address)
            return found

        found = retried(partial(self._query, info), name=self.name, retry_policy=self._retry_policy)
        if found.get("type") == "directory" or found.get("size") is None:
            raise SourceError(
                f"{self.name} is not an object that can be read, but a folder. If all files in it are meant, and this "
                "source reads folders, end the address with /."
            )
        return version_of(found, self._protocol)

    def read(self, start: int, stop: int) -> bytes:
        return read_range(self._get, start, stop, name=self.name, retry_policy=self._retry_policy)

    def _get(self, start: int, stop: int) -> Iterator[bytes]:
        arrived: list[bytes] = []
        try:
            data = self._query(lambda system: self._cat(system, start, stop, arrived))
        except Transient:
            if arrived:
                yield b"".join(arrived)  # not requested again
            raise
        if len(data) > stop - start:
            raise SourceError(
                f"{self.name} cannot be read at byte {start}: the store sent {len(data)} bytes where {stop - start} "
                "were requested. It, or a proxy before it, ignores ranges."
            )
        yield data

    # Never returns bytes of another version: where the store supports it, each request names the version.
    def _cat(self, system: AbstractFileSystem, start: int, stop: int, arrived: list[bytes]) -> bytes:
        data: bytes
        path = system._strip_protocol(self.address)
        arrived.clear()
        if self._pin == "ETag" and self.tag:
            check = self._retry_policy.pace.check
            system_call(system, _get_if_match, path, self.tag, start, stop, arrived, check)
            data = arrived[0] if len(arrived) == 1 else b"".join(arrived)
        elif self._pin and self.tag:
            try:
                data = system.cat_file(path, start=start, end=stop, generation=self.tag)
            except FileNotFoundError:
                raise SourceChanged(f"{self.name} was changed or deleted after it was listed or opened.") from None
        else:
            # Otherwise Hugging Face's file system reads 5 MB ahead in every call, and drops them.
            options = {"cache_type": "none"} if self._protocol == "hf" else {}
            data = system.cat_file(path, start=start, end=stop, **options)
        return data

    def _query(self, act: Callable[[AbstractFileSystem], T]) -> T:
        return self._systems.query(self._protocol, self.address, act)

    def check(self) -> None:
        if not (self._pin and self.tag) and self._ask() != (self.size, self.tag):
            raise SourceChanged(f"{self.name} was changed while it was read.")

    def close(self) -> None:
        """Do nothing: the connections belong to the file system."""


_PINS = {"s3": "ETag", "s3a": "ETag", "gs": "generation", "gcs": "generation"}
"""The field that identifies an object's version, for stores that can serve a specific one."""


def names_versions(address: str) -> bool:
    """True if requests to a store name the version that they want, which its listings and its objects agree on."""
    return protocol_of(address) in _PINS


# Any: each store has fields of its own.
def version_of(found: Mapping[str, Any], protocol: str) -> Version:
    """Return the version of an object from a store's response."""
    pin = _PINS.get(protocol, "")
    keys = (pin,) if pin else ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "mtime")
    return Version(int(found["size"]), str(next((found[key] for key in keys if found.get(key)), "")))


_PIECE = 1 << 20
"""Bytes to wait for at a time."""


# Any: a file system of s3fs, which has further methods.
async def _get_if_match(
    system: Any,
    path: str,
    tag: str,
    start: int,
    stop: int,
    arrived: list[bytes],
    check: Callable[[int, float], None],
) -> None:
    """Append a range of an S3 object to `arrived`, piece by piece, if the object still has this tag."""
    bucket, key, version = system.split_path(path)
    which = {"Bucket": bucket, "Key": key, "IfMatch": tag, **({"VersionId": version} if version else {})}
    answer = await system._call_s3("get_object", Range=f"bytes={start}-{stop - 1}", **which)
    try:
        if answer.get("ETag", tag).strip('"') != tag.strip('"'):  # a store that ignores If-Match
            raise SourceChanged(f"{shown_url(f's3://{path}')} was changed after it was listed or opened.")
        began_s, size = time.monotonic(), 0
        while piece := await answer["Body"].read(_PIECE):
            arrived.append(piece)
            size += len(piece)
            if start + size < stop:
                check(size, time.monotonic() - began_s)
    finally:
        answer["Body"].close()


def _contents(system: AbstractFileSystem, address: str) -> bytes | None:
    options: dict[str, object] = {"cache_type": "none"} if protocol_of(address) == "hf" else {}  # as above
    if "max_concurrency" in signature(getattr(system, "_cat_file", system.cat_file)).parameters:
        options["max_concurrency"] = 1  # otherwise s3fs asks for the size first
    try:
        data: bytes = system.cat_file(system._strip_protocol(address), **options)
    except FileNotFoundError:
        return None
    return data


def protocol_of(address: str) -> str:
    """Return the protocol of an address; empty for the path of a local file."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", address)
    protocol = found[1].lower() if found else ""
    return "" if protocol == "file" else protocol


def load_libraries(addresses: Iterable[str]) -> None:
    """Import what reading these addresses needs, so that workers forked later need not: s3fs takes most of a second.

    Nothing is opened. If a package is missing, opening an address raises the error.
    """
    for protocol in {protocol_of(address) for address in addresses} - {"", "http", "https"}:
        with contextlib.suppress(MissingExtra, BadOption):
            system_class(protocol)


def local_path(address: str) -> str:
    """Return the path of an address without protocol, or with file://. A leading `~` is the home folder."""
    return os.path.expanduser(re.sub(r"^file://", "", address, count=1, flags=re.IGNORECASE))


class Storage(ClosedWhenDeleted):
    """The store connections of one process; threads may share it.

    Args:
        remote: how files are read.
        files: the addresses of all files of the dataset, whose pieces stay in the cache.
        is_common: True if several processes may read the same parts of a file at about the same time.
    """

    def __init__(self, remote: Remote | None = None, files: Sequence[str] = (), *, is_common: bool = False) -> None:
        self._remote = remote or Remote()
        self._retry_policy = self._remote.retry_policy
        self._systems = FileSystems(self._remote.storage_options or {}, self._remote.timeout_s)
        self._pid = os.getpid()
        self._connections: Connections | None = None
        self._cache = self._remote.disk_cache
        self._is_common = is_common
        if self._cache is not None:
            self._cache.own(files)
        self._lock = threading.Lock()

    def open(self, address: str, version: Version | None = None) -> Blob:
        """Open a path, or an address that begins with http://, https://, or a protocol that fsspec supports.

        If you pass a version, opening on web servers, s3 and gs sends no request: every read checks the version.

        Raises SourceError: the file does not exist or cannot be reached; SourceChanged: it is not that version;
        MissingExtra: a required package is not installed.
        """
        protocol = protocol_of(address)
        if not protocol:
            blob: Blob = LocalBlob(local_path(address))
        elif protocol in ("http", "https"):
            blob = self._open_http(address, version)
        else:
            blob = StoreBlob(address, self._systems, self._retry_policy, version)
        if version is not None and (blob.size, blob.tag) != version:
            blob.close()
            raise SourceChanged(f"{blob.name} has changed since it was looked at. Create the dataset or stream again.")
        if blob.is_local or self._cache is None or not blob.tag:
            return blob
        return CachedBlob(blob, self._cache, is_common=self._is_common)

    def listed(self, pattern: str) -> dict[str, Version]:
        """Return the addresses in a store that match a pattern with `*`, `?` or `[...]`, and their versions.

        `a-9` comes before `a-10`, as among local files.

        Raises SourceError: nothing matches, or the store cannot be listed.
        """
        protocol, found = protocol_of(pattern), dict[str, Version]()

        def glob(system: AbstractFileSystem) -> None:
            for path, info in system.glob(system._strip_protocol(pattern), detail=True).items():
                if info["type"] == "file":
                    found[f"{protocol}://{path.lstrip('/')}"] = version_of(info, protocol)
            system.invalidate_cache()  # fsspec keeps every listing

        self.ask(pattern, glob)
        if not found:
            raise SourceError(f"No object fits {shown_url(pattern)}. Is the name of the bucket right?")
        return {address: found[address] for address in sorted(found, key=natural)}

    def ask(self, address: str, act: Callable[[AbstractFileSystem], T], *, done: str = "read") -> T:
        """Return what `act` returns for the file system of an address; retry where that may help.

        Raises SourceError: it failed; the text says that the address "cannot be" `done`.
        """
        query = partial(self._systems.query, protocol_of(address), address, act, done)
        return retried(query, name=shown_url(address), retry_policy=self._retry_policy, done=done)

    def contents(self, address: str) -> bytes | None:
        """Return all bytes of a small file or object; None if it does not exist. On s3 and gs, this is one request."""
        protocol = protocol_of(address)
        if not protocol and not os.path.exists(local_path(address)):
            return None
        if protocol in ("", "http", "https"):
            blob = self.open(address)
            try:
                return blob.read(0, blob.size)
            finally:
                blob.close()
        return self.ask(address, lambda system: _contents(system, address))

    def _open_http(self, address: str, version: Version | None) -> Blob:
        # Imported here because it loads ssl and more, which takes 30 ms and is not needed for local files.
        from feedline.datasets.storage.http import Connections, HttpBlob

        with self._lock:
            if self._connections is None:
                self._connections = Connections(self._retry_policy.timeout_s)
            connections = self._connections
        return HttpBlob(
            address, connections, self._retry_policy, unsafe_redirects=self._remote.unsafe_redirects, version=version
        )

    def close(self) -> None:
        """Close all connections. May be called twice; the storage can be used again afterwards."""
        with self._lock:
            connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()
        self._systems.close()

    def _needs_closing(self) -> bool:
        # A forked process must not close what it inherited: the thread behind it stayed with the parent.
        return self.__dict__.get("_pid") == os.getpid()
