"""Streams that note how many samples were read from them: 0, 1, ..."""

from __future__ import annotations

from collections.abc import Iterator


class Numbers:
    """A dataset that makes a generator."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.read += 1
            yield number
