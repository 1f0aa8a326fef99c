"""Ranks that come to be after the sampler."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from feedline.samplers import BatchSampler, DistributedSampler, LengthBucketBatchSampler, SequentialSampler, distribute

MAKERS: dict[str, Callable[..., Any]] = {
    "sampler": lambda **ranks: DistributedSampler(range(8), shuffle=False),
    "share": lambda **ranks: distribute(SequentialSampler(range(8)), **ranks),
    "foreign": lambda **ranks: distribute(list(range(8)), **ranks),
    "cut batches": lambda **ranks: distribute(BatchSampler(SequentialSampler(range(8)), 1, False), **ranks),
    "batches": lambda **ranks: distribute(LengthBucketBatchSampler(range(1, 9), 1, shuffle=False), **ranks),
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def flat(sampler: Any) -> list[int]:
    return [index for item in sampler for index in (item if isinstance(item, list) else [item])]


@pytest.mark.parametrize("name", MAKERS)
def test_they_are_found_when_they_are_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = MAKERS[name]()
    assert flat(sampler) == list(range(8))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for one in (sampler, pickle.loads(pickle.dumps(sampler))):
        assert flat(one) == [1, 3, 5, 7]
        assert len(one) == 4
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert flat(sampler) == [1, 3, 5, 7], "once they are known they stay"


@pytest.mark.parametrize("name", ["share", "foreign", "cut batches", "batches"])
def test_what_was_said_is_not_looked_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = MAKERS[name](rank=0, world_size=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert flat(sampler) == list(range(8))
