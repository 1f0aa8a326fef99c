"""Several files as one sequence; test_token_dataset.py compares what is read from them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from feedline.errors import BadOption
from feedline.text import TokenDataset
from tests.text.token_files import write


def test_many_files_are_not_all_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.text.sequence._OPEN_FILES", 8)
    for number in range(20):
        write(tmp_path / f"tokens-{number:05d}.bin", [[number, number, number]])
    dataset = TokenDataset(tmp_path, 3, labels=None)
    assert dataset.read_columns(np.arange(20))[:, 1].tolist() == list(range(20))
    before = len(os.listdir("/proc/self/fd"))
    dataset.close()
    assert before - len(os.listdir("/proc/self/fd")) == 8


def test_rejects_files_of_different_tokenizers(tmp_path: Path) -> None:
    one = write(tmp_path / "a.bin", [[1]], tokenizer="gpt2", tokenizer_hash="1")
    two = write(tmp_path / "b.bin", [[1]], tokenizer="llama", tokenizer_hash="2")
    with pytest.raises(BadOption, match="'gpt2' and 'llama'"):
        TokenDataset([one, two], 1)


def test_a_block_may_span_empty_files(tmp_path: Path) -> None:
    texts: list[list[list[int]]] = [[[1, 2]], [], [[]], [[3]], [], [[4, 5]]]
    paths = [write(tmp_path / f"{number}.bin", one) for number, one in enumerate(texts)]
    dataset = TokenDataset(paths, 5, labels=None, segment_ids=True, positions="document")
    assert len(dataset) == 1
    assert {name: values.tolist() for name, values in dataset[0].items()} == {
        "tokens": [1, 2, 3, 4, 5],
        "positions": [0, 1, 0, 0, 1],
        "segment_ids": [1, 1, 2, 3, 3],
    }
