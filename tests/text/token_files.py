"""Writes token files for tests, and computes the expected blocks of the same documents with plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.text import TokenWriter

Documents = Sequence[Sequence[int]]
IGNORED = -100

documents = st.lists(st.lists(st.integers(0, 65_535), max_size=7), max_size=12)
files = st.lists(documents, min_size=1, max_size=4).filter(lambda found: any(map(any, found)))


def write(path: Path, documents: Documents, dtype: str = "uint16", **options: Any) -> Path:  # Any: of TokenWriter
    with TokenWriter(path, dtype=dtype, **options) as writer:
        writer.write(documents)
    return path


def joined(files: Sequence[Documents]) -> NDArray[np.int64]:
    return np.array([token for documents in files for document in documents for token in document], np.int64)


class Expected:
    """Computes every column of every block, token by token."""

    def __init__(self, files: Sequence[Documents], block: int, stride: int, labels: str | None) -> None:
        self.tokens = joined(files)
        self.number: list[int] = []
        self.place: list[int] = []
        count = 0
        for documents in files:
            for document in documents:
                self.number += [count] * len(document)
                self.place += range(len(document))
                count += 1
        self.block, self.stride, self.labels = block, stride, labels
        self.width = block + (labels == "shifted")

    def __len__(self) -> int:
        return len([0 for start in range(0, len(self.tokens), self.stride) if start + self.width <= len(self.tokens)])

    def block_at(self, index: int, *, mask: bool, positions: bool | str, segments: bool) -> dict[str, list[int]]:
        start = index * self.stride
        inside = range(start, start + self.block)
        found = {"tokens": [int(self.tokens[t]) for t in inside]}
        if self.labels is not None:
            shift = int(self.labels == "shifted")
            found["labels"] = [int(self.tokens[t + shift]) for t in inside]
            for at, t in enumerate(inside):
                target = t + shift
                if mask and target > start and self.number[target] != self.number[target - 1]:
                    found["labels"][at] = IGNORED
        if positions:
            found["positions"] = [
                self.place[t]
                if positions == "document"
                else sum(self.number[u] == self.number[t] for u in inside if u < t)
                for t in inside
            ]
        if segments:
            found["segment_ids"] = [len({self.number[u] for u in inside if u <= t}) for t in inside]
        return found


def plain(sample: object) -> Any:  # Any: a list, or a dict of lists
    if isinstance(sample, dict):
        return {name: plain(value) for name, value in sample.items()}
    return np.asarray(sample).tolist()
