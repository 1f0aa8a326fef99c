"""`pack`: every token comes once, and rows resume anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline.errors import BadOption, CollateError
from tests.pipes.streams import Plain, saved

Documents = list[list[int]]


class WithLengths:
    """Documents of known lengths; records which ones are read."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        self.lengths = np.array([len(document) for document in documents], np.int64)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> list[int]:
        self.read.append(index)
        return self.documents[index]


def numbered(lengths: list[int]) -> Documents:
    """Return documents of these lengths, in which no two tokens are equal."""
    ends = np.cumsum(lengths).tolist()
    return [list(range(end - length + 1, end + 1)) for end, length in zip(ends, lengths, strict=True)]


def shown(row: dict[str, Any]) -> list[tuple[int, int, int]]:
    names = ("tokens", "segment_ids", "positions")
    return list(zip(*(np.asarray(row[name]).tolist() for name in names), strict=True))


def segments(rows: list[list[tuple[int, int, int]]]) -> Documents:
    """Return the pieces of documents in rows."""
    found = []
    for row in rows:
        numbers = sorted({segment for _, segment, _ in row} - {0})
        found += [[token for token, segment, _ in row if segment == number] for number in numbers]
    return found


lengths = st.lists(st.integers(0, 13), max_size=25)
strategies = st.sampled_from(["concat", "first_fit", "best_fit"])
sources = st.sampled_from([list, Plain, WithLengths])


@given(lengths, strategies, sources, st.integers(1, 9), st.integers(1, 6))
def test_every_token_is_in_one_row_and_rows_resume_at_every_step(
    lengths: list[int], strategy: Any, source: Any, length: int, window: int
) -> None:
    documents = numbered(lengths)
    pipe: Any = feedline.pipe(source(documents)).pack(length, strategy=strategy, window=window)
    rows = [shown(row) for row in pipe]
    pieces = segments(rows)
    assert sorted(token for piece in pieces for token in piece) == list(range(1, sum(lengths) + 1))
    assert all(len(row) == length for row in rows)
    if strategy == "concat":
        assert all(segment for row in rows[:-1] for _, segment, _ in row)
        assert [token for piece in pieces for token in piece] == list(range(1, sum(lengths) + 1))
    else:
        assert {tuple(piece) for piece in pieces} >= {tuple(one) for one in documents if 0 < len(one) <= length}
    iterator = iter(pipe)
    for number in range(len(rows) + 1):
        again = iter(pipe)
        again.load_state_dict(saved(iterator.state_dict()))
        assert [shown(row) for row in again] == rows[number:]
        skipping = iter(pipe)
        assert skipping.skip(number) == number
        assert [shown(row) for row in skipping] == rows[number:]
        next(iterator, None)


def test_with_known_lengths_only_the_documents_of_a_row_are_read() -> None:
    source = WithLengths(numbered([4] * 40))
    rows: Any = iter(feedline.pipe(source).shuffle(seed=1).pack(8, window=10))
    assert rows.skip(7) == 7
    assert source.read == []
    next(rows)
    assert len(source.read) == 2


def test_the_length_of_packed_documents() -> None:
    source = WithLengths(numbered([3, 5, 4, 4, 8]))
    assert len(feedline.pipe(source).pack(8)) == 3
    assert len(feedline.pipe(source).pack(8, strategy="concat")) == 3
    with pytest.raises(TypeError, match="not known"):
        len(feedline.pipe([[1, 2]]).pack(8))


def test_a_failing_document_costs_one_place() -> None:
    class Broken(WithLengths):
        def __getitem__(self, index: int) -> list[int]:
            if index == 3:
                raise ValueError("torn page")
            return super().__getitem__(index)

    documents = numbered([3] * 8)
    mixed: list[Any] = [*documents]
    mixed[3] = {"tokens": [1, 2], "mask": [1]}
    for source, lost in ((Broken(documents), 2), (mixed, 1)):
        loader = feedline.Loader(feedline.pipe(source).pack(6), 1, on_error="skip")
        tokens = {token for batch in loader for token in batch["tokens"].reshape(-1).tolist()} - {0}
        assert len(tokens) == 3 * (8 - lost)


def test_what_happens_to_documents_that_are_too_long() -> None:
    documents = numbered([3, 9, 2])
    pipe = feedline.pipe(documents)

    def tokens(**options: Any) -> list[int]:
        return sorted(token for row in pipe.pack(4, **options) for token in row["tokens"].tolist() if token)

    for strategy in ("concat", "best_fit"):
        assert tokens(strategy=strategy) == list(range(1, 15))
        assert tokens(strategy=strategy, too_long="drop") == [1, 2, 3, 13, 14]
        assert tokens(strategy=strategy, too_long="truncate") == [1, 2, 3, 4, 5, 6, 7, 13, 14]
        with pytest.raises(CollateError, match="9 tokens"):
            tokens(strategy=strategy, too_long="raise")
        loader = feedline.Loader(pipe.pack(4, strategy=strategy, too_long="raise"), None, on_error="skip")
        assert sum(int((row["tokens"] > 0).sum()) for row in loader) == 5


def test_bad_options_are_rejected() -> None:
    pipe = feedline.pipe([[1]])
    for options in ({"length": 0}, {"length": 4, "strategy": "tight"}, {"length": 4, "window": 0}):
        with pytest.raises(BadOption):
            pipe.pack(**options)


def test_statistics_report_how_full_the_rows_are() -> None:
    loader = feedline.Loader(feedline.pipe(numbered([3] * 40)).pack(4, window=8), 5, workers=1)
    list(loader)
    assert loader.stats().epoch.packed == pytest.approx(0.75)
    assert "rows full" in str(loader.stats())
    plain = feedline.Loader(range(8), 2)
    list(plain)
    assert plain.stats().epoch.packed is None
