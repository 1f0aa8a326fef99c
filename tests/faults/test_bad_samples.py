"""Samples that fail, through both loaders and on every engine: what is raised, what is delivered, what is logged."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.engines.runner import Runner
from feedline.errors import BadOption, TooManyBadSamples
from feedline.faults import Failure, Policy, Raise, Replace, Retry, Skip, Verdict
from feedline.samplers import DistributedSampler
from feedline.types import WorkerIdentity, WorkerSpec
from tests.faults.deaths import Once
from tests.faults.loaders import (
    ENGINES,
    LOADERS,
    Augmented,
    Bad,
    ByRng,
    Generated,
    Numbers,
    Stream,
    batches_of,
    everywhere,
    indices_of,
    make,
    on,
    on_every_crew,
    outcomes_of,
    plain,
)


@pytest.fixture(params=LOADERS)
def loader_kind(request: pytest.FixtureRequest) -> str:
    """Both loaders in turn."""
    name: str = request.param
    return name


def cut(numbers: Iterable[int], size: int = 4) -> list[list[int]]:
    """Cut numbers into batches."""
    left = list(numbers)
    return [left[start : start + size] for start in range(0, len(left), size)]


# -- raise -----------------------------------------------------------------------------------------------------------


class Unpicklable(Exception):
    """Holds what cannot be sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Particular(Exception):
    """Its constructor takes other arguments than its text."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} in {where}")
        self.code = code


class Hopeless(Exception):
    """Cannot be sent, and cannot be made from its text either."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


def raise_bad() -> None:
    raise Bad("three is bad")


def raise_key_error() -> None:
    raise KeyError("first line\nsecond line")


def raise_unpicklable() -> None:
    raise Unpicklable("with a lock")


def raise_particular() -> None:
    raise Particular(7, where="a file")


def raise_hopeless() -> None:
    raise Hopeless(1, 2)


RAISERS: dict[str, tuple[Callable[[], None], type[Exception], str]] = {
    "plain": (raise_bad, Bad, "three is bad"),
    "of several lines": (raise_key_error, KeyError, "second line"),
    "unpicklable": (raise_unpicklable, Unpicklable, "with a lock"),
    "other arguments": (raise_particular, Particular, "code 7 in a file"),
    "neither": (raise_hopeless, Hopeless, "1 and 2"),
}


class Raiser(Numbers):
    """Sample 3 raises what it is told to."""

    def __init__(self, how: str) -> None:
        super().__init__(12)
        self.how = how

    def __getitem__(self, index: int) -> int:
        if index == 3:
            RAISERS[self.how][0]()
        return index


@everywhere
@pytest.mark.parametrize("how", RAISERS)
def test_an_exception_comes_as_itself_with_notes(loader_kind: str, engine: str, how: str) -> None:
    loader = make(loader_kind, Raiser(how), **on(engine, 1))
    first, *rest = outcomes_of(loader)
    raiser, kind, text = RAISERS[how]
    rebuilt = engine == "process" and how in ("other arguments", "neither")  # as torch does, and with its text
    assert type(first) is (RuntimeError if rebuilt else kind)
    assert text in str(first)
    notes = "\n".join(first.__notes__)
    assert "sample 3" in notes
    assert "stage: fetch" in notes
    cause = "" if first.__cause__ is None else str(first.__cause__)
    assert raiser.__name__ in cause if engine == "process" else first.__traceback__ is not None
    assert ("worker 0" in notes) == (engine != "inline")
    assert rest == [[4, 5, 6, 7], [8, 9, 10, 11]], "it goes on with the next batch"
    [fault] = loader.faults
    assert (fault.index, fault.action, fault.stage, fault.attempt) == (3, "raise", "fetch", 1)
    assert fault.worker == (None if engine == "inline" else 0)
    assert fault.error.endswith(RAISERS[how][1].__name__), "what the sample raised, whatever became of it on its way"
    assert text in fault.message


class Transformed(Numbers):
    def __init__(self) -> None:
        super().__init__(8)
        self.transform = fail_five

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


def fail_five(sample: int) -> int:
    if sample == 5:
        raise Bad("in the transform")
    return sample


def refuse_five(samples: list[Any]) -> list[Any]:
    if 5 in samples:
        raise Bad("in collate")
    return samples


@everywhere
def test_notes_name_the_stage(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Transformed(), **on(engine, 1))
    raised = outcomes_of(loader)[1]
    assert "stage: transform" in "\n".join(raised.__notes__)
    assert loader.faults[0].stage == "transform"
    loader = make(loader_kind, Numbers(8), collate=refuse_five, **on(engine, 1))
    raised = outcomes_of(loader)[1]
    assert "stage: collate" in "\n".join(raised.__notes__)
    assert "4, 5, 6, 7" in "\n".join(raised.__notes__)
    [fault] = loader.faults
    assert (fault.stage, fault.index) == ("collate", [4, 5, 6, 7])


