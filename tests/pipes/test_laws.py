"""Properties of every pipe: it resumes at every step, and neither chunks, skips nor workers change its samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import feedline
from feedline.faults.policy import Policy
from tests.pipes.streams import Counting, Plain, saved
from tests.sampling import examples

Step = Callable[[Any], Any]


@pytest.fixture(scope="module", autouse=True)
def short_blocks() -> Iterator[None]:
    """Compute shuffled orders in small blocks, which is cheaper for thousands of passes over a few samples."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("feedline.pipes.operators.shuffle._BLOCK", 16)
        yield


SOURCES: list[Callable[[int], Any]] = [
    lambda n: list(range(n)),
    lambda n: Plain(range(n)),
    lambda n: Counting(range(n)),
]


def by_size(pipe: Any) -> Any:
    return pipe.mix(Plain(range(9)), weights=[2, 1], measure=lambda x: x + 1)


FLAT: list[Step] = [  # operators that return numbers for numbers
    lambda p: p.map(lambda x: x * 3 + 1),
    lambda p: p.map(lambda x: x + 1, num_threads=3),
    lambda p: p.filter(lambda x: x % 3 != 1),
    lambda p: p.flat_map(lambda x: [x] * (x % 3)),
    lambda p: p.batch(3, collate_fn=list).unbatch(),
    lambda p: p.batch(2).unbatch().map(int),
    lambda p: p.batch(2, drop_last=True, collate_fn=list).unbatch(),
    lambda p: p.window_shuffle(4, seed=3),
    lambda p: p.balance(lambda x: x % 5, 2, ranks=2, window=2),
    lambda p: p.take(9),
    lambda p: p.skip(2),
    lambda p: p.slice(1, 12, 3),
    lambda p: p.repeat(2),
    lambda p: p.repeat().take(25),
    lambda p: p.enumerate().map(lambda pair: pair[0] * 100 + pair[1]),
    lambda p: p.zip(range(7)).map(sum),
    lambda p: p.zip(Counting(range(30))).map(sum),
    lambda p: p.concat([50, 51]),
    lambda p: p.concat(Plain(range(3))),
    lambda p: p.interleave([70, 71, 72], Plain(range(2))),
    lambda p: feedline.pipe(range(40, 43)).repeat().interleave(p.repeat()).take(20),
    lambda p: p.mix(Counting(range(9)), weights=[2, 1]),
    lambda p: p.repeat().mix(feedline.pipe([8, 9]).shuffle().repeat(), weights={0: [1, 3], 7: [3, 1]}).take(21),
    lambda p: p.map(lambda x: [x + 1] * (x % 4 + 1)).pack(6, window=3).flat_map(lambda row: row["tokens"].tolist()),
    by_size,
    lambda p: p.shuffle(seed=5) if isinstance(p, feedline.pipes.MapPipe) else p,
]


# Without mixtures by size: they measure what they read, and a function that fails once fails in every worker.
PLAIN_STEPS = [step for step in FLAT if step is not by_size]


@st.composite
def pipes(draw: st.DrawFn) -> Any:
    source = draw(st.sampled_from(SOURCES))(draw(st.integers(1, 17)))
    steps = draw(st.lists(st.sampled_from(FLAT), max_size=4))
    made = feedline.pipe(source)
    for step in steps:
        made = step(made)
        if next(iter(made), None) is None:  # an empty source cannot be repeated
            return made
    return made.take(60)


def as_stream(pipe: Any) -> Any:
    """Return a pipe of any kind as a stream."""
    return pipe.filter(lambda _: True)


@given(pipes())
def test_a_pipe_resumes_at_every_step(pipe: Any) -> None:
    stream = as_stream(pipe)
    whole = list(stream)
    assert whole == list(pipe)
    iterator = iter(stream)
    for number in range(len(whole) + 1):
        again = iter(stream)
        again.load_state_dict(saved(iterator.state_dict()))
        assert list(again) == whole[number:]
        assert next(iterator, None) == (whole[number] if number < len(whole) else None)


