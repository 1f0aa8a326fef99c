"""A task that is under way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from feedline.loader.isolation import Isolation
from feedline.loader.splitting import Group
from feedline.types import Task
from feedline.verdicts import Fault


@dataclass(slots=True)
class Pending:
    """A task that is under way."""

    owner: Any
    """The epoch that asked for it, `CALLS` or `PROBES`; None if the epoch was left."""
    ordinal: int
    worker: int
    task: Task
    group: Group | None = None
    """Of which batch it is a part, if it is one."""
    stays: bool = False
    """True if no other worker can do it: the batch of a stream."""
    turn: int = 0
    """When it was handed to its worker, among all tasks that were handed to one."""
    deaths: int = 0
    """Workers that died over it."""
    unexplained: int = 0
    """Those of them, and of the ones that made parts of it, for which no sample was found to blame."""
    attempts: dict[Hashable, int] = field(default_factory=dict)
    """How often each sample was found to kill, by the key of its index."""
    last_death: BaseException | None = None
    faults: list[Fault] = field(default_factory=list)
    """What is to be said of samples that killed."""
    search: Isolation | None = None
    """Looks for such a sample."""
    suspect: Pending | None = None
    """If this is a probe: of which task it is a part."""


CALLS = object()
"""Owns tasks that are calls, whatever epoch it is."""

PROBES = object()
"""Owns tasks that are parts of others, made to find out which sample kills."""