@everywhere
@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_the_loop_goes_on_after_an_exception(loader_kind: str, engine: str, batch_size: int | None) -> None:
    bad = {0, 4, 5, 11}
    loader = make(loader_kind, Numbers(12, bad), batch_size, **on(engine))
    outcomes = outcomes_of(loader)
    size = batch_size or 1
    for batch, outcome in zip(cut(range(12), size), outcomes, strict=True):
        if bad & set(batch):
            assert isinstance(outcome, Bad)
        else:
            assert outcome == (batch if batch_size else batch[0])
    assert indices_of(loader.faults) == ([0, 4, 5, 11] if size == 1 else [0, 4, 11])


@everywhere
@pytest.mark.parametrize("shard", [False, True])
def test_the_loop_goes_on_after_an_exception_of_a_stream(loader_kind: str, engine: str, shard: bool) -> None:
    stream = Stream(Numbers(12, {4}), splits=False)
    loader = make(loader_kind, stream, 3, shard=shard, **on(engine, 2 if shard else 1))
    outcomes = outcomes_of(loader)
    failed = [type(outcome) is Bad for outcome in outcomes]
    assert failed.count(True) == 1
    assert "sample 4" in "\n".join(outcomes[failed.index(True)].__notes__)
    assert outcomes[0] == [0, 1, 2]
    assert outcomes[-1][-1] == 11
    assert indices_of(loader.faults) == [4]


class Unopened(Stream):
    """Cannot be iterated over."""

    def __iter__(self) -> Iterator[Any]:
        raise Bad("no such file")


@pytest.mark.parametrize("shard", [False, True])
def test_threads_go_although_their_dataset_failed(loader_kind: str, shard: bool) -> None:
    """The exception has been through the training loop, and is not to hold it there for the worker that raised it."""
    before = set(threading.enumerate())

    def train() -> None:
        batches = iter(make(loader_kind, Unopened(Numbers()), shard=shard, workers=1, engine="thread"))
        with pytest.raises(Bad, match="no such file"):
            next(batches)
        # And is left, as a training loop does that gives up.

    train()
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


# -- skip ------------------------------------------------------------------------------------------------------------

SKIPPING = {
    "one": (20, {6}),
    "the first": (20, {0}),
    "the last": (20, {19}),
    "a whole batch": (20, {4, 5, 6, 7}),
    "the last batch": (20, {16, 17, 18, 19}),
    "many": (40, {1, 2, 3, 9, 12, 13, 14, 15, 20, 33, 38, 39}),
    "short last": (18, {3, 17}),
    "nearly all": (8, {0, 1, 2, 4, 5, 6, 7}),
}


