"""Create fsspec file systems in every process, close them, and hide the values of their options."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from feedline.errors import BadOption, MissingExtra
from feedline.system.failures import words
from feedline.system.optional import require

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}
_PLAIN = ("endpoint_url", "region_name")
"""Options that help with debugging and do not identify the user."""

_SHORTEST = 4
"""Minimum length of a value to hide: shorter ones occur as words in other text."""


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
    for value in sorted(set(_texts(options)), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


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
    elif isinstance(value, str) and len(value) >= _SHORTEST:
        yield value
