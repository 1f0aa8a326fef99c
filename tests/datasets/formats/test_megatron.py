"""Pairs of .bin and .idx files: documents and sequences, the source contract, damage, and Megatron's own class."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets import MegatronDataset, open_dataset
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def write(path: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: str = "uint16") -> Path:
    """Write documents of sequences like `_IndexWriter` of megatron-core 0.16; a test below compares the two."""
    sequences = [np.array(sequence, dtype) for document in documents for sequence in document]
    sizes = np.array([len(sequence) for sequence in sequences], np.int32)
    pointers = np.concatenate([[0], np.cumsum(sizes.astype(np.int64) * np.dtype(dtype).itemsize)])[: len(sizes)]
    ends = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, CODES[dtype], len(sizes), len(ends))
    tables = sizes.tobytes() + pointers.astype(np.int64).tobytes() + ends.astype(np.int64).tobytes()
    path.with_suffix(".idx").write_bytes(header + tables)
    path.with_suffix(".bin").write_bytes(b"".join(sequence.tobytes() for sequence in sequences))
    return path


def texts(count: int, *, of: int | None = None) -> list[list[list[int]]]:
    rng = np.random.default_rng(3)
    return [[rng.integers(0, 60_000, of or rng.integers(1, 9)).tolist()] for _ in range(count)]


def joined(document: Sequence[Sequence[int]], dtype: str) -> Any:
    return np.array([token for sequence in document for token in sequence], dtype)


class TestDocuments(SourceContract):
    documents = texts(30)

    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "train", self.documents)

    def make_source(self, **options: Any) -> MegatronDataset:
        return MegatronDataset(self.path, **options)

    def samples(self) -> list[Any]:
        return [np.array(document[0], np.uint16) for document in self.documents]


@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 100), max_size=5), max_size=4), max_size=6),
    dtype=st.sampled_from(sorted(CODES)),
)
def test_documents_and_sequences(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], dtype: str
) -> None:
    path = write(tmp_path_factory.mktemp("data") / "x", documents, dtype)
    whole, parts = MegatronDataset(path), MegatronDataset(path, samples="sequences")
    expected = [joined(document, dtype) for document in documents]
    sequences = [np.array(sequence, dtype) for document in documents for sequence in document]
    assert_same(list(whole), expected)
    assert_same(list(parts), sequences)
    assert whole.lengths.tolist() == [len(one) for one in expected]
    assert parts.lengths.tolist() == [len(one) for one in sequences]
    assert whole.lengths.dtype == np.int64
    whole.close()
    parts.close()


def test_the_path_may_be_either_file_or_their_common_stem(tmp_path: Path) -> None:
    path = write(tmp_path / "x.y", texts(3))
    stem = tmp_path / "x"
    for name in (stem, f"{stem}.idx", f"{stem}.bin"):
        for dataset in (MegatronDataset(name), open_dataset(name)):
            assert len(dataset) == 3
            dataset.close()
    opened = open_dataset(tmp_path)
    assert repr(opened) == "MegatronDataset(3 samples of uint16[any length])"
    opened.close()
    write(tmp_path / "second", texts(2))
    with pytest.raises(BadOption, match=r"second\.idx"):
        open_dataset(tmp_path)
    assert path.suffix == ".y"


def test_options(tmp_path: Path) -> None:
    path = write(tmp_path / "x", texts(3))
    with pytest.raises(BadOption, match="sequences"):
        MegatronDataset(path, samples="words")
    with pytest.raises(SourceError, match=r"nothing\.idx"):
        MegatronDataset(tmp_path / "nothing")
    os.remove(path.with_suffix(".bin"))
    with pytest.raises(SourceError, match=r"x\.bin"):
        MegatronDataset(path)


def test_truncation_at_any_byte_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path / "x", texts(5))
    for suffix in (".idx", ".bin"):
        whole = path.with_suffix(suffix).read_bytes()
        for size in range(len(whole)):
            path.with_suffix(suffix).write_bytes(whole[:size])
            with pytest.raises(CorruptSource):
                len(MegatronDataset(path))
        path.with_suffix(suffix).write_bytes(whole)
    assert len(MegatronDataset(path)) == 5


def test_the_error_names_other_formats(tmp_path: Path) -> None:
    path = write(tmp_path / "x", texts(3))
    whole = path.with_suffix(".idx").read_bytes()
    path.with_suffix(".idx").write_bytes(b"TNTIDX\x00\x00" + whole[8:])
    with pytest.raises(CorruptSource, match="mmap"):
        len(MegatronDataset(path))
    path.with_suffix(".idx").write_bytes(whole[:9] + struct.pack("<Q", 2) + whole[17:])
    with pytest.raises(CorruptSource, match="version 2"):
        len(MegatronDataset(path))


def test_changed_files_are_detected(tmp_path: Path) -> None:
    path = write(tmp_path / "x", texts(5))
    dataset = MegatronDataset(path)
    assert len(dataset[0])
    text = pickle.dumps(dataset)
    with open(path.with_suffix(".bin"), "ab") as file:
        file.write(b"xx")
    with pytest.raises(SourceChanged, match="x"):
        dataset[0]
    dataset.close()
    write(path, texts(7))
    with pytest.raises(SourceChanged, match="5 documents"):
        pickle.loads(text)[0]


def test_indices_of_multimodal_datasets(tmp_path: Path) -> None:
    path = write(tmp_path / "x", texts(5))
    with open(path.with_suffix(".idx"), "ab") as file:
        file.write(bytes(5))  # a mode for each sequence
    dataset = MegatronDataset(path)
    assert len(dataset) == 5
    dataset.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatron_writes_and_reads_the_same_documents(tmp_path: Path, dtype: str) -> None:
    theirs = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    documents = [[[1, 2, 3], [4]], [[5, 6]], [[7], [8, 9], [10]]]
    ours = write(tmp_path / "ours", documents, dtype)
    builder = theirs.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=getattr(np, dtype))
    for document in documents:
        builder.add_document(joined(document, dtype), [len(sequence) for sequence in document])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".idx", ".bin"):
        assert ours.with_suffix(suffix).read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()
    peer = theirs.IndexedDataset(str(tmp_path / "theirs"))
    parts, whole = MegatronDataset(tmp_path / "theirs", samples="sequences"), MegatronDataset(tmp_path / "theirs")
    assert_same(list(parts), [np.array(peer[index]) for index in range(len(peer))])
    ends = peer.document_indices
    for number, document in enumerate(whole):
        assert_same(document, np.concatenate([peer[index] for index in range(ends[number], ends[number + 1])]))
    parts.close()
    whole.close()
    theirs._IndexReader.__getitem__.cache_clear()  # otherwise it would keep the file open
