from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.datasets.framework.manifest import FACTS
from feedline.tools.write.schema import Column, Schema, Unfit
from feedline.tools.write.writers.npy import NpyWriter, header_of, stored
from tests.tools.write.writers.outputs import samples_in, written

pytestmark = pytest.mark.sample(5)


@pytest.mark.parametrize("count", [0, 1, 10**6, 10**15])
def test_the_header_has_the_same_length_for_any_number_of_rows(count: int) -> None:
    for column in (Column("x", "number", "<i8"), Column("x", "array", "|u1", (3, 4, 5))):
        assert len(header_of(column, count)) == len(header_of(column, 0))


def test_numpy_reads_the_output(tmp_path: Path) -> None:
    samples = [{"x": np.full((2, 3), number, np.int16), "n": number, "s": "ä" * number} for number in range(5)]
    path = written("npy", tmp_path, samples)
    assert np.load(path / "x.npy").shape == (5, 2, 3)
    assert np.load(path / "n.npy").tolist() == list(range(5))
    assert np.load(path / "s.npy").dtype == np.dtype("<U4")
    assert sorted(file.name for file in path.iterdir()) == [FACTS, "n.npy", "s.npy", "x.npy"]


@pytest.mark.parametrize("texts", [[""], ["", ""], ["a", ""], ["\ud800", "a\0b"], ["☃" * 5000, "x"]])
def test_strings_are_read_back(tmp_path: Path, texts: list[str]) -> None:
    path = written("npy", tmp_path, [{"s": text} for text in texts])
    assert [str(sample["s"]) for sample in samples_in("npy", path)] == texts


def test_strings_with_a_nul_at_the_end_are_rejected() -> None:
    column = Column("s", "str")
    schema = Schema((column,))
    with pytest.raises(Unfit, match=r"its field 's' is the string 'a.x00' with a NUL character at the end, which npy"):
        NpyWriter.encoded(schema, {"s": "a\0"})
    assert NpyWriter.encoded(schema, {"s": "a\0b"}) == {"s": "a\0b"}


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (Column("x", "bytes"), "--encode raw"),
        (Column("x", "ragged", "<f8", (-1,)), "the same shape"),
        (Column("x", "mixed"), "the same type and shape"),
        (Column("x", "nested"), "lmdb or tar"),
        (Column("x", "number", "<i8", nullable=True), "cannot store None"),
        (Column("x", "number", "<i8"), ""),
        (Column("x", "array", "<c16", (0, 2)), ""),
    ],
)
def test_columns_that_cannot_be_stored(column: Column, words: str) -> None:
    reason = NpyWriter.cannot_hold(column)
    assert bool(reason) == bool(words)
    assert words in reason


def test_folders_that_pack_did_not_write_have_no_metadata(tmp_path: Path) -> None:
    assert stored(tmp_path) is None
    metadata: dict[str, Any] = {"feedline": 1}
    (tmp_path / FACTS).write_text(json.dumps(metadata))
    assert stored(tmp_path) == metadata
