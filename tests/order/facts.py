"""Delivered batches as plain values that compare with `==` and do not hold a loader's memory."""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch


def as_bytes(batch: Any) -> Any:
    """Turn a batch into nested tuples of types, shapes and raw bytes: equal means equal to the last bit."""
    if isinstance(batch, torch.Tensor):
        batch = batch.numpy()
    if isinstance(batch, (np.ndarray, np.generic)):
        return batch.dtype.str, batch.shape, batch.tobytes()
    if isinstance(batch, Mapping):
        return tuple((key, as_bytes(value)) for key, value in batch.items())
    if isinstance(batch, (list, tuple)):
        return tuple(as_bytes(value) for value in batch)
    return batch


def all_bytes(batches: Iterable[Any]) -> list[Any]:
    return [as_bytes(batch) for batch in batches]


def rows(batches: Iterable[Any]) -> list[bytes]:
    """Return the bytes of each sample, which do not depend on how samples are batched."""
    return [row.tobytes() for batch in batches for row in np.asarray(batch)]


def values(batches: Iterable[Any]) -> list[Any]:
    """Return batches of numbers as lists; single samples as numbers."""
    return [_plain(batch) for batch in batches]


def _plain(batch: Any) -> Any:
    if isinstance(batch, (torch.Tensor, np.ndarray, np.generic)):
        return batch.tolist()
    if isinstance(batch, (list, tuple)):
        return [_plain(value) for value in batch]
    return batch


def flat(batches: Iterable[Any]) -> list[Any]:
    """Return the numbers of all batches one after the other."""
    found = values(batches)
    return list(chain.from_iterable(batch if isinstance(batch, list) else [batch] for batch in found))


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """Save and load a state as JSON."""
    copied: dict[str, Any] = json.loads(json.dumps(state))
    return copied


def slow_except(names: Iterable[str], *quick: str) -> list[Any]:
    """Return the names for `pytest.mark.parametrize`; `make test` runs the quick ones, `make slow` all."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.slow]) for name in names]


def interrupted(make: Callable[[], Any], stop: int, then: Callable[[], Any] | None = None) -> tuple[list[Any], Any]:
    """Leave a loader after `stop` batches; return these, and a new loader that has loaded the state."""
    begun = make()
    taken = [copy.deepcopy(batch) for batch in islice(begun, stop)]
    state = through_json(begun.state_dict())
    resumed = (then or make)()
    resumed.load_state_dict(state)
    assert through_json(resumed.state_dict()) == state, "until it is iterated, a loader has the state that was loaded"
    return taken, resumed
