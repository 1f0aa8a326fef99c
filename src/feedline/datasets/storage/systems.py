"""Create fsspec file systems in every process, close them, and hide the values of their options."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from feedline.datasets.storage.addresses import hidden, shown_url, without_secrets
from feedline.datasets.storage.blob import Throttled, Transient
from feedline.errors import BadOption, MissingExtra, SourceChanged, SourceError
from feedline.system.failures import words
from feedline.system.optional import require

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}
_PLAIN = ("endpoint_url", "region_name")
"""Options that help with debugging and do not identify the user."""

T = TypeVar("T")

_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, ValueError, TypeError)


class _Expired(Exception):
    """Credentials have expired; the text is the store's message."""


_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_CHANGED = ("PreconditionFailed", "412")
_THROTTLED = (
    "SlowDown",
    "503",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "429",
)


# Any: each file system knows the types of its options.
def make_system(protocol: str, options: Mapping[str, Any], timeout_s: float | None = None) -> AbstractFileSystem:
    """Return a new fsspec file system."""
    if timeout_s is not None and protocol in ("s3", "s3a"):  # how long a read may stall
        given = options.get("config_kwargs") or {}
        options = {**options, "config_kwargs": {"read_timeout": timeout_s, "connect_timeout": timeout_s, **given}}
    kind = system_class(protocol)
    try:
        # A new one in every process: one created before a fork does not work after it.
        system = kind(skip_instance_cache=True, **options)
    except Exception as exc:  # each file system has its own checks
        why = without_values(words(exc), options)
        raise BadOption(
            f"The storage_options do not fit {protocol}://, of which {sorted(map(str, options))} were given: {why}."
        ) from (exc if why == words(exc) else None)
    if "retries" not in options and hasattr(system, "retries"):
        system.retries = 1  # s3fs only: feedline retries, and the two retry counts should not multiply
    return system


def system_class(protocol: str) -> type[AbstractFileSystem]:
    """Return the class of fsspec's file systems for a protocol, after importing it."""
    extra = _EXTRAS.get(protocol, "s3")
    purpose = f"reading {protocol}://"
    fsspec = require("fsspec", extra=extra, purpose=purpose)
    try:
        if extra == "gs":
            # Not the class that newer gcsfs versions export by this name: it asks for the kind of bucket over gRPC. It
            # gives up after a minute where only http gets through, and is not made for processes that fork (not tried).
            require("gcsfs", extra="gs", purpose=purpose)
            kind: type[AbstractFileSystem] = require("gcsfs.core", extra="gs", purpose=purpose).GCSFileSystem
        else:
            kind = fsspec.get_filesystem_class(protocol)
    except ImportError as exc:
        if isinstance(exc, MissingExtra):
            raise
        raise MissingExtra(
            module=exc.name or {"s3": "s3fs", "hf": "huggingface_hub"}.get(extra, protocol),
            extra=extra,
            purpose=purpose,
        ) from exc
    except ValueError as exc:
        raise BadOption(f"Addresses that begin with {protocol}:// are unknown: {words(exc)}.") from exc
    return kind


def system_call(system: AsyncFileSystem, function: object, *arguments: object) -> object:
    """Run a coroutine function on a file system's event loop, passing the file system first."""
    found: object = sys.modules["fsspec.asyn"].sync(system.loop, function, system, *arguments)
    return found


