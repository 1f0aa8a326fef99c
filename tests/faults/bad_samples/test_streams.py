"""Failing samples of streams, and samples that fail on some ranks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from feedline.errors import BadOption, EmptyBatch, TooManyBadSamples
from feedline.faults import Policy, Retry
from feedline.samplers import DistributedSampler
from tests.faults.bad_samples.samples import cut, refuse_five
from tests.faults.loaders import (
    Bad,
    Generated,
    Numbers,
    Stream,
    batches_of,
    everywhere,
    indices_of,
    make,
    on,
    outcomes_of,
    plain,
)

# -- streams ---


@pytest.mark.parametrize(
    ("loader_kind", "engine", "workers"),
    [("Loader", "inline", 0), ("Loader", "thread", 3), ("DataLoader", "process", 2)],
)
def test_streams_continue_past_skipped_samples(loader_kind: str, engine: str, workers: int) -> None:
    bad = {0, 5, 6, 7, 19}
    loader = make(loader_kind, Stream(Numbers(20, bad)), 3, shard=False, on_error="skip", **on(engine, workers))
    batches = batches_of(loader)
    # Only with torch's loader can a dataset know its worker; otherwise each worker reads a copy.
    copies = max(1, workers) if loader_kind == "Loader" else 1
    assert sorted(itertools.chain(*batches)) == sorted([*(set(range(20)) - bad)] * copies)
    short = [batch for batch in batches if len(batch) < 3]
    assert len(short) <= max(1, workers), "only the last batch of each stream"
    assert [] not in batches
    assert len(loader.faults) == len(bad) * copies
    assert {fault.message for fault in loader.faults} == {f"sample {index} is bad" for index in bad}


@everywhere
@pytest.mark.parametrize("batch_size", [3, None])
def test_skipped_samples_of_shared_streams_make_batches_shorter(
    loader_kind: str, engine: str, batch_size: int | None
) -> None:
    bad = {0, 5, 9, 10, 11, 19}
    stream = Stream(Numbers(20, bad), splits=False)
    loader = make(loader_kind, stream, batch_size, shard=True, on_error="skip", seed=1, **on(engine))
    for epoch in range(2):
        batches = batches_of(loader)
        if batch_size is None:
            assert batches == [index for index in range(20) if index not in bad]
        else:
            assert batches == [batch for batch in ([i for i in b if i not in bad] for b in cut(range(20), 3)) if batch]
        assert [(f.index, f.epoch) for f in loader.faults][epoch * 6 :] == [(index, epoch) for index in sorted(bad)]


@everywhere
@pytest.mark.parametrize("shard", [False, True])
def test_a_generator_ends_with_its_first_exception(loader_kind: str, engine: str, shard: bool) -> None:
    stream = Generated(Numbers(20, {6}), splits=False)
    loader = make(loader_kind, stream, 4, shard=shard, on_error="skip", **on(engine, 1))
    batches = iter(loader)
    assert plain(next(batches)) == [0, 1, 2, 3]
    with pytest.raises(Bad) as caught:
        list(batches)
    assert "generator" in "\n".join(caught.value.__notes__)


@everywhere
@pytest.mark.parametrize("shard", [False, True])
def test_a_stream_whose_samples_all_fail_raises(loader_kind: str, engine: str, shard: bool) -> None:
    stream = Stream(Numbers(12, range(12)), splits=not shard)
    with pytest.raises(TooManyBadSamples):
        list(make(loader_kind, stream, 4, shard=shard, on_error="skip", **on(engine)))


@pytest.mark.parametrize("on_error", ["replace", Policy({Bad: Retry(then="replace")})])
def test_replace_is_rejected_for_streams(on_error: Any) -> None:
    with pytest.raises(BadOption, match="iterable"):
        make("DataLoader", Stream(Numbers()), on_error=on_error)


@pytest.mark.parametrize(("count", "bad"), [(7, {3}), (9, {8}), (31, {30})])
def test_samples_that_drop_last_leaves_out_count_as_seen(count: int, bad: set[int]) -> None:
    stream = Stream(Numbers(count, bad))
    loader = make("DataLoader", stream, 8, drop_last=True, on_error="skip", **on("thread", 4))
    batches = batches_of(loader)  # not TooManyBadSamples: at most one sample in seven failed
    assert all(len(batch) == 8 for batch in batches)
    assert [fault.message for fault in loader.faults] == [f"sample {index} is bad" for index in bad]
    assert loader.state_dict()["faults"]["seen"] == count


# -- ranks deliver the same number of batches ---


def of_rank(kind: str, dataset: Any, engine: str, batch_size: int | None = 4, rank: int = 0, **options: Any) -> Any:
    sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=False)
    skips = Policy(otherwise="skip", max_share=1.0)
    return make(kind, dataset, batch_size, sampler=sampler, on_error=skips, **options, **on(engine))


@everywhere
@pytest.mark.parametrize("in_order", [True, False])
def test_an_empty_batch_gets_the_next_sample_that_works(loader_kind: str, engine: str, in_order: bool) -> None:
    bad = {8, 10, 12, 14, 15, 16, 20, *range(32, 40), 0, 1}
    options = {} if in_order or engine == "inline" else {"in_order": False}
    loader = of_rank(loader_kind, Numbers(40, bad), engine, **options)
    expected = [[2, 4, 6], [17], [18, 22], [24, 26, 28, 30], [2]]
    for _ in range(2):
        batches = batches_of(loader)
        assert (batches if in_order else sorted(batches)) == (expected if in_order else sorted(expected))
    asked = {index for index in bad if index % 2 == 0} | {15, 39, 1}
    assert sorted(indices_of(loader.faults)) == sorted(asked), "each once, neighbours included"


@everywhere
def test_if_no_sample_helps_the_batch_raises_and_the_next_one_comes(loader_kind: str, engine: str) -> None:
    outcomes = outcomes_of(of_rank(loader_kind, Numbers(40, range(8, 36)), engine))
    assert len(outcomes) == 5
    assert isinstance(outcomes[1], EmptyBatch), "too many neighbours fail"
    assert "sample 8: " in str(outcomes[1])
    assert [outcomes[0], *outcomes[3:]] == [[0, 2, 4, 6], [36], [36, 38]]
    outcomes = outcomes_of(of_rank(loader_kind, Numbers(12), engine, 2, 1, collate_fn=refuse_five))
    assert isinstance(outcomes.pop(1), EmptyBatch), "it cannot be collated"
    assert outcomes == [[1, 3], [9, 11]]


@everywhere
def test_an_empty_batch_of_a_shared_stream_is_raised(
    loader_kind: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stream = Stream(Numbers(20, {4, 6, 9}), splits=False)
    outcomes = outcomes_of(make(loader_kind, stream, 2, shard=True, on_error="skip", **on(engine)))
    assert isinstance(outcomes.pop(1), EmptyBatch)
    assert outcomes == [[0, 2], [8, 10], [12, 14], [16, 18]]