@everywhere
@pytest.mark.parametrize(
    "case",
    [
        name if name in ("many", "short last", "nearly all") else pytest.param(name, marks=pytest.mark.slow)
        for name in SKIPPING
    ],
)
def test_skipped_samples_are_refilled(loader_kind: str, engine: str, case: str) -> None:
    count, bad = SKIPPING[case]
    policy = Policy(otherwise="skip", max_share=1.0)
    loader = make(loader_kind, Numbers(count, bad), on_error=policy, **on(engine))
    batches = batches_of(loader)
    good = count - len(bad)
    assert sorted(itertools.chain(*batches)) == sorted(set(range(count)) - bad), "each sample that works, once"
    assert [len(batch) for batch in batches] == [4] * (good // 4) + [good % 4] * bool(good % 4)
    assert sorted(indices_of(loader.faults)) == sorted(bad)
    assert {fault.action for fault in loader.faults} == {"skip"}
    assert loader.faults.quarantined == bad


def outcome_of(kind: str, dataset: Any, engine: str, workers: int = 2, **options: Any) -> tuple[Any, Any, Any]:
    """Return what two epochs deliver, and the samples in the log."""
    loader = make(kind, dataset, **options, **on(engine, workers))
    try:
        first = batches_of(loader)
        second = batches_of(loader)
    finally:
        loader.close()
    return first, second, [(fault.index, fault.action, fault.epoch, fault.replacement) for fault in loader.faults]


POLICIES: dict[str, Any] = {
    "skip": "skip",
    "skip without refill": Skip(refill=False),
    "replace": "replace",
    "replace by a function": Replace(by=functools.partial(lambda step, index: (index + step) % 33, 10)),
    "retry, then skip": Retry(1, then="skip", wait_s=0.001),
    "retry, then replace": Retry(1, then="replace", wait_s=0.0),
}


@functools.cache
def expected(kind: str, dataset: type[Numbers], policy: str) -> tuple[Any, Any, Any]:
    return outcome_of(kind, dataset(33, {2, 3, 9, 20, 31}), "inline", on_error=POLICIES[policy], seed=5, shuffle=True)


@on_every_crew
@pytest.mark.parametrize(
    "policy",
    [name if name in ("skip", "replace") else pytest.param(name, marks=pytest.mark.slow) for name in POLICIES],
)
def test_the_outcome_is_the_same_on_every_engine(loader_kind: str, engine: str, workers: int, policy: str) -> None:
    kind = ByRng if engine == "thread" else Augmented
    persistent = workers == 3
    outcome = outcome_of(
        loader_kind,
        kind(33, {2, 3, 9, 20, 31}),
        engine,
        workers,
        on_error=POLICIES[policy],
        seed=5,
        shuffle=True,
        persistent=persistent,
    )
    assert outcome == expected(loader_kind, kind, policy)


def test_both_loaders_agree() -> None:
    for policy in POLICIES:
        assert expected("Loader", Augmented, policy) == expected("DataLoader", Augmented, policy), policy


@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("process", 1), ("process", 2)])
@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("in_order", [True, False])
def test_repeated_indices(engine: str, workers: int, policy: str, in_order: bool) -> None:
    """A sampler may yield a sample that failed again, before and after its failure is known."""
    sampler = [0, 1, 2, 3, 2, 5, 6, 7, 8, 2, 10, 11, 12, 13, 14, 2, 16, 2]
    options = {} if in_order or engine == "inline" else {"in_order": False}
    loader = make("Loader", Numbers(20, {2}), sampler=sampler, on_error=policy, **options, **on(engine, workers))
    batches = batches_of(loader)
    delivered = sorted(itertools.chain(*batches))
    if policy == "skip":
        assert delivered == sorted(index for index in sampler if index != 2)
    else:
        assert delivered == sorted(3 if index == 2 else index for index in sampler)
    assert indices_of(loader.faults) == [2], "told once: from then on it is in quarantine"


@pytest.mark.parametrize(("engine", "workers"), [("thread", 2), ("process", 1), ("process", 3)])
def test_large_epochs_with_many_failures(engine: str, workers: int) -> None:
    """So many batches that the reserve, some way ahead, is used up several times."""
    bad = {index for index in range(900) if index % 3 == 0 or 400 < index < 460}
    inline = batches_of(make("Loader", Numbers(900, bad), on_error="skip"))
    assert sorted(itertools.chain(*inline)) == sorted(set(range(900)) - bad)
    assert {len(batch) for batch in inline[:-1]} == {4}
    assert batches_of(make("Loader", Numbers(900, bad), on_error="skip", **on(engine, workers))) == inline


@everywhere
def test_everything_fails(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(10, range(10)), on_error="skip", **on(engine))
    for _ in range(3):
        delivered = []
        with pytest.raises(TooManyBadSamples, match="max_share") as caught:
            delivered.extend(loader)
        assert delivered == []
        assert len(caught.value.faults) == 10
        assert "sample 0: " in str(caught.value)


@everywhere
def test_everything_may_fail_if_that_was_said(loader_kind: str, engine: str) -> None:
    policy = Policy(otherwise="skip", max_share=1.0)
    loader = make(loader_kind, Numbers(10, range(10)), on_error=policy, **on(engine))
    assert batches_of(loader) == []
    assert len(loader.faults) == 10


@everywhere
@pytest.mark.parametrize("batch_size", [4, None])
def test_without_refill_batches_are_short(loader_kind: str, engine: str, batch_size: int | None) -> None:
    bad = {1, 4, 5, 6, 7, 9}
    loader = make(loader_kind, Numbers(15, bad), batch_size, on_error=Skip(refill=False), **on(engine))
    batches = batches_of(loader)
    if batch_size is None:
        assert batches == [index for index in range(15) if index not in bad]
    else:
        assert batches == [[0, 2, 3], [8, 10, 11], [12, 13, 14]], "and none is empty"
    assert not any(fault.refilled for fault in loader.faults)


@everywhere
def test_batches_of_a_batch_sampler_are_left_short(loader_kind: str, engine: str) -> None:
    batch_sampler = [[0, 1], [2, 3, 4], [5], [6, 7]]
    loader = make(loader_kind, Numbers(8, {1, 5}), batch_sampler=batch_sampler, on_error="skip", **on(engine))
    assert batches_of(loader) == [[0], [2, 3, 4], [6, 7]]
    assert indices_of(loader.faults) == [1, 5]
    assert not any(fault.refilled for fault in loader.faults)


