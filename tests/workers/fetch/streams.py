"""Iterable datasets with and without states: each yields 0, 1, ... and notes how many samples were read from it."""

from __future__ import annotations

from collections.abc import Iterator


class Numbers:
    """0, 1, ...; notes how many were read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.read += 1
            yield number


class Counting:
    """An iterator with a state."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.place = 0
        self.read = 0

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        if self.place >= self.count:
            raise StopIteration
        self.place += 1
        self.read += 1
        return self.place - 1

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class IteratorHasState(Numbers):
    """Only the iterator can be saved."""

    iterator: Counting

    def __iter__(self) -> Counting:
        self.iterator = Counting(self.count)
        return self.iterator


class DatasetHasState(Numbers):
    """Only the dataset can be saved: `iter` goes on where it is."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.place = 0

    def __iter__(self) -> Iterator[int]:
        while self.place < self.count:
            self.read += 1
            self.place += 1
            yield self.place - 1

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class BothHaveState(IteratorHasState):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.name = "fresh"

    def state_dict(self) -> dict[str, str]:
        return {"name": self.name}

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.name = state["name"]
