"""Damaged states are rejected with `BadState` or harmless; they never cause another position or another error.

Each state of every kind of loader is damaged at every place, in every way below. Excluded are the user's own states
inside it, which users must check.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from feedline import DataLoader, samplers
from feedline.errors import BadState
from tests.order import datasets

N = 20
BATCH = 3
HUGE = 10**30


class StatefulMap(datasets.Sized):
    """Its state is the number of samples it has made."""

    made = 0

    def __getitem__(self, index: int) -> int:
        self.made += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


class StatefulBatches:
    """A batch sampler with a state."""

    place = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.place < N // BATCH:
            self.place += 1
            yield [(self.place - 1) * BATCH + step for step in range(BATCH)]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Endless(datasets.Sized):
    """Some samples fail and are replaced."""

    def __getitem__(self, index: int) -> int:
        if index in (4, 11):
            raise ValueError("torn")
        return index


def torchs(**options: Any) -> DataLoader[Any]:
    return DataLoader(datasets.Sized(N), BATCH, **options)


MAKERS: dict[str, Callable[[], Any]] = {
    "sequential": torchs,
    "seed": lambda: torchs(shuffle=True, seed=1),
    "torch's order": lambda: torchs(shuffle=True),
    "torch's generator": lambda: torchs(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "torch's distributed": lambda: torchs(
        sampler=torch.utils.data.DistributedSampler(datasets.Sized(N), 2, 0, shuffle=True)
    ),
    "a list": lambda: torchs(sampler=list(range(N))),
    "distributed": lambda: torchs(sampler=samplers.DistributedSampler(range(N), 2, 0, seed=2)),
    "a stateful sampler": lambda: DataLoader(datasets.Sized(N), batch_sampler=StatefulBatches()),
    "a stateful dataset": lambda: DataLoader(StatefulMap(N), BATCH),
    "a stateful stream": lambda: DataLoader(datasets.StatefulIteratorStream(N), BATCH),
    "streams, threads": lambda: DataLoader(datasets.StatefulIteratorStream(N), BATCH, num_workers=2, engine="thread"),
    "a shared stream": lambda: DataLoader(datasets.Stream(N), BATCH, shard=True),
    "samples that fail": lambda: DataLoader(Endless(N), BATCH, on_error="skip", shuffle=True, seed=1),
}


def plainly(loader: Any, stop: int | None = None) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in itertools.islice(loader, stop)]


def virtually(loader: Any, stop: int | None = None) -> list[Any]:
    epochs = loader.virtual_epochs(2)
    batches = ((epoch.number, np.asarray(batch).tolist()) for epoch in epochs for batch in epoch)
    return list(itertools.islice(batches, 9 if stop is None else stop))


WAYS: list[Any] = [
    *(pytest.param(name, "plain", 2, marks=pytest.mark.slow if "threads" in name else ()) for name in MAKERS),
    *((name, "plain", 0) for name in ("seed", "torch's order", "a stateful stream")),
    *((name, "ended", 99) for name in ("seed", "torch's generator", "a stateful sampler", "a stateful dataset")),
    *((name, "virtual", 3) for name in ("seed", "torch's order", "a list", "a shared stream")),
]


def saved(name: str, way: str, done: int) -> dict[str, Any]:
    torch.manual_seed(1)
    loader = MAKERS[name]()
    if done:
        (virtually if way == "virtual" else plainly)(loader, None if way == "ended" else done)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def rest(name: str, way: str, state: dict[str, Any]) -> Any:
    """Return what a loader delivers after loading a state."""
    torch.manual_seed(2)
    loader = MAKERS[name]()
    loader.load_state_dict(state)
    first = (virtually if way == "virtual" else plainly)(loader)
    return first, getattr(loader.dataset, "made", None)


USERS = {("dataset",), ("iterator",), ("parts",), ("held",), ("faults",)}
"""The user's own state; and faults, which have their own tests."""


def places(state: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if at[-1:] in USERS:
        return
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for name, value in items:
        yield from places(value, (*at, name))


GONE = object()


def damaged(state: Any, at: tuple[Any, ...], value: Any) -> Any:
    state = copy.deepcopy(state)
    holder = state
    for name in at[:-1]:
        holder = holder[name]
    if value is GONE:
        del holder[at[-1]]
    else:
        holder[at[-1]] = value
    return state


def damages(value: Any, at: tuple[Any, ...]) -> Iterator[Any]:
    """Yield replacements for a value: nothing, another type, another number."""
    if type(at[-1]) is str:
        yield GONE
    if at[-1:] in USERS:
        return
    others = ["x", 3.5, {"x": 1}, ["x"], -1, HUGE, None]
    yield from (other for other in others if other != value)


@pytest.mark.filterwarnings("ignore::feedline.errors.DataWarning")
@pytest.mark.parametrize(("name", "way", "done"), WAYS)
def test_every_damage_is_rejected_or_harmless(name: str, way: str, done: int) -> None:
    state = saved(name, way, done)
    expected = rest(name, way, state)
    wrong = []
    for at in places(state):
        value = state
        for part in at:
            value = value[part]
        for other in damages(value, at):
            try:
                found = rest(name, way, damaged(state, at, other))
            except BadState:
                continue
            except Exception as exc:
                found = repr(exc)
            if found != expected:
                wrong.append((at, "gone" if other is GONE else other, found))
    assert not wrong
