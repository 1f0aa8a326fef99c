"""`Remote`: the options of all sources for files in object stores and on web servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from feedline.datasets.storage.blob import RetryPolicy
from feedline.datasets.storage.disk_cache import CacheStats, DiskCache
from feedline.errors import BadOption
from feedline.system.options import checked_count, checked_flag
from feedline.system.sizes import byte_count

_REQUESTS = 32
"""Requests in flight for a batch of random samples: each is small and spends most of its time waiting."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """How a source reads files in object stores and on web servers: its option `remote=`.

    Args:
        read_ahead: for random access, the number of requests in flight for a batch: 32 by default. For a stream that
            reads files from beginning to end, the number of 2 MB chunks to fetch ahead, each in a thread: by default 8,
            and up to 32 if that is faster; none for local files, which the operating system reads ahead.
        retries: how often to retry a read when a connection drops. Bytes that have arrived are not read again.
        timeout_s: how long a server may send nothing.
        unsafe_redirects: True to also follow redirects from https to http, and from public addresses to private ones.
        storage_options: for fsspec, which reads addresses other than http(s): `{"anon": True}`. Never shown.
        cache: a folder on a local disk that caches pieces of remote files, for all workers and ranks of the machine. It
            may contain only files that feedline put there.
        cache_bytes: the size limit of that folder.

    Raises:
        BadOption: an option has an invalid value, or the folder of the cache belongs to something else.

    Example:
        >>> from feedline.datasets import Remote
        >>> Remote(retries=20, storage_options={"key": "AKIA...", "secret": "..."})
        Remote(read_ahead=None, retries=20, timeout_s=60.0, unsafe_redirects=False, cache=None, cache_bytes='100 GB')
    """

    read_ahead: int | None = None
    retries: int = 5
    timeout_s: float = 60.0
    unsafe_redirects: bool = False
    # object: each file system has options of its own. They may contain keys and tokens.
    storage_options: Mapping[str, object] | None = field(default=None, repr=False, hash=False)
    cache: str | os.PathLike[str] | None = None
    cache_bytes: int | str = "100 GB"

    retry_policy: RetryPolicy = field(init=False, repr=False, compare=False)
    """`retries` and `timeout_s`."""
    disk_cache: DiskCache | None = field(init=False, repr=False, compare=False)
    """The open `cache`."""

    def __post_init__(self) -> None:
        if self.read_ahead is not None:
            checked_count("read_ahead", self.read_ahead, 0)
        checked_flag("unsafe_redirects", self.unsafe_redirects)
        options: object = self.storage_options  # any value from the user
        if options is not None and not isinstance(options, Mapping):
            raise BadOption(
                f"storage_options= is a dict of options for fsspec, but a {type(options).__name__} was given."
            )
        limit = byte_count("cache_bytes", self.cache_bytes)
        object.__setattr__(self, "retry_policy", RetryPolicy(self.retries, timeout_s=self.timeout_s))
        object.__setattr__(self, "disk_cache", None if self.cache is None else DiskCache(self.cache, limit))

    @property
    def requests(self) -> int:
        """How many requests random access keeps in flight."""
        return _REQUESTS if self.read_ahead is None else max(1, self.read_ahead)

    def cache_stats(self) -> CacheStats:
        """Return what the cache holds, and what went through it, for all processes; zeros if there is none.

        The attributes `held`, `fetched`, `served` (from the disk) and `dropped` are bytes, and `hit_rate` is the share
        that was served.
        """
        return CacheStats() if self.disk_cache is None else self.disk_cache.stats()


def checked_remote(remote: object) -> Remote:
    """Return the option `remote=` of a source. Raises BadOption: it is not a `Remote`."""
    if remote is None:
        return Remote()
    if not isinstance(remote, Remote):
        raise BadOption(f"remote= takes a feedline.datasets.Remote, but a {type(remote).__name__} was given.")
    return remote
