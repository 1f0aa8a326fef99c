"""The snapshot: a loader's position, in plain values.

A snapshot is a dict of numbers and short strings, so JSON, pickle and `torch.save` can all store it; only the states of
the user's own dataset or sampler may be something else. It describes the batches that the training loop has received,
not those prefetched.

A checksum covers everything in it except the user's own states. A state that was truncated, edited or mixed up would
otherwise resume somewhere else, without a sign of it. Whether a state fits a loader is not checked here, but by its
`Order`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import feedline
from feedline.abc.stateful import FORMAT, SAVED_BY, check_format
from feedline.errors import BadState
from feedline.types import Position, State

VERSION = 1
"""The number of the format. Raise it with every change to a state or to any part of one, and read all earlier ones."""


@dataclass(frozen=True)
class Snapshot:
    """A loader's position."""

    epoch: int
    ended: bool = False
    """True if the epoch was completed: the next iteration is another epoch."""
    seed: int | None = None
    """Seed of the order; None if the sampler is not feedline's."""
    draw_seed: int | None = None
    """Seed of the random numbers of samples and workers."""
    order: State = field(default_factory=dict)
    """What the plan needs to resume, and the values that must not have changed: see `Plan.state`."""
    early: tuple[int, ...] = ()
    """Batches after that position that were delivered out of turn, by their distance from it."""
    streams: tuple[Position, ...] = ()
    """Where each worker is, if workers have streams of their own or the dataset has a state."""
    turn: int = 0
    """The worker whose stream comes next."""
    dataset_epoch: int | None = None
    """The epoch that the dataset's `set_epoch` was last called with, if it was."""
    virtual: tuple[int, int] | None = None
    """The virtual epoch, and the number of its batches that were delivered."""
    ranks: tuple[Snapshot, ...] = ()
    """The snapshots of all ranks, if they were merged; the other fields are those of the first rank."""

    @property
    def is_shared(self) -> bool:
        """True if any rank can resume from it: it holds no unfinished part of an epoch that belongs to one rank."""
        return not self.ranks and (self.ended or not self.streams or "rank" not in self.order)

    def as_dict(self) -> State:
        """Return the snapshot in the form of `state_dict()`."""
        if self.ranks:
            return of_ranks([each.as_dict() for each in self.ranks])
        state = {name: getattr(self, name) for name in _FIELDS}
        state["early"] = list(self.early)
        state["streams"] = [position.as_dict() for position in self.streams]
        state["turn"] = self.turn if self.streams else 0
        state["virtual"] = None if self.virtual is None else list(self.virtual)
        return {FORMAT: VERSION, SAVED_BY: feedline.__version__, **state, "checksum": _checksum(state)}

    @classmethod
    def from_dict(cls, state: Any) -> Snapshot:
        """Read a dict that `as_dict` made.

        Raises:
            BadState: it is something else, a newer feedline saved it, or it was changed since it was saved.
        """
        if not isinstance(state, Mapping):
            raise BadState(f"A loader's state is a dict, as state_dict() returns, not {type(state).__name__}.")
        if state.get(FORMAT) is None:
            hint = ""
            if "_snapshot" in state or "_num_yielded" in state:
                hint = " It looks like a state of torchdata's StatefulDataLoader, whose positions mean something else."
            raise BadState(
                f"This is not the state of a feedline loader: it has {sorted(map(str, state))[:6]} but no 'feedline'."
                f"{hint} Load what this loader's state_dict() returned."
            )
        check_format(state, "a loader", known=VERSION)
        if "ranks" in state:
            ranks = state["ranks"]
            if not isinstance(ranks, (list, tuple)) or not ranks:
                raise BadState(_CHANGED)
            if any(not isinstance(each, Mapping) or "ranks" in each for each in ranks):
                raise BadState(_CHANGED)
            snapshots = tuple(map(cls.from_dict, ranks))
            if state.get("checksum") != _checksum_of(ranks):
                raise BadState(_CHANGED)
            return replace(snapshots[0], ranks=snapshots)
        if not _is_intact(state):
            raise BadState(_CHANGED)
        values = {name: state[name] for name in _FIELDS}
        values["order"], values["early"] = dict(state["order"]), tuple(state["early"])
        values["streams"] = tuple(map(Position.from_dict, state["streams"]))
        values["virtual"] = None if state["virtual"] is None else (state["virtual"][0], state["virtual"][1])
        return cls(**values)


_FIELDS = tuple(each.name for each in fields(Snapshot) if each.name != "ranks")

_OF_USERS = {"parts", "held", "before", "dataset", "iterator"}
"""Parts of an order or a stream that may hold anything, because the user's sampler or dataset made them."""

_CHANGED = (
    "The state was changed or cut off after it was saved: its checksum differs. Load it as state_dict() returned it, "
    "which JSON, pickle and torch.save preserve, or start the epoch again without the state."
)

_encoded = json.JSONEncoder(sort_keys=True, default=repr).encode
"""The same text before and after a state was saved as JSON, which turns tuples into lists."""


def _checksum(state: Mapping[str, Any]) -> int:
    covered = {name: state[name] for name in _FIELDS}
    covered["order"] = order = _without_users(state["order"])
    if order.get("sampler_state") is not None:
        order["sampler_state"] = _without_users(state["order"]["sampler_state"])
    covered["streams"] = [_without_users(stream) for stream in state["streams"]]
    return zlib.crc32(_encoded(covered).encode())


def _without_users(part: Mapping[str, object]) -> dict[str, object]:
    """Return a part with only a sign that the user's states are there, and the length of lists of them."""
    return {name: _sign(value) if name in _OF_USERS else value for name, value in part.items()}


def _sign(value: object) -> int | bool:
    return len(value) if isinstance(value, (list, tuple)) else value is not None


def _is_intact(state: Mapping[str, Any]) -> bool:
    found = state.get("checksum")
    try:
        return type(found) is int and found == _checksum(state)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):  # a part is missing or has no fields
        return False


def of_ranks(states: Sequence[Mapping[str, Any]]) -> State:
    """Return one state that holds the states of all ranks."""
    return {FORMAT: VERSION, SAVED_BY: feedline.__version__, "ranks": list(states), "checksum": _checksum_of(states)}


def _checksum_of(ranks: Sequence[Mapping[str, Any]]) -> int:
    return zlib.crc32(_encoded([state["checksum"] for state in ranks]).encode())