class FileSystems:
    """The file systems of one process, by protocol. Threads may share it.

    Args:
        options: options of fsspec.
        timeout_s: how long a read may stall.
    """

    # Any: each file system knows the types of its options.
    def __init__(self, options: Mapping[str, Any], timeout_s: float | None = None) -> None:
        self._options = dict(options)
        self._timeout_s = timeout_s
        self._open: dict[str, AbstractFileSystem] = {}
        self._expired: list[AbstractFileSystem] = []
        """Those whose credentials have expired. Requests may be in flight, so they are closed at the end."""
        self._lock = threading.Lock()

    def of(self, protocol: str) -> AbstractFileSystem:
        """Return the file system of a protocol."""
        with self._lock:
            if protocol not in self._open:
                self._open[protocol] = make_system(protocol, self._options, self._timeout_s)
            return self._open[protocol]

    def query(self, protocol: str, address: str, act: Callable[[AbstractFileSystem], T], done: str = "read") -> T:
        """Return what `act` returns for a file system; if credentials have expired, once more for a new one.

        Raises SourceError: it failed, and the text says that the address "cannot be" `done`; Transient: trying again
        may help; SourceChanged: there is another version now.
        """
        system = self.of(protocol)
        with contextlib.suppress(_Expired), self._translated(address, done):
            return act(system)
        with self._lock:
            if self._open.get(protocol) is system:  # otherwise another thread has replaced it
                self._expired.append(self._open.pop(protocol))
        try:
            with self._translated(address, done):
                return act(self.of(protocol))
        except _Expired as exc:
            then = "build the dataset with new ones and load the state" if done == "read" else "give new ones"
            raise SourceError(
                f"{shown_url(address)} cannot be {done}: {words(exc)}. The credentials have expired, and those looked "
                "up anew are no better. Renew them where they come from (environment, profile, role); with keys in "
                f"storage_options=, {then}."
            ) from exc

    @contextlib.contextmanager
    def _translated(self, address: str, done: str) -> Iterator[None]:
        """Turn exceptions of fsspec and the libraries below it into feedline errors."""
        try:
            yield
        except (SourceChanged, _Expired, Transient):
            raise
        except Exception as exc:
            said = str(exc) or ("no answer within timeout_s=" if isinstance(exc, TimeoutError) else "")
            name, message = shown_url(address), f"{type(exc).__name__}: {said}"
            text = without_secrets(without_values(message, self._options), address)
            cause = exc if text == message else None
            code = _code_of(exc)
            if code in _CHANGED:
                raise SourceChanged(
                    f"{name} was changed after it was listed or opened: that version is gone."
                ) from cause
            if code in _EXPIRED:
                raise _Expired(text.rstrip(".")) from cause
            if code in _THROTTLED:
                raise Throttled(text) from cause
            if isinstance(exc, FileNotFoundError):
                what = "object" if done == "read" else "bucket or folder"
                raise SourceError(f"{name}: there is no such {what} ({text}).") from cause
            is_full = getattr(exc, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
            if isinstance(exc, _FINAL) or is_full or "Credentials" in type(exc).__name__:
                advice = " Are the names in storage_options= right?" if isinstance(exc, TypeError) else ""
                raise SourceError(f"{name} cannot be {done}: {text.rstrip('.')}.{advice}") from cause
            raise Transient(text) from cause

    def close(self) -> None:
        """Close all connections. May be called twice; the file systems are made again when they are needed."""
        with self._lock:
            systems, self._open, self._expired = [*self._open.values(), *self._expired], {}, []
        for system in systems:
            close_system(system)


def _code_of(exc: BaseException | None) -> str:
    """Return the store's error code: s3fs keeps it in the cause of its exception."""
    while exc is not None:
        response = getattr(exc, "response", None)
        if isinstance(response, dict) and "Error" in response:
            return str(response["Error"].get("Code", ""))
        if type(exc).__name__ == "HttpError":  # from gcsfs
            return str(getattr(exc, "code", ""))
        exc = exc.__cause__
    return ""


def close_system(system: object) -> None:
    """Close the connections of a file system."""
    session = getattr(system, "_s3", None) or getattr(system, "_session", None)
    loop = getattr(system, "loop", None)
    if session is None or loop is None or not loop.is_running():
        return
    ending = session.__aexit__(None, None, None) if hasattr(session, "__aexit__") else session.close()
    asyncio = sys.modules["asyncio"]  # fsspec has imported it
    closing = asyncio.run_coroutine_threadsafe(_awaited(ending), loop)
    if asyncio._get_running_loop() is not loop:  # garbage collection may run on the loop's thread, which cannot wait
        closing.result(10)
    for name in ("_s3", "_s3creator", "_session"):
        if hasattr(system, name):
            setattr(system, name, None)


async def _awaited(ending: Awaitable[object]) -> None:
    await ending


def without_values(text: str, options: Mapping[str, object]) -> str:
    """Return a text with the values of options hidden.

    Example:
        >>> without_values("The key AKIA1234 is unknown", {"key": "AKIA1234", "anon": False})
        'The key *** is unknown'
    """
    return hidden(text, _texts(options))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name not in _PLAIN or "@" in str(part):
                yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, bytes):
        yield from _texts(value.decode("utf-8", "replace"))
    elif isinstance(value, str):
        yield value
