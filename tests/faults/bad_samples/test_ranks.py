"""Samples that fail on some ranks: all ranks deliver the same number of batches."""

from __future__ import annotations

from typing import Any

import pytest

from feedline.errors import EmptyBatch
from feedline.faults import Policy
from feedline.samplers import DistributedSampler
from tests.faults.bad_samples.samples import cut, refuse_five
from tests.faults.loaders import (
    Numbers,
    Stream,
    batches_of,
    everywhere,
    indices_of,
    make,
    on,
    outcomes_of,
)

pytestmark = pytest.mark.sample(16)

SKIPS = Policy(otherwise="skip", max_share=1.0)


def of_rank(kind: str, dataset: Any, engine: str, batch_size: int | None = 4, rank: int = 0, **options: Any) -> Any:
    sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=False)
    return make(kind, dataset, batch_size, sampler=sampler, **{"on_error": SKIPS, **options}, **on(engine))


def with_neighbours(bad: set[int], batch_size: int = 4) -> list[list[int]]:
    """Return what rank 0 of 2 delivers from 40 samples."""
    batches = []
    for batch in cut(range(0, 40, 2), batch_size):
        left = [index for index in batch if index not in bad]
        after = (index % 40 for index in range(batch[-1] + 1, batch[-1] + 17))
        batches.append(left or [next(index for index in after if index not in bad)])
    return batches


@everywhere
@pytest.mark.parametrize("in_order", [True, False])
def test_an_empty_batch_gets_the_next_sample_that_works(loader_kind: str, engine: str, in_order: bool) -> None:
    bad = {8, 10, 12, 14, 15, 16, 20, *range(32, 40), 0, 1}
    options = {} if in_order or engine == "inline" else {"in_order": False}
    loader = of_rank(loader_kind, Numbers(40, bad), engine, **options)
    expected = with_neighbours(bad)
    assert expected[1] == [17]
    assert expected[4] == [2]
    for _ in range(2):
        batches = batches_of(loader)
        assert (batches if in_order else sorted(batches)) == (expected if in_order else sorted(expected))
    asked = {index for index in bad if index % 2 == 0} | {15, 39, 1}
    assert sorted(indices_of(loader.faults)) == sorted(asked), "each once, neighbours included"


@everywhere
def test_if_too_many_neighbours_fail_the_batch_raises_and_the_next_one_comes(loader_kind: str, engine: str) -> None:
    loader = of_rank(loader_kind, Numbers(40, range(8, 36)), engine)
    outcomes = outcomes_of(loader)
    assert len(outcomes) == 5
    assert isinstance(outcomes[1], EmptyBatch)
    assert "out of step" in str(outcomes[1])
    assert "sample 8: " in str(outcomes[1])
    assert [outcomes[0], *outcomes[3:]] == [[0, 2, 4, 6], [36], [36, 38]]


@everywhere
def test_a_batch_that_cannot_be_collated_is_raised(loader_kind: str, engine: str) -> None:
    outcomes = outcomes_of(of_rank(loader_kind, Numbers(12), engine, 2, 1, collate_fn=refuse_five))
    assert isinstance(outcomes.pop(1), EmptyBatch), "another sample would not help"
    assert outcomes == [[1, 3], [9, 11]]


@everywhere
def test_an_empty_batch_of_a_shared_stream_is_raised(
    loader_kind: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stream = Stream(Numbers(20, {4, 6, 9}), splits=False)
    loader = make(loader_kind, stream, 2, shard=True, on_error="skip", **on(engine))
    outcomes = outcomes_of(loader)
    assert isinstance(outcomes.pop(1), EmptyBatch)
    assert outcomes == [[0, 2], [8, 10], [12, 14], [16, 18]]