@everywhere
def test_single_samples(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(10, {0, 3, 4, 9}), None, on_error="skip", **on(engine))
    assert sorted(batches_of(loader)) == [1, 2, 5, 6, 7, 8]
    assert sorted(indices_of(loader.faults)) == [0, 3, 4, 9]


@everywhere
@pytest.mark.parametrize(("count", "bad"), [(20, {3}), (18, {17}), (17, {0}), (20, {1, 2, 3, 4, 17})])
def test_drop_last_never_delivers_a_short_batch(loader_kind: str, engine: str, count: int, bad: set[int]) -> None:
    loader = make(loader_kind, Numbers(count, bad), on_error="skip", drop_last=True, **on(engine))
    batches = batches_of(loader)
    assert {len(batch) for batch in batches} == {4}
    delivered = list(itertools.chain(*batches))
    assert len(set(delivered)) == len(delivered)
    assert not bad & set(delivered)
    inside = count // 4 * 4  # what drop_last leaves of the order
    assert len(batches) == (inside - len(bad & set(range(inside)))) // 4


@everywhere
def test_a_batch_that_cannot_be_collated_is_left_out(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(12), collate=refuse_five, on_error="skip", **on(engine))
    assert batches_of(loader) == [[0, 1, 2, 3], [8, 9, 10, 11]]
    [fault] = loader.faults
    assert (fault.index, fault.stage, fault.action) == ([4, 5, 6, 7], "collate", "skip")
    assert not loader.faults.quarantined, "it says nothing of the samples"
    loader.close()


# -- streams ---------------------------------------------------------------------------------------------------------


@on_every_crew
def test_streams_read_on(loader_kind: str, engine: str, workers: int) -> None:
    bad = {0, 5, 6, 7, 19}
    loader = make(loader_kind, Stream(Numbers(20, bad)), 3, shard=False, on_error="skip", **on(engine, workers))
    batches = batches_of(loader)
    # Only torch's loader tells a dataset which worker it is in; without that each worker reads a copy.
    copies = max(1, workers) if loader_kind == "Loader" else 1
    assert sorted(itertools.chain(*batches)) == sorted([*(set(range(20)) - bad)] * copies)
    short = [batch for batch in batches if len(batch) < 3]
    assert len(short) <= max(1, workers), "only the last of each stream"
    assert [] not in batches
    assert len(loader.faults) == len(bad) * copies
    assert {fault.message for fault in loader.faults} == {f"sample {index} is bad" for index in bad}


