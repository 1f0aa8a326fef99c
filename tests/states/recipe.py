"""A recipe: a loader, the place where its state is saved, and the loader that resumes from there."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import feedline

# Any, throughout: loaders of both kinds, batches and states.
END = "end of the epoch"
"""Marks the end of an epoch among its batches."""
_MOST = 10
"""Maximum number of compared batches."""


@dataclass(frozen=True)
class Recipe:
    """How a state is made and used."""

    make: Callable[[], Any]
    after: int | None = 2
    """Batches received when the state is saved; None for all of an epoch, up to the end of its loop."""
    then: Callable[[], Any] | None = None
    """Makes the loader that goes on, if it has other workers or other settings than the one that was saved."""
    ranks: int = 1
    then_ranks: int | None = None
    """The number of ranks that go on; as many as before if None."""
    virtual: int = 0
    """Batches in a virtual epoch; 0 for ordinary epochs."""
    is_within: bool = False
    """True to compare the rest of the epoch only: generators that are not in the state draw the next one."""
    needs: tuple[str, ...] = field(default=())
    """Packages without which there is no such loader."""

    def save(self) -> tuple[Any, list[Any] | None]:
        """Return the state, and the batches that follow in the same iteration; None if other ranks resume from it."""
        states, follows = [], []
        for rank in range(self.ranks):
            with _rank(rank, self.ranks):
                loader = self.make()
                batches = _batches(loader, self.virtual)
                _begin(batches, self.after)
                states.append(json.loads(json.dumps(loader.state_dict())))
                getattr(loader.dataset, "go_on", bool)()
                follows += self._some(batches)
                loader.close()
        state = states[0] if self.ranks == 1 else feedline.merge_states(states)
        return state, follows if self.then is None and self.then_ranks is None else None

    def resume(self, state: Any) -> list[Any]:
        """Return the batches that follow a state, of all ranks."""
        found, ranks = [], self.then_ranks or self.ranks
        for rank in range(ranks):
            with _rank(rank, ranks):
                loader = (self.then or self.make)()
                loader.load_state_dict(state)
                found += self._some(_batches(loader, self.virtual))
                loader.close()
        return found

    def _some(self, batches: Iterator[Any]) -> list[Any]:
        rest = itertools.takewhile(lambda batch: batch != END, batches) if self.is_within else batches
        return list(itertools.islice(rest, _MOST))


def digest(batches: list[Any]) -> str:
    """Return a checksum of batches that does not depend on Python, NumPy or torch."""
    return hashlib.sha256(json.dumps(batches).encode()).hexdigest()[:16]


def _begin(batches: Iterator[Any], after: int | None) -> None:
    if after is None:
        for batch in batches:
            if batch == END:
                return
    for batch in itertools.islice(batches, after):
        assert batch != END


def _batches(loader: Any, virtual: int) -> Iterator[Any]:
    """Yield the batches of all epochs as plain values, with a mark after each epoch."""
    for epoch in loader.virtual_epochs(virtual) if virtual else itertools.repeat(loader):
        for batch in epoch:
            yield _plain(batch)
        yield END


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value


@contextlib.contextmanager
def _rank(rank: int, ranks: int) -> Iterator[None]:
    """Make this process a rank, as launchers do."""
    if ranks == 1:
        yield
        return
    before = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
