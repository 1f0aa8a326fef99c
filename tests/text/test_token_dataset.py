"""Blocks of tokens: the same as with plain NumPy, through any loader, resumed anywhere."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.collate import pad
from feedline.errors import BadOption, BadState, CorruptSource, SourceError
from feedline.text import TokenDataset, TokenFile
from tests.datasets.contract import SourceContract
from tests.sampling import examples
from tests.text.token_files import IGNORED, Expected, files, plain, write


@settings(max_examples=examples(80), deadline=None)
@given(data=st.data(), files=files, block=st.integers(1, 9), stride=st.none() | st.integers(1, 12))
def test_blocks_equal_those_of_plain_numpy(
    data: st.DataObject, files: Any, block: int, stride: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    dtypes = data.draw(st.lists(st.sampled_from(["uint16", "uint32"]), min_size=len(files), max_size=len(files)))
    for number, (one, dtype) in enumerate(zip(files, dtypes, strict=True)):
        write(folder / f"tokens-{number:05d}.bin", one, dtype)
    labels: Any = data.draw(st.sampled_from(["shifted", "same", None]))
    mask = labels is not None and data.draw(st.booleans())
    positions: Any = data.draw(st.sampled_from([False, True, "document"]))
    segments = data.draw(st.booleans())
    expected = Expected(files, block, stride or block, labels)
    dataset = TokenDataset(
        folder, block, stride=stride, labels=labels, mask_crossing=mask, positions=positions, segment_ids=segments
    )
    assert len(dataset) == len(expected)
    blocks = [
        expected.block_at(index, mask=mask, positions=positions, segments=segments) for index in range(len(expected))
    ]
    is_one = list(blocks[0]) == ["tokens"] if blocks else False
    if is_one:
        blocks = [one["tokens"] for one in blocks]  # type: ignore[misc]
    assert [plain(dataset[index]) for index in range(len(dataset))] == blocks
    if not blocks:
        return
    chosen = data.draw(st.lists(st.integers(-len(blocks), len(blocks) - 1), min_size=1, max_size=8))
    columns = dataset.read_columns(np.array(chosen))
    batch: Any = [blocks[index] for index in chosen]
    assert plain(columns) == (batch if is_one else {name: [one[name] for one in batch] for name in batch[0]})
    assert [plain(one) for one in dataset.__getitems__(chosen)] == batch


@settings(max_examples=examples(40), deadline=None)
@given(files=files)
def test_documents_equal_what_was_written(files: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    paths = [write(folder / f"{number}.bin", one) for number, one in enumerate(files)]
    found = TokenDataset(paths, block=1).documents
    flat = [document for one in files for document in one]
    assert [plain(document) for document in found] == flat
    assert [plain(one) for one in found.__getitems__(range(len(flat))[::-1])] == flat[::-1]
    for one in (found, pickle.loads(pickle.dumps(found))):
        assert one.lengths.dtype == np.int64
        assert one.lengths.tolist() == [len(document) for document in flat]


class TestContract(SourceContract):
    notices_damage = False  # a file that begins in another way is taken for bare tokens: see test_token_file.py

    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path, self.random = tmp_path / "tokens.bin", np.random.default_rng(2)
        self.rewrite()

    def files(self) -> list[Path]:
        return [self.path]

    def rewrite(self) -> list[Any]:
        self.documents = [self.random.integers(0, 60_000, count).tolist() for count in (30, 0, 71, 120, 9)]
        write(self.path, self.documents)
        return self.samples()

    def make_source(self, **options: Any) -> TokenDataset:
        return TokenDataset(self.path, 8, mask_crossing=True, positions=True, segment_ids=True, **options)

    def samples(self) -> list[Any]:
        expected = Expected([self.documents], 8, 8, "shifted")
        types = {"segment_ids": np.int32}
        blocks = [expected.block_at(index, mask=True, positions=True, segments=True) for index in range(len(expected))]
        return [{name: np.array(values, types.get(name, np.int64)) for name, values in one.items()} for one in blocks]


@pytest.mark.parametrize("count", [1, 64, 65])
def test_a_raw_file_is_read_as_training_scripts_read_it(tmp_path: Path, count: int) -> None:
    path = tmp_path / "train.bin"
    tokens = np.random.default_rng(count).integers(0, 50_257, count).astype(np.uint16)
    tokens.tofile(path)
    dataset = TokenDataset(path, 16, raw_dtype="uint16")
    starts = range(0, count - 16, 16)
    assert len(dataset) == len(starts)
    for index, batch in enumerate(feedline.DataLoader(dataset, 1)):
        for name, start in (("tokens", 16 * index), ("labels", 16 * index + 1)):
            assert batch[name].dtype == torch.int64
            assert batch[name].tolist() == [tokens[start : start + 16].tolist()]


def sparse(path: Path, tokens: int) -> Path:
    """Write a sparse token file of one document of zeros, which takes no space on the disk."""
    file = TokenFile(str(path), 2, tokens, 1)
    with open(path, "wb") as opened:
        opened.write(file.header())
        opened.truncate(file.size)
        opened.seek(file.offsets_at + 8)
        opened.write(tokens.to_bytes(8, "little"))
    return path


@pytest.mark.parametrize(("option", "other"), [("block", 5), ("stride", 3)])
def test_a_state_does_not_fit_other_blocks(tmp_path: Path, option: str, other: int) -> None:
    path = write(tmp_path / "a.bin", [list(range(50))])

    def loader(**options: Any) -> feedline.Loader:
        return feedline.Loader(TokenDataset(path, **{"block": 4, "stride": 2, **options}), 2)

    saving = loader()
    next(iter(saving))
    with pytest.raises(BadState, match=rf"{option}=\d.*{option}={other}"):
        loader(**{option: other}).load_state_dict(saving.state_dict())
    loader().load_state_dict(saving.state_dict())


def test_a_trillion_tokens_are_shuffled(tmp_path: Path) -> None:
    tokens = 10**12
    try:
        path = sparse(tmp_path / "tokens.bin", tokens)
    except OSError:
        pytest.skip("this file system has no sparse files of this size")
    count = (tokens - 1) // 2048
    start = (count - 1) * 2048
    with open(path, "r+b") as opened:  # make places distinguishable
        opened.seek(4096 + 2 * start)
        opened.write(bytes([7, 0]))
    dataset = TokenDataset(path, 2048, positions="document")
    assert len(dataset) == count
    last = dataset[-1]
    assert last["tokens"][:2].tolist() == [7, 0]
    assert last["positions"][:2].tolist() == [start, start + 1]
    batches = iter(feedline.Loader(dataset, 4, shuffle=True, seed=1))
    assert len({place for _ in range(3) for place in plain(next(batches)["positions"][:, 0])}) == 12


def test_dtypes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", [[1, 65_535, 3]])
    assert TokenDataset(path, 2, dtype=None)[0]["labels"].dtype == np.uint16
    assert TokenDataset(path, 2, dtype="int32")[0]["tokens"].tolist() == [1, 65_535]
    for wrong in ("float32", "int8", ">i8", "nothing"):
        with pytest.raises(BadOption, match="dtype="):
            TokenDataset(path, 2, dtype=wrong)
    with pytest.raises(BadOption, match="cannot hold"):
        TokenDataset(path, 2, dtype=None, mask_crossing=True)


@pytest.mark.parametrize(
    "options",
    [
        {"block": 0},
        {"block": True},
        {"stride": 0},
        {"labels": "next"},
        {"labels": None, "mask_crossing": True},
        {"positions": "block"},
        {"segment_ids": 1},
        {"end_token": -1},
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write(tmp_path / "a.bin", [[1, 2, 3]])
    with pytest.raises(BadOption, match="="):
        TokenDataset(path, **{"block": 2, **options})


def test_documents_of_a_raw_file_need_its_end_token(tmp_path: Path) -> None:
    path = tmp_path / "raw.bin"
    np.array([1, 2, 0, 3, 0, 0, 4, 5], np.uint16).tofile(path)
    with pytest.raises(BadOption, match="end_token="):
        TokenDataset(path, 4, raw_dtype="uint16", segment_ids=True)
    dataset = TokenDataset(
        path, 7, raw_dtype="uint16", segment_ids=True, positions=True, mask_crossing=True, end_token=0
    )
    assert plain(dataset[0]) == {
        "tokens": [1, 2, 0, 3, 0, 0, 4],
        "labels": [2, 0, IGNORED, 0, IGNORED, IGNORED, 5],
        "positions": [0, 1, 2, 0, 1, 0, 0],
        "segment_ids": [1, 1, 1, 2, 2, 3, 4],
    }
    with pytest.raises(BadOption, match="list of documents"):
        TokenDataset(path, 4, raw_dtype="uint16", positions="document", end_token=0)
    with pytest.raises(BadOption, match="bare tokens"):
        dataset.documents  # noqa: B018
    with pytest.raises(BadOption, match="raw_dtype='uint16'"):
        TokenDataset(path, 4)


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.bin", tmp_path):
        with pytest.raises(SourceError, match=str(path)):
            TokenDataset(path, 4)


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


# -- documents ---


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


def test_documents_through_a_loader(tmp_path: Path) -> None:
    found = TokenDataset(write(tmp_path / "a.bin", [[1, 2], [3], [], [4, 5, 6]]), 2).documents
    padded = [plain(tokens) for tokens, _ in feedline.Loader(found, 2, collate_fn=pad())]
    assert padded == [[[1, 2], [3, 0]], [[0, 0, 0], [4, 5, 6]]]
    assert repr(found) == "TokenDocuments(4 samples of int64[tokens])"
    found.close()
    assert plain(found[-1]) == [4, 5, 6]
    with pytest.raises(IndexError, match="4 samples"):
        found[4]
