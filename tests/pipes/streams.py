"""Iterable datasets, with and without a state of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from feedline.abc.source import StreamSource

# Any, throughout: samples and states of any kind.


class Plain:
    """An iterable dataset without a length and a state."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class Counting(StreamSource):
    """A stream whose iterator saves its position, and fails at the positions `bad`."""

    def __init__(self, samples: Sequence[Any], *bad: int) -> None:
        self.samples, self.bad = samples, bad

    def __iter__(self) -> Counter:
        return Counter(self.samples, *self.bad)


class Counter:
    def __init__(self, samples: Sequence[Any], *bad: int) -> None:
        self.samples, self.bad, self.at = samples, bad, 0

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> Any:
        if self.at >= len(self.samples):
            raise StopIteration
        self.at += 1
        if self.at - 1 in self.bad:
            raise OSError(f"sample {self.at - 1} is lost")
        return self.samples[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def saved(state: Any) -> Any:
    """Return a state after a round trip through a file."""
    return json.loads(json.dumps(state))
