"""Failing samples and interrupts, at the places where they do most harm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import feedline
from feedline.faults.policy import Policy
from feedline.pipes import pipe
from tests.pipes.streams import Counting, Plain

SKIP = Policy({ValueError: "skip"}, max_share=1.0)


def passes(x: int) -> bool:
    return x >= 0


class FailsAt:
    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __call__(self, x: int) -> int:
        if x in self.numbers:
            raise ValueError(f"{x} is broken")
        return x


@pytest.mark.parametrize("workers", [0, 3])
def test_a_batch_fails_with_its_sample_for_any_number_of_workers(workers: int) -> None:
    made = pipe(range(40)).filter(passes).map(FailsAt(1, 20)).batch(3, collate_fn=list)
    engine: Any = "thread" if workers else "inline"
    loader = feedline.Loader(made, None, workers=workers, engine=engine, on_error="skip")
    found = [x for batch in loader for x in batch]
    assert found == [x for x in range(40) if x // 3 not in (0, 6)]
    assert len(loader.faults) == 2


def test_a_failure_in_a_batch_that_is_dropped_takes_up_a_position_for_any_number_of_workers() -> None:
    batches: Any = pipe(Plain(range(5))).map(FailsAt(4)).batch(2, drop_last=True, collate_fn=tuple)
    for made in (batches.repeat(6), batches.concat(batches, batches), batches.interleave(batches.repeat(2))):
        wholes = []
        for workers in (0, 3):
            engine: Any = "thread" if workers else "inline"
            with feedline.Loader(made, None, workers=workers, engine=engine, on_error=SKIP) as loader:
                wholes.append(list(loader))
        assert set(wholes[0]) == {(0, 1), (2, 3)}
        assert wholes == [wholes[0]] * 2


@pytest.mark.parametrize("operator", ["map", "filter", "flat_map"])
def test_stop_iteration_in_a_function_is_an_error_and_not_the_end(operator: str) -> None:
    def first(x: int) -> Any:
        found = next(y for y in [x] if y % 50 != 49)
        return [found] if operator == "flat_map" else found

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(getattr(pipe(range(200)).filter(passes), operator)(first))


class InterruptsOnce:
    def __init__(self, number: int) -> None:
        self.number, self.has_raised = number, False

    def __call__(self, x: int) -> int:
        if x == self.number and not self.has_raised:
            self.has_raised = True
            raise KeyboardInterrupt
        return x


def take_despite_interrupts(iterator: Iterator[Any]) -> list[Any]:
    found = []
    while True:
        try:
            found.append(next(iterator))
        except KeyboardInterrupt:
            continue
        except StopIteration:
            return found


class Source:
    """Its iterator continues after an interrupt with the sample that was interrupted."""

    def __init__(self, function: Any) -> None:
        self.function, self.at = function, -1

    def __iter__(self) -> Source:
        return self

    def __next__(self) -> int:
        if self.at == 299:
            raise StopIteration
        found: int = self.function(self.at + 1)
        self.at += 1
        return found


@pytest.mark.parametrize("number", [0, 63, 299])
def test_an_interrupt_loses_nothing(number: int) -> None:
    def interrupting() -> Any:
        return pipe(range(300)).filter(passes).map(InterruptsOnce(number))

    whole = list(range(300))
    assert take_despite_interrupts(iter(interrupting())) == whole
    keep = InterruptsOnce(number)
    assert take_despite_interrupts(iter(pipe(range(300)).filter(lambda x: keep(x) >= 0))) == whole
    assert take_despite_interrupts(iter(pipe(Source(InterruptsOnce(number))))) == whole
    assert take_despite_interrupts(iter(interrupting().batch(4, collate_fn=list).unbatch())) == whole
    assert sorted(take_despite_interrupts(iter(interrupting().window_shuffle(32)))) == whole
    assert take_despite_interrupts(iter(interrupting().interleave())) == whole
    assert sorted(take_despite_interrupts(iter(interrupting().interleave(range(300, 330))))) == list(range(330))
    for size in (4, 7):
        each = InterruptsOnce(number)
        collating = pipe(range(300)).filter(passes).batch(size, collate_fn=lambda samples: [each(x) for x in samples])  # noqa: B023
        assert take_despite_interrupts(iter(collating.unbatch())) == whole


def test_a_repetition_without_samples_does_not_end_the_stream() -> None:
    calls: list[int] = []

    def sometimes(x: int) -> bool:
        calls.append(x)
        return len(calls) != 2

    assert list(pipe([5]).filter(sometimes).repeat(4)) == [5, 5, 5]


def test_a_state_saved_before_a_pending_failure_keeps_its_position() -> None:
    made: Any = pipe(Counting(range(9), 5)).enumerate()
    iterator = iter(made)
    for _ in range(5):
        next(iterator)
    again = iter(made)
    again.load_state_dict(iterator.state_dict())
    with pytest.raises(OSError, match="sample 5"):
        next(again)
    assert list(again) == [(6, 6), (7, 7), (8, 8)]
