"""The suite for streams fails for those that break the contract."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from feedline.abc import StreamSource
from feedline.testing import StreamContract


class Counting:
    """An iterator that can skip, and has a state."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        if self.place == 30:
            raise StopIteration
        self.place += 1
        return self.place - 1

    def skip(self, count: int) -> int:
        skipped = min(count, 30 - self.place)
        self.place += skipped
        return skipped

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Numbers(StreamSource):
    """A stream that keeps the contract."""

    def __iter__(self) -> Iterator[int]:
        return Counting()


class Shuffled(Numbers):
    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(30), 30))


class OneIterator(Numbers):
    def __init__(self) -> None:
        self.iterator = Counting()

    def __iter__(self) -> Iterator[int]:
        return self.iterator


class OnePlace(Numbers):
    """Its iterators share the place where they read."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        self.place = 0
        while self.place < 30:
            self.place += 1
            yield self.place - 1


class Unpicklable(Numbers):
    def __reduce__(self) -> Any:
        raise TypeError("no")


class SkipsTooFew(Numbers):
    def __iter__(self) -> Iterator[int]:
        class Iterator(Counting):
            def skip(self, count: int) -> int:
                super().skip(count - 1)
                return count

        return Iterator()


class LateState(Numbers):
    def __iter__(self) -> Iterator[int]:
        class Iterator(Counting):
            def state_dict(self) -> dict[str, int]:
                return {"place": self.place + 1}

        return Iterator()


def suite_for(kind: type[Numbers]) -> StreamContract:
    class Suite(StreamContract):
        def make_source(self, **options: Any) -> Any:
            return kind()

        def samples(self) -> list[Any]:
            return list(range(30))

    return Suite()


TESTS = [name for name in dir(StreamContract) if name.startswith("test_") and "start_method" not in name]


@pytest.mark.parametrize("test", TESTS)
def test_a_stream_that_keeps_the_contract_passes(test: str) -> None:
    getattr(suite_for(Numbers), test)()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Shuffled, "test_every_iterator_yields_all_samples"),
        (OneIterator, "test_every_iterator_yields_all_samples"),
        (OnePlace, "test_iterators_do_not_depend_on_each_other"),
        (Unpicklable, "test_a_stream_can_be_pickled"),
        (SkipsTooFew, "test_batches_are_the_same_with_every_engine"),
        (LateState, "test_a_loader_resumes_after_every_batch"),
    ],
)
def test_streams_that_break_the_contract_fail_the_suite(kind: type[Numbers], test: str) -> None:
    with pytest.raises((AssertionError, TypeError, ValueError)):
        getattr(suite_for(kind), test)()
