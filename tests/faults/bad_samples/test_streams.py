"""Failing samples of streams."""

from __future__ import annotations

import itertools

import pytest

from feedline.errors import BadOption, TooManyBadSamples
from feedline.faults import Policy, Retry
from tests.faults.bad_samples.samples import cut
from tests.faults.loaders import (
    Bad,
    Generated,
    Numbers,
    Stream,
    batches_of,
    everywhere,
    make,
    on,
    on_every_engine,
    plain,
)

pytestmark = pytest.mark.sample(16)


@on_every_engine
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


@on_every_engine
@pytest.mark.parametrize("batch_size", [3, None])
def test_skipped_samples_of_shared_streams_make_batches_shorter(
    loader_kind: str, engine: str, workers: int, batch_size: int | None
) -> None:
    bad = {0, 5, 9, 10, 11, 19}
    stream = Stream(Numbers(20, bad), splits=False)
    loader = make(loader_kind, stream, batch_size, shard=True, on_error="skip", seed=1, **on(engine, workers))
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
def test_a_stream_whose_samples_all_fail_raises(loader_kind: str, engine: str) -> None:
    for shard in (False, True):
        stream = Stream(Numbers(12, range(12)), splits=not shard)
        loader = make(loader_kind, stream, 4, shard=shard, on_error="skip", **on(engine))
        with pytest.raises(TooManyBadSamples):
            list(loader)


def test_replace_is_rejected_for_streams(loader_kind: str) -> None:
    with pytest.raises(BadOption, match="iterable"):
        make(loader_kind, Stream(Numbers()), on_error="replace")
    with pytest.raises(BadOption, match="iterable"):
        make(loader_kind, Stream(Numbers()), on_error=Policy({Bad: Retry(then="replace")}))


def test_samples_that_drop_last_leaves_out_count_as_seen() -> None:
    for engine, workers in (("inline", 0), ("thread", 4), ("process", 4)):
        for count, bad in ((7, {3}), (9, {8}), (31, {30})):
            loader = make(
                "DataLoader", Stream(Numbers(count, bad)), 8, drop_last=True, on_error="skip", **on(engine, workers)
            )
            batches = batches_of(loader)  # not TooManyBadSamples: at most one sample in seven failed
            assert all(len(batch) == 8 for batch in batches)
            assert [fault.message for fault in loader.faults] == [f"sample {index} is bad" for index in bad]
            assert loader.state_dict()["faults"]["seen"] == count
