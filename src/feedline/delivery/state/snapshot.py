"""The snapshot: where a loader is, in plain values.

A snapshot is a dict of numbers and short strings, so that JSON, pickle and `torch.save` all keep it; only what the
user's own dataset or sampler adds to it can be something else. It is about batches that the training loop has got,
not about those that were made ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from feedline.delivery.state.damage import checked, checked_ranks
from feedline.errors import BadState

VERSION = 2


@dataclass(frozen=True)
class Snapshot:
    """Where a loader is."""

    epoch: int
    ended: bool = False
    """True if the epoch was gone through to its end: the next iteration is another epoch."""
    seed: int | None = None
    """Of the order; None if the sampler is not feedline's."""
    draw_seed: int | None = None
    """Of samples' own random numbers, and of the workers'."""
    order: dict[str, Any] = field(default_factory=dict)
    """What the plan needs to go on, and what it must find again: see `Plan.state`."""
    early: tuple[int, ...] = ()
    """Batches after that point that were delivered out of turn, by their distance from it."""
    streams: tuple[dict[str, Any], ...] = ()
    """States of the workers' streams or datasets."""
    turn: int = 0
    """Whose stream comes next."""
    dataset_epoch: int | None = None
    """What the dataset's `set_epoch` was last told, if it was."""
    virtual: tuple[int, int] | None = None
    """The virtual epoch, and the batches of it that were delivered."""
    ranks: tuple[Snapshot, ...] = ()
    """Those of all ranks, if each has one of its own and they were put together; the rest is that of the first."""

    @property
    def is_shared(self) -> bool:
        """True if it serves any rank: none has begun with its part of the epoch, or this one has ended it."""
        return not self.ranks and (self.ended or not self.streams or "rank" not in self.order)

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot as `state_dict()` hands it out. What is empty is there too, so that it can be missed."""
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
        """Read what `as_dict` made.

        Raises:
            BadState: it is something else, or of a version that this feedline does not know.
        """
        if not isinstance(state, Mapping):
            raise BadState(f"A loader's state is a dict as state_dict() returns it, not {type(state).__name__}.")
        version = state.get("feedline")
        if version is None:
            hint = ""
            if "_snapshot" in state or "_num_yielded" in state:
                hint = " It looks like one of torchdata's StatefulDataLoader, whose positions mean something else."
            raise BadState(
                f"This is not the state of a feedline loader: it has {sorted(map(str, state))[:6]} but no 'feedline'."
                f"{hint} Load what this loader's state_dict() returned."
            )
        if type(version) is not int or version != VERSION:
            raise BadState(
                f"The state has version {version!r}, and this feedline reads version {VERSION}. "
                "Resume with the feedline that saved it, or begin the epoch anew."
            )
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
