"""The snapshot: a loader's position, in plain values.

A snapshot is a dict of numbers and short strings, so JSON, pickle and `torch.save` can all store it; only the states of
the user's own dataset or sampler may be something else. It describes the batches that the training loop has received,
not those prefetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from feedline.abc.stateful import check_format
from feedline.delivery.state.damage import checked, checked_ranks
from feedline.errors import BadState
from feedline.types import State

VERSION = 2


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
    streams: tuple[State, ...] = ()
    """States of the workers' streams or datasets."""
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
        """Return the snapshot in the form of `state_dict()`. It includes empty values, so a missing one is noticed."""
        if self.ranks:
            return {"feedline": VERSION, "ranks": [each.as_dict() for each in self.ranks]}
        return {
            "feedline": VERSION,
            "epoch": self.epoch,
            "ended": self.ended,
            "seed": self.seed,
            "draw_seed": self.draw_seed,
            "order": self.order,
            "early": list(self.early),
            "streams": list(self.streams),
            "turn": self.turn if self.streams else 0,
            "dataset_epoch": self.dataset_epoch,
            "virtual": None if self.virtual is None else list(self.virtual),
        }

    @classmethod
    def from_dict(cls, state: Any) -> Snapshot:
        """Read a dict that `as_dict` made.

        Raises:
            BadState: it is something else, or its version is unknown to this feedline.
        """
        if not isinstance(state, Mapping):
            raise BadState(f"A loader's state is a dict, as state_dict() returns, not {type(state).__name__}.")
        version = state.get("feedline")
        if version is None:
            hint = ""
            if "_snapshot" in state or "_num_yielded" in state:
                hint = " It looks like a state of torchdata's StatefulDataLoader, whose positions mean something else."
            raise BadState(
                f"This is not the state of a feedline loader: it has {sorted(map(str, state))[:6]} but no 'feedline'."
                f"{hint} Load what this loader's state_dict() returned."
            )
        check_format(state, "a loader", known=VERSION)
        if "ranks" in state:
            ranks = checked_ranks(state)
            snapshots = tuple(cls.from_dict(each) for each in ranks)
            return replace(snapshots[0], ranks=snapshots)
        state = checked(state)
        return cls(
            epoch=state["epoch"],
            ended=state["ended"],
            seed=state["seed"],
            draw_seed=state["draw_seed"],
            order=dict(state["order"]),
            early=tuple(state["early"]),
            streams=tuple(dict(stream) for stream in state["streams"]),
            turn=state["turn"],
            dataset_epoch=state["dataset_epoch"],
            virtual=None if state["virtual"] is None else (state["virtual"][0], state["virtual"][1]),
        )