@given(pipes(), st.data())
def test_chunks_and_skips_do_not_change_the_samples(pipe: Any, data: st.DataObject) -> None:
    stream = as_stream(pipe) if isinstance(pipe, feedline.pipes.MapPipe) else pipe
    whole = list(stream)
    iterator, at = iter(stream), 0
    while at < len(whole):
        count = data.draw(st.integers(1, 9))
        if data.draw(st.booleans()):
            skipped = iterator.skip(count)
            assert skipped == min(count, len(whole) - at)
            at += skipped
        else:
            found = iterator.take(count)
            assert found
            assert found == whole[at : at + len(found)]
            at += len(found)
        if data.draw(st.booleans()):
            state, iterator = saved(iterator.state_dict()), iter(stream)
            iterator.load_state_dict(state)
    assert iterator.take(3) == []
    assert iterator.skip(3) == 0


@pytest.mark.parametrize("number", range(len(FLAT)))
def test_the_number_of_workers_does_not_change_the_samples(number: int) -> None:
    def loader(workers: int) -> Any:
        pipe = FLAT[number](feedline.pipe(SOURCES[number % 3](17)))
        return feedline.Loader(pipe, 4, workers=workers, engine="thread" if workers else "inline", seed=7)

    whole = [batch.tolist() for batch in loader(0)]
    with contextlib.closing(loader(3)) as first, contextlib.closing(loader(2)) as second:
        iterator = iter(first)
        assert [next(iterator).tolist() for _ in whole[1:]] == whole[:-1]
        state = saved(first.state_dict())
        assert [batch.tolist() for batch in iterator] == whole[-1:]
        second.load_state_dict(state)
        assert [batch.tolist() for batch in second] == whole[-1:]


def test_arrays_are_batched() -> None:
    stream = feedline.pipe(Plain(np.arange(10).reshape(5, 2)))
    assert [batch.tolist() for batch in stream.batch(2)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]]]


def fails_sometimes(x: int) -> int:
    if x % 7 == 3:
        raise ValueError(f"{x} is broken")
    return x


def failing(source: Any, before: list[Step], after: list[Step]) -> Any:
    """Return a pipe of which a function in the middle fails for some samples."""
    pipe: Any = feedline.pipe(source)
    for step in (*before, lambda p: p.map(fails_sometimes), *after):
        pipe = step(pipe)
    return as_stream(pipe).take(40)


some_steps = st.lists(st.sampled_from(PLAIN_STEPS), max_size=2)
CALLS = st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=30)
"""Whether to skip, and how many."""


def outcomes(stream: Any, calls: list[tuple[bool, int]]) -> list[Any]:
    """Return what each position gives: a sample, a failure or "skipped"."""
    iterator = iter(stream)
    found: list[Any] = []
    for skips, count in [*calls, *[(False, 1)] * 60]:
        try:
            found += ["skipped"] * iterator.skip(count) if skips else iterator.take(count)
        except Exception:
            found.append("failed")
    return found


@example(
    [lambda p: p.flat_map(lambda x: [x] * (x % 3))],
    [lambda p: p.window_shuffle(4, seed=3)],
    [(False, 4), (True, 3), (False, 4)],
)
@given(some_steps, some_steps, CALLS)
def test_no_sample_is_lost_beside_one_that_fails(before: list[Step], after: list[Step], calls: Any) -> None:
    stream = failing(range(17), before, after)
    whole, found = outcomes(stream, []), outcomes(stream, calls)
    assert len(found) == len(whole)
    assert all(one in ("skipped", other) for one, other in zip(found, whole, strict=True))


@settings(max_examples=examples(30))
@given(st.sampled_from(SOURCES), some_steps, some_steps, st.data())
def test_failing_samples_do_not_make_results_depend_on_workers(
    source: Callable[[int], Any], before: list[Step], after: list[Step], data: st.DataObject
) -> None:
    policy = Policy({ValueError: "skip"}, max_share=1.0)

    def loader(workers: int) -> Any:
        engine: Any = "thread" if workers else "inline"
        made = failing(source(17), before, after)
        return feedline.Loader(made, 3, workers=workers, engine=engine, on_error=policy, collate_fn=list)

    with contextlib.closing(loader(0)) as one, contextlib.closing(loader(3)) as three:
        whole = list(one)
        assert list(three) == whole
    if whole:
        step = data.draw(st.integers(0, len(whole) - 1))
        with contextlib.closing(loader(2)) as first, contextlib.closing(loader(3)) as second:
            iterator = iter(first)
            assert [next(iterator) for _ in range(step)] == whole[:step]
            second.load_state_dict(saved(first.state_dict()))
            assert list(second) == whole[step:]
