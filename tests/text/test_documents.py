"""Documents are read as they were written, with their lengths."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.collate import pad
from feedline.errors import CorruptSource
from feedline.text import TokenDataset
from tests.sampling import examples
from tests.text.token_files import joined, plain, write

documents = st.lists(st.lists(st.integers(0, 65_535), max_size=7), max_size=12)
files = st.lists(documents, min_size=1, max_size=4).filter(lambda found: len(joined(found)) > 0)


@settings(max_examples=examples(80), deadline=None)
@given(files=files)
def test_documents_equal_what_was_written(files: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    paths = [write(folder / f"{number}.bin", one) for number, one in enumerate(files)]
    found = TokenDataset(paths, block=1).documents
    flat = [document for one in files for document in one]
    assert [plain(document) for document in found] == flat
    assert found.lengths.dtype == np.int64
    assert found.lengths.tolist() == [len(document) for document in flat]
    assert [plain(one) for one in found.__getitems__(range(len(flat))[::-1])] == flat[::-1]
    assert pickle.loads(pickle.dumps(found)).lengths.tolist() == found.lengths.tolist()


@pytest.mark.parametrize("offset", [-1, 10**9])
def test_damaged_document_offsets(tmp_path: Path, offset: int) -> None:
    path = write(tmp_path / "a.bin", [[1, 2], [3, 4], [5, 6]])
    content = bytearray(path.read_bytes())
    at = 4096 + 16  # after six tokens and the padding
    assert content[at + 8 : at + 16] == (2).to_bytes(8, "little")
    content[at + 8 : at + 16] = offset.to_bytes(8, "little", signed=True)
    path.write_bytes(content)
    dataset = TokenDataset(path, 2)
    for read in (lambda: dataset.documents[0], lambda: dataset.documents[1], lambda: dataset.documents.lengths):
        with pytest.raises(CorruptSource, match="list of documents"):
            read()


def test_through_a_loader(tmp_path: Path) -> None:
    found = TokenDataset(write(tmp_path / "a.bin", [[1, 2], [3], [], [4, 5, 6]]), 2).documents
    padded = [plain(tokens) for tokens, _ in feedline.Loader(found, 2, collate_fn=pad())]
    assert padded == [[[1, 2], [3, 0]], [[0, 0, 0], [4, 5, 6]]]
    assert repr(found) == "TokenDocuments(4 samples of int64[tokens])"
    found.close()
    assert plain(found[-1]) == [4, 5, 6]
    with pytest.raises(IndexError, match="4 samples"):
        found[4]