@on_every_crew
@pytest.mark.parametrize("batch_size", [3, None])
def test_shared_streams_leave_batches_short(
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
def test_a_stream_that_fails_altogether(loader_kind: str, engine: str) -> None:
    for shard in (False, True):
        stream = Stream(Numbers(12, range(12)), splits=not shard)
        loader = make(loader_kind, stream, 4, shard=shard, on_error="skip", **on(engine))
        with pytest.raises(TooManyBadSamples):
            list(loader)


class Flaky(Numbers):
    """Samples of `bad` fail so many times before they work."""

    def __init__(self, once: Once, count: int, bad: Iterable[int], times: int) -> None:
        super().__init__(count, bad)
        self.once = once
        self.times = times

    def __getitem__(self, index: int) -> Any:
        if index in self.bad and self.once.times(index) <= self.times:
            raise ConnectionError(f"{index} is not there yet")
        return index


class FlakyReader(Iterator[int]):
    """Its iterator does not move on when a sample fails."""

    def __init__(self, samples: Flaky) -> None:
        self.samples = samples
        self.next = 0

    def __next__(self) -> int:
        if self.next >= len(self.samples):
            raise StopIteration
        sample: int = self.samples[self.next]
        self.next += 1
        return sample


class FlakyStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        return FlakyReader(self.samples)


@everywhere
def test_a_stream_is_asked_again(loader_kind: str, engine: str, tmp_path: Path) -> None:
    once = Once(tmp_path)
    stream = FlakyStream(Flaky(once, 10, {3, 9}, 2))
    loader = make(loader_kind, stream, 4, shard=False, on_error=Retry(3, wait_s=0.001), **on(engine, 1))
    assert batches_of(loader) == cut(range(10))
    assert [(fault.action, fault.attempt) for fault in loader.faults] == [("retry", 3), ("retry", 3)]


def test_streams_have_no_samples_to_replace_others(loader_kind: str) -> None:
    with pytest.raises(BadOption, match="iterable"):
        make(loader_kind, Stream(Numbers()), on_error="replace")
    with pytest.raises(BadOption, match="iterable"):
        make(loader_kind, Stream(Numbers()), on_error=Policy({Bad: Retry(then="replace")}))


# -- ranks -----------------------------------------------------------------------------------------------------------


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


# -- retry -----------------------------------------------------------------------------------------------------------


@everywhere
def test_retries_until_it_works(loader_kind: str, engine: str, tmp_path: Path) -> None:
    once = Once(tmp_path)
    dataset = Flaky(once, 12, {2, 7}, times=2)
    loader = make(loader_kind, dataset, on_error=Retry(3, wait_s=0.001), **on(engine))
    assert batches_of(loader) == cut(range(12))
    assert [(fault.index, fault.action, fault.attempt) for fault in loader.faults] == [(2, "retry", 3), (7, "retry", 3)]
    assert once.count(2) == once.count(7) == 3
    assert not loader.faults.quarantined
    assert loader.stats()["faults"]["retry"] == 2


@everywhere
@pytest.mark.parametrize("then", ["skip", "replace", "raise"])
def test_retries_end(loader_kind: str, engine: str, then: str, tmp_path: Path) -> None:
    once = Once(tmp_path)
    dataset = Flaky(once, 12, {5}, times=99)
    policy = Policy({ConnectionError: Retry(2, then=then, wait_s=0.001)})  # type: ignore[arg-type]  # one of the names
    loader = make(loader_kind, dataset, on_error=policy, **on(engine))
    outcomes = outcomes_of(loader)
    assert once.count(5) == 3, "the first try and two further"
    [fault] = loader.faults
    assert (fault.index, fault.action, fault.attempt) == (5, then, 3)
    if then == "raise":
        assert isinstance(outcomes[1], ConnectionError)
        assert [outcomes[0], outcomes[2]] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    elif then == "skip":
        assert sorted(itertools.chain(*outcomes)) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    else:
        assert outcomes == [[0, 1, 2, 3], [4, 6, 6, 7], [8, 9, 10, 11]]
        assert fault.replacement == 6


def test_waits_double(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    pauses = WorkerPauses(waits)
    monkeypatch.setattr("feedline.loader.batches.Runner", pauses)
    loader = feedline.Loader(Numbers(2, {0}), 1, on_error=Retry(4, then="skip", wait_s=0.1, longest_s=0.4))
    assert batches_of(loader) == [[1]]
    assert len(waits) == 4
    for wait_s, base_s in zip(waits, [0.1, 0.2, 0.4, 0.4], strict=True):
        assert 0.5 * base_s <= wait_s < 1.5 * base_s


class WorkerPauses:
    """Makes the worker of an inline loader, which notes how long it would wait and does not."""

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits

    def __call__(self, spec: WorkerSpec, worker: WorkerIdentity | None) -> Runner:
        return Runner(spec, worker, self._waits.append)


def test_a_retry_in_a_thread_does_not_outlive_its_loader() -> None:
    """A worker that waits for half an hour goes when nobody wants its batch any more."""
    began = threading.Event()

    class Slow(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                began.set()
            return super().__getitem__(index)

    policy = Retry(1, wait_s=1800.0, longest_s=1800.0)
    batches = iter(feedline.Loader(Slow(8, {4}), 4, workers=1, engine="thread", on_error=policy))
    assert plain(next(batches)) == [0, 1, 2, 3]
    assert began.wait(30)
    batches.close()
    # The thread is gone: the fixture that watches over every test would tell.


@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("process", 2)])
def test_a_further_try_draws_the_same_numbers(loader_kind: str, engine: str, workers: int, tmp_path: Path) -> None:
    class FlakyAugmented(Augmented):
        def __init__(self, once: Once | None) -> None:
            super().__init__(12)
            self.once = once

        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            if index in (2, 7) and self.once is not None and self.once.times(index) % 3:
                raise Bad(f"{index} drew {sample}")
            return sample

    clean = batches_of(make(loader_kind, FlakyAugmented(None), seed=3, shuffle=True))
    loader = make(
        loader_kind,
        FlakyAugmented(Once(tmp_path)),
        seed=3,
        shuffle=True,
        on_error=Retry(5, wait_s=0.0),
        **on(engine, workers),
    )
    assert batches_of(loader) == clean


# -- replace ---------------------------------------------------------------------------------------------------------


@everywhere
def test_neighbours_take_the_place_of_samples(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(12, {2, 3, 11}), on_error="replace", **on(engine))
    expected = [[0, 1, 4, 4], [4, 5, 6, 7], [8, 9, 10, 0]]
    assert batches_of(loader) == expected
    assert [(fault.index, fault.replacement, fault.action) for fault in loader.faults] == [
        (2, 4, "replace"),
        (3, 4, "replace"),
        (11, 0, "replace"),
    ]
    assert batches_of(loader) == expected, "from now on without asking"
    assert len(loader.faults) == 3


@everywhere
def test_a_function_names_the_replacement(loader_kind: str, engine: str) -> None:
    names = {"a": 1, "b": None, "c": 3, "d": 4}

    class Named:
        def __getitem__(self, name: str) -> int:
            if names[name] is None:
                raise Bad(name)
            return names[name]  # type: ignore[return-value]

        def __len__(self) -> int:
            return 4

    loader = make(
        loader_kind,
        Named(),
        2,
        sampler=["a", "b", "c", "d"],
        on_error=Replace(by=lambda name: "d"),
        **on(engine),
    )
    assert batches_of(loader) == [[1, 4], [3, 4]]
    assert batches_of(loader) == [[1, 4], [3, 4]]
    [fault] = loader.faults
    assert (fault.index, fault.replacement) == ("b", "d")
    without = make(loader_kind, Named(), 2, sampler=["a", "b"], on_error="replace", **on(engine))
    with pytest.raises(Bad) as caught:
        list(without)
    assert "no neighbour" in "\n".join(caught.value.__notes__)


@everywhere
def test_no_neighbour_works(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(40, range(1, 40)), on_error="replace", **on(engine, 1))
    first = outcomes_of(loader)[0]
    assert type(first) is Bad
    assert "instead of 1" in "\n".join(first.__notes__)


# -- policies and budgets --------------------------------------------------------------------------------------------


class Various(Numbers):
    """Fails with one exception or another."""

    def __getitem__(self, index: int) -> int:
        errors = {1: OSError("disk"), 4: ValueError("shape"), 6: KeyError("name"), 9: ZeroDivisionError()}
        if index in errors:
            raise errors[index]
        return index


@everywhere
def test_policies_by_class(loader_kind: str, engine: str) -> None:
    policy = Policy({OSError: "skip", "ValueError": "replace", LookupError: Skip(refill=False)}, otherwise=Raise())
    loader = make(loader_kind, Various(15), 3, on_error=policy, **on(engine))
    outcomes = outcomes_of(loader)
    assert isinstance(outcomes.pop(3), ZeroDivisionError)
    assert outcomes == [[0, 12, 2], [3, 5, 5], [7, 8], [13, 14]]
    assert [(fault.index, fault.action) for fault in loader.faults] == [
        (1, "skip"),
        (4, "replace"),
        (6, "skip"),
        (9, "raise"),
    ]


def decide(failure: Failure) -> Any:
    """Skip odd ones, replace 4 by hand, try the rest again for ever so often."""
    if failure.index % 2:
        return "skip"
    if failure.index == 4:
        return Verdict("replace", index=0)
    return Retry(1, then="raise", wait_s=0.0)


@everywhere
def test_a_function_decides(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(16, {3, 4, 8}), on_error=decide, **on(engine))
    outcomes = outcomes_of(loader)
    assert isinstance(outcomes.pop(2), Bad)
    assert outcomes == [[0, 1, 2, 12], [0, 5, 6, 7], [13, 14, 15]]
    assert [(fault.index, fault.action) for fault in loader.faults] == [(3, "skip"), (4, "replace"), (8, "raise")]


@everywhere
def test_a_function_that_fails_or_answers_nonsense(loader_kind: str, engine: str) -> None:
    def fails(failure: Failure) -> Any:
        raise ArithmeticError("in the policy")

    outcomes = outcomes_of(make(loader_kind, Numbers(8, {1}), on_error=fails, **on(engine)))
    assert isinstance(outcomes[0], ArithmeticError)
    assert outcomes[1:] == [[4, 5, 6, 7]]

    outcomes = outcomes_of(make(loader_kind, Numbers(8, {1}), on_error=lambda failure: "perhaps", **on(engine)))
    assert isinstance(outcomes[0], BadOption)
    assert "perhaps" in str(outcomes[0])
    assert outcomes[1:] == [[4, 5, 6, 7]]


@on_every_crew
def test_a_budget_of_samples(loader_kind: str, engine: str, workers: int) -> None:
    policy = Policy(otherwise="skip", max_failures=2)
    loader = make(loader_kind, Numbers(40, {2, 9, 20, 30}), on_error=policy, **on(engine, workers))
    batches = iter(loader)
    delivered: list[Any] = []
    with pytest.raises(TooManyBadSamples, match="max_failures=2") as caught:
        delivered.extend(plain(batch) for batch in batches)
    assert len(delivered) == 5, "up to the batch that needs the third"
    assert indices_of(caught.value.faults) == [2, 9, 20]
    with pytest.raises(TooManyBadSamples):
        next(batches)


@everywhere
def test_a_budget_is_for_an_epoch(loader_kind: str, engine: str) -> None:
    """Streams meet the same bad samples in every epoch."""
    policy = Policy(otherwise="skip", max_failures=2)
    stream = Stream(Numbers(12, {1, 5}), splits=False)
    loader = make(loader_kind, stream, 4, shard=True, on_error=policy, **on(engine))
    for _ in range(3):
        assert sorted(itertools.chain(*batches_of(loader))) == [0, 2, 3, 4, 6, 7, 8, 9, 10, 11]


@everywhere
def test_a_budget_as_a_share(loader_kind: str, engine: str) -> None:
    policy = Policy(otherwise="skip", max_share=0.1)
    bad = set(range(100, 120))
    loader = make(loader_kind, Numbers(400, bad), 10, on_error=policy, **on(engine))
    delivered: list[Any] = []
    with pytest.raises(TooManyBadSamples, match=r"max_share=0\.1"):
        delivered.extend(plain(batch) for batch in loader)
    assert 10 <= len(delivered) < 13
    few = make(loader_kind, Numbers(400, {5, 105, 305}), 10, on_error=policy, **on(engine))
    assert len(batches_of(few)) == 40


@everywhere
def test_a_short_epoch_is_judged_at_its_end(loader_kind: str, engine: str) -> None:
    policy = Policy(otherwise="skip", max_share=0.1)
    loader = make(loader_kind, Numbers(16, {1, 2}), on_error=policy, **on(engine))
    delivered: list[Any] = []
    with pytest.raises(TooManyBadSamples):
        delivered.extend(plain(batch) for batch in loader)
    assert sorted(itertools.chain(*delivered)) == [0, *range(3, 16)]


@everywhere
@pytest.mark.parametrize("kind", ["map", "own stream", "shared stream"])
def test_the_share_counts_samples_that_worked(loader_kind: str, engine: str, kind: str) -> None:
    """One in a hundred fails, and one in twenty may."""
    samples = Numbers(1200, range(50, 1200, 100))
    policy = Policy(otherwise="skip", max_share=0.05)
    dataset = samples if kind == "map" else Stream(samples, splits=False)
    options = {} if kind == "map" else {"shard": kind == "shared stream"}
    loader = make(loader_kind, dataset, 10, on_error=policy, **options, **on(engine, 1))
    assert sum(map(len, batches_of(loader))) == 1188


# -- datasets that are asked in other ways ---------------------------------------------------------------------------


class Together(Numbers):
    """Is asked for the samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@everywhere
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_datasets_that_make_batches_at_once(loader_kind: str, engine: str, policy: str) -> None:
    bad = {2, 3, 9}
    loader = make(loader_kind, Together(18, bad), on_error=policy, **on(engine))
    same = make(loader_kind, Numbers(18, bad), on_error=policy)
    assert batches_of(loader) == batches_of(same)
    assert indices_of(loader.faults) == indices_of(same.faults)


class AugmentedTogether(Augmented):
    """The same, with random numbers."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_batches_that_are_made_one_by_one_draw_as_if_they_always_were(engine: str) -> None:
    """What the attempt to make them at once has drawn is forgotten."""
    options: dict[str, Any] = {"on_error": "skip", "seed": 3}
    apart = batches_of(make("Loader", Augmented(16, {1, 9}), **options))
    together = batches_of(make("Loader", AugmentedTogether(16, {1, 9}), **options, **on(engine, 1)))
    assert [together[0], together[2]] == [apart[0], apart[2]]


@pytest.mark.parametrize("engine", ENGINES)
def test_indices_that_are_not_there(engine: str) -> None:
    loader = make("Loader", np.arange(10), sampler=[0, 1, 99, 3, 4, 5, -77, 7], on_error="skip", **on(engine))
    batches = batches_of(loader)
    assert sorted(itertools.chain(*batches)) == [0, 1, 3, 4, 5, 7]
    assert indices_of(loader.faults) == [99, -77]
    tensors = torch.utils.data.TensorDataset(torch.arange(10))
    other = make("DataLoader", tensors, sampler=[0, 1, 99, 3, 4, 5, 66, 7], on_error="skip", **on(engine))
    assert sorted(itertools.chain(*(batch[0] for batch in batches_of(other)))) == [0, 1, 3, 4, 5, 7]
    assert indices_of(other.faults) == [99, 66]


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "array": np.array,
    "tensor": torch.tensor,
    "tuple": tuple,
    "range": lambda batch: range(batch[0], batch[-1] + 1),
    "NumPy's numbers": lambda batch: [np.int64(index) for index in batch],
    "iterator": iter,
}


