"""Samples that fail on some ranks: all deliver as many batches."""

from __future__ import annotations

import itertools

import pytest

from feedline.faults import Policy
from feedline.samplers import DistributedSampler
from tests.faults.loaders import (
    Numbers,
    batches_of,
    everywhere,
    indices_of,
    make,
    on,
)

LOST_BY_RANK_0 = {
    "some": {0, 2, 4},
    "many": set(range(0, 16, 2)),
    "nearly all": set(range(0, 38, 2)),
    "all": set(range(0, 40, 2)),
    "the last": {38},
}


@everywhere
@pytest.mark.parametrize(
    "case",
    [name if name in ("some", "all") else pytest.param(name, marks=pytest.mark.slow) for name in LOST_BY_RANK_0],
)
def test_ranks_deliver_as_many_batches_as_each_other(loader_kind: str, engine: str, case: str) -> None:
    bad = LOST_BY_RANK_0[case]
    delivered: dict[int, list[int]] = {}
    for rank in range(2):
        dataset = Numbers(40, bad)
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=False)
        policy = Policy(otherwise="skip", max_share=1.0)
        loader = make(loader_kind, dataset, sampler=sampler, on_error=policy, **on(engine))
        for _ in range(2):
            batches = batches_of(loader)
            assert len(batches) == 5
            assert all(1 <= len(batch) <= 4 for batch in batches)
            delivered[rank] = list(itertools.chain(*batches))
        assert sorted(indices_of(loader.faults)) == (sorted(bad) if rank == 0 else [])
    assert delivered[1] == list(range(1, 40, 2))
    own = set(delivered[0]) - set(delivered[1])
    assert own == set(range(0, 40, 2)) - bad, "all of its own that work"
    if case in ("some", "the last"):
        assert len(delivered[0]) == len(own), "and no other"
