"""What both ways of reading shards have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feedline.datasets.remote.patience import Patience
from feedline.datasets.remote.storage import Storage, protocol_of
from feedline.errors import BadOption

LOCAL_CHUNK = 1 << 20
REMOTE_CHUNK = 1 << 22
"""Large enough that the time of a request does not count, small enough to have several under way. A guess."""
REMOTE_DEPTH = 4
REMOTE_REQUESTS = 32
"""Requests under way for a batch of random samples: each is small, and most of its time is waiting."""


@dataclass(frozen=True)
class Reading:
    """How shards are read."""

    read_ahead: int | None = None
    """Chunks or ranges under way, each in a thread of its own; None for as many as make sense where shards lie."""
    max_field_bytes: int = 1 << 31
    unique_keys: bool = True
    patience: Patience = field(default_factory=Patience)
    unsafe_redirects: bool = False
    """True to follow a web server from https to http, and from a public address to a private one."""
    # Any: for fsspec. Not in the repr, nor in errors: keys and tokens are among them.
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        ahead: Any = self.read_ahead  # whatever the user gave
        if ahead is not None and (isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 0):
            raise BadOption(f"read_ahead={ahead!r} is not a whole number from 0 up.")
        for name in ("unique_keys", "unsafe_redirects"):
            if not isinstance(getattr(self, name), bool):
                raise BadOption(f"{name}={getattr(self, name)!r} is not True or False.")
        options: Any = self.storage_options
        if not isinstance(options, Mapping):
            raise BadOption(
                f"storage_options= is a dict of options for fsspec, but a {type(options).__name__} was given."
            )

    def depth(self, shards: list[str]) -> int:
        """Return how many chunks are fetched ahead. The system does it by itself for local files."""
        if self.read_ahead is not None:
            return self.read_ahead
        return REMOTE_DEPTH if any(map(protocol_of, shards)) else 0

    def requests(self) -> int:
        """Return how many ranges are asked for at the same time, far away."""
        return REMOTE_REQUESTS if self.read_ahead is None else max(1, self.read_ahead)

    def chunk_bytes(self, shards: list[str]) -> int:
        """Return how many bytes are fetched at a time."""
        return REMOTE_CHUNK if self.depth(shards) else LOCAL_CHUNK

    def open_storage(self) -> Storage:
        """Return what opens shards, for this process."""
        return Storage(self.patience, self.storage_options, unsafe_redirects=self.unsafe_redirects)