class Formed:
    """A batch sampler whose batches are of another form than lists."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return map(FORMS[self.form], cut(range(12), 3))


class Plain(Numbers):
    """Takes indices of any kind of number."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(int(index))


@everywhere
@pytest.mark.parametrize("form", FORMS)
def test_batches_of_any_form(loader_kind: str, engine: str, form: str) -> None:
    if (form, engine) == ("iterator", "process"):
        return  # such a batch cannot be sent
    for policy, middle in (("skip", [3, 5]), ("replace", [3, 5, 5])):
        loader = make(loader_kind, Plain(12, {4}), batch_sampler=Formed(form), on_error=policy, **on(engine, 1))
        for _ in range(2):
            assert batches_of(loader) == [[0, 1, 2], middle, [6, 7, 8], [9, 10, 11]]
        assert indices_of(loader.faults) == [4]


class Listed(Numbers):
    """An index is a list of numbers."""

    def __getitem__(self, index: Any) -> Any:
        return [super(Listed, self).__getitem__(number) for number in index]


@everywhere
def test_indices_that_are_lists_are_one_sample_each(loader_kind: str, engine: str) -> None:
    sampler = [[0, 1], [2, 3], [4, 5], [6, 7]]
    loader = make(loader_kind, Listed(8, {4}), None, sampler=sampler, on_error="skip", **on(engine, 1))
    for _ in range(2):
        assert sorted(batches_of(loader)) == [[0, 1], [2, 3], [6, 7]]
    assert indices_of(loader.faults) == [[4, 5]]
    assert [4, 5] in loader.faults.quarantined


