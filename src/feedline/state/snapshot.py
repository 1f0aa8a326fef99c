"""The snapshot: where a loader is, in plain values.

A snapshot is a dict of numbers and short strings, so that JSON, pickle and `torch.save` all keep it; only what the
user's own dataset or sampler adds to it can be something else. It is about batches that the training loop has got,
not about those that were made ahead. `docs/guide/order-and-resume.md` shows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feedline.errors import BadState
from feedline.failures import words

VERSION = 1


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

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot as `state_dict()` hands it out; what is empty is left out."""
        state: dict[str, Any] = {"feedline": VERSION, "epoch": self.epoch, "ended": self.ended}
        if self.seed is not None:
            state["seed"] = self.seed
        if self.draw_seed is not None:
            state["draw_seed"] = self.draw_seed
        if self.order:
            state["order"] = self.order
        if self.early:
            state["early"] = list(self.early)
        if self.streams:
            state["streams"] = list(self.streams)
            state["turn"] = self.turn
        if self.dataset_epoch is not None:
            state["dataset_epoch"] = self.dataset_epoch
        if self.virtual is not None:
            state["virtual"] = list(self.virtual)
        return state

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
        if version != VERSION:
            raise BadState(
                f"The state has version {version!r}, and this feedline reads version {VERSION}. "
                "Resume with the feedline that saved it, or begin the epoch anew."
            )
        try:
            _check(state)
            return cls(
                epoch=int(state["epoch"]),
                ended=bool(state["ended"]),
                seed=state.get("seed"),
                draw_seed=state.get("draw_seed"),
                order=dict(state.get("order", {})),
                early=tuple(int(ordinal) for ordinal in state.get("early", ())),
                streams=tuple(dict(stream) for stream in state.get("streams", ())),
                turn=int(state.get("turn", 0)),
                dataset_epoch=state.get("dataset_epoch"),
                virtual=_pair(state.get("virtual")),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as exc:
            raise BadState(f"The state is damaged: {type(exc).__name__}: {words(exc)}.") from exc


def _pair(values: Any) -> tuple[int, int] | None:
    if values is None:
        return None
    first, second = values
    return int(first), int(second)


def _check(state: Mapping[str, Any]) -> None:
    """Refuse values that are not of the kind they should be.

    Raises:
        TypeError: of the first such value.
    """
    for name in ("seed", "draw_seed", "dataset_epoch"):
        _check_number(name, state.get(name), optional=True)
    order = state.get("order", {})
    for name in ("consumed", "redraw", "torch_seed"):
        _check_number(f"order.{name}", order.get(name, 0))
    for number, stream in enumerate(state.get("streams", ())):
        for name in ("place", "batches", "noted_at", "read"):
            _check_number(f"streams[{number}].{name}", stream.get(name, 0))
        if not isinstance(stream.get("ended", False), bool):
            raise TypeError(f"streams[{number}].ended is {stream['ended']!r}")


def _check_number(name: str, value: Any, *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r} where a number was expected")
    if value < 0 and name.startswith(("order.consumed", "streams")):
        raise TypeError(f"{name} is {value!r}, which is negative")
