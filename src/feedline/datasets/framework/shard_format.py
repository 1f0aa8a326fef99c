"""How samples are found in a shard that is read in order: what a format defines for its streams."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from feedline.datasets.framework.passes import (
    names_sum,
)
from feedline.datasets.framework.shares import Entry, ShardShare
from feedline.datasets.storage.blob import Blob, Version
from feedline.datasets.storage.content import Content, packing_of
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage
from feedline.errors import CorruptSource
from feedline.system.handle import Handle

R = TypeVar("R")


@dataclass(slots=True)
class Run(Generic[R]):
    """Samples that follow each other in a shard, not made yet."""

    entry: Entry
    """Where reading can begin to find them again."""
    ordinal: int
    """The number of the first one."""
    records: Sequence[R]
    """In a form that the format chooses."""


class ShardFormat(ABC, Generic[R]):
    """How samples are found in a shard that is read in order, and made of what was found."""

    kind: str
    """What shards are called, such as "tar shards"."""
    made_ahead = 1
    """Samples to make at a time, if they are asked for one by one: more than one if that saves time."""

    @abstractmethod
    def runs(self, content: Content, blob: Blob, share: ShardShare) -> Iterator[Run[R]]:
        """Yield the samples of a shard, or at least those that are wanted.

        Args:
            content: the content of the shard, from the place of `share.entry` on.
            blob: the shard: its name for errors, its size.
            share: which samples are wanted, for formats that save work by knowing it.

        Raises:
            CorruptSource: the shard is damaged. What was yielded before is used.
        """

    @abstractmethod
    def build(self, run: Run[R], place: int) -> object:
        """Make a sample of a run. Raises SourceError: it cannot be made; those after it may be all right."""

    def build_several(self, run: Run[R], places: range) -> list[object]:
        """Make the samples before the first one that cannot be made. Raises what `build` raises if there are none."""
        made = list[object]()
        try:
            for place in places:
                made.append(self.build(run, place))
        except Exception:
            if not made:
                raise
        return made

    def name_of(self, run: Run[R], place: int) -> str:
        """Name a sample, for errors of its transform; "" if nothing is known of it."""
        return ""

    def packing(self, head: bytes) -> str | None:
        """Return the compression of a shard, by its first bytes; None if it is not compressed."""
        return packing_of(head)

    @abstractmethod
    def __repr__(self) -> str:
        """Describe a sample for people."""


@dataclass
class Shards(Generic[R]):
    """The shards of a stream, and how to read them."""

    addresses: list[str]
    format: ShardFormat[R]
    remote: Remote
    versions: Mapping[str, Version]
    """The versions that shards must have; of those that are missing, any will do."""

    def __post_init__(self) -> None:
        opener = functools.partial(Storage, self.remote, self.addresses)
        self._storage: Handle[Storage] = Handle(opener, Storage.close)

    def open(self, address: str) -> Blob:
        """Open a shard; called by threads. Raises SourceChanged: it has another version than expected."""
        return self._storage.get().open(address, self.versions.get(address))

    @functools.cached_property
    def names_sum(self) -> list[int]:
        """The number of the shards, and a checksum of their names."""
        return names_sum(self.addresses)

    def close(self) -> None:
        """Close the connections of this process. They are opened again when they are needed."""
        self._storage.close()


class Damage:
    """Stands for a sample, and for all that follow it in a shard: they cannot be read."""

    def __init__(self, reason: CorruptSource) -> None:
        self.reason = copy.copy(reason)  # without its traceback, whose frames would keep the shard open


def raise_damage(run: Run[Any]) -> None:
    """Raise why a shard cannot be read on, if the run stands for that."""
    if isinstance(run.records[0], Damage):
        raise copy.copy(run.records[0].reason)  # an exception that its own frames hold would live on