class Shy(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def raise_local() -> None:
    class Local(Exception):
        pass

    raise Local("nobody can import it")


def raise_shy() -> None:
    raise Shy


def raise_long() -> None:
    raise Bad("x" * 3_000_000)


def recurse() -> None:
    recurse()


ODD = {"local": raise_local, "shy": raise_shy, "long": raise_long, "recursion": recurse}


class Odd(Numbers):
    def __init__(self, how: str) -> None:
        super().__init__(8)
        self.how = how

    def __getitem__(self, index: int) -> int:
        if index == 3:
            ODD[self.how]()
        return index


@everywhere
@pytest.mark.parametrize("how", ODD)
def test_odd_exceptions(loader_kind: str, engine: str, how: str) -> None:
    first, *rest = outcomes_of(make(loader_kind, Odd(how), **on(engine, 1)))
    assert isinstance(first, Exception)
    assert "sample 3" in "\n".join(first.__notes__)
    assert rest == [[4, 5, 6, 7]]
    loader = make(loader_kind, Odd(how), on_error="skip", **on(engine, 1))
    assert sorted(itertools.chain(*batches_of(loader))) == [0, 1, 2, 4, 5, 6, 7]
    assert indices_of(loader.faults) == [3]
    assert len(loader.faults[0].message) <= 500
    assert json.loads(json.dumps(loader.state_dict()))


def virtual(kind: str, engine: str, workers: int) -> tuple[Any, ...]:
    loader = make(kind, ByRng(23, {4, 9}), on_error="skip", seed=3, shuffle=True, **on(engine, workers))
    epochs = [batches_of(epoch) for epoch in itertools.islice(loader.virtual_epochs(7), 4)]
    loader.close()
    return epochs, indices_of(loader.faults)


@on_every_crew
def test_virtual_epochs_keep_their_length(loader_kind: str, engine: str, workers: int) -> None:
    epochs, faults = virtual(loader_kind, engine, workers)
    assert [len(epoch) for epoch in epochs] == [7] * 4
    assert {len(batch) for epoch in epochs for batch in epoch} == {4}
    assert sorted(faults) == [4, 9]
    assert (epochs, faults) == virtual(loader_kind, "inline", 0)


def test_batches_that_workers_share_need_no_policy() -> None:
    """With one, each is made by one worker: a part of a batch has no place for other samples."""
    options: dict[str, Any] = {"on_error": "skip", "seed": 3}
    loader = make("DataLoader", Augmented(64, {5, 20}), 8, workers=2, split=2, **options)
    assert batches_of(loader) == batches_of(make("DataLoader", Augmented(64, {5, 20}), 8, **options))


def test_in_no_order_nothing_is_lost(loader_kind: str) -> None:
    bad = {2, 3, 9, 20, 31}
    loader = make(loader_kind, Numbers(33, bad), on_error="skip", in_order=False, workers=3)
    for _ in range(3):
        batches = batches_of(loader)
        assert sorted(itertools.chain(*batches)) == sorted(set(range(33)) - bad)
        assert sorted(map(len, batches)) == [4] * 7
    assert sorted(indices_of(loader.faults)) == sorted(bad)
