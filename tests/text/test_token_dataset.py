"""Blocks of tokens: equal to what plain NumPy makes of the same documents, through any loader, from any place."""

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
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.text import TokenDataset, TokenFile, cu_seqlens
from tests.sampling import examples
from tests.text.token_files import IGNORED, Expected, joined, plain, write

documents = st.lists(st.lists(st.integers(0, 65_535), max_size=7), max_size=12)
files = st.lists(documents, min_size=1, max_size=4).filter(lambda found: len(joined(found)) > 0)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), files=files, block=st.integers(1, 9), stride=st.none() | st.integers(1, 12))
def test_blocks_are_those_of_plain_numpy(
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
    is_one = list(blocks[0]) == ["input_ids"] if blocks else False
    if is_one:
        blocks = [one["input_ids"] for one in blocks]  # type: ignore[misc]
    assert [plain(dataset[index]) for index in range(len(dataset))] == blocks
    if not blocks:
        return
    chosen = data.draw(st.lists(st.integers(-len(blocks), len(blocks) - 1), min_size=1, max_size=8))
    columns = dataset.read_columns(np.array(chosen))
    batch: Any = [blocks[index] for index in chosen]
    assert plain(columns) == (batch if is_one else {name: [one[name] for one in batch] for name in batch[0]})
    assert [plain(one) for one in dataset.__getitems__(chosen)] == batch


@settings(max_examples=examples(80), deadline=None)
@given(files=files)
def test_documents_come_back(files: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    paths = [write(folder / f"{number}.bin", one) for number, one in enumerate(files)]
    found = TokenDataset(paths, block=1).documents
    flat = [document for one in files for document in one]
    assert [plain(document) for document in found] == flat
    assert found.lengths.dtype == np.int64
    assert found.lengths.tolist() == [len(document) for document in flat]
    assert [plain(one) for one in found.__getitems__(range(len(flat))[::-1])] == flat[::-1]
    assert pickle.loads(pickle.dumps(found)).lengths.tolist() == found.lengths.tolist()


class Usual(torch.utils.data.Dataset[Any]):
    """The dataset that most training scripts have."""

    def __init__(self, path: Path, block: int) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")
        self.block = block

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, index: int) -> Any:
        start = index * self.block
        found = torch.from_numpy(self.tokens[start : start + self.block + 1].astype(np.int64))
        return {"input_ids": found[:-1], "labels": found[1:]}


@pytest.mark.parametrize("count", [1, 64, 65, 1000])
def test_a_raw_file_is_read_as_the_usual_dataset_reads_it(tmp_path: Path, count: int) -> None:
    path = tmp_path / "train.bin"
    np.random.default_rng(count).integers(0, 50_257, count).astype(np.uint16).tofile(path)
    usual, dataset = Usual(path, 16), TokenDataset(path, 16, raw_dtype="uint16")
    ours = list(feedline.DataLoader(dataset, 4))
    theirs = list(torch.utils.data.DataLoader(usual, 4))
    assert len(ours) == len(theirs)
    for batch, other in zip(ours, theirs, strict=True):
        assert {name: value.dtype for name, value in batch.items()} == dict.fromkeys(other, torch.int64)
        assert all(batch[name].is_contiguous() and torch.equal(batch[name], other[name]) for name in other)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of 60 documents."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(5)
    for number in range(3):
        texts = [random.integers(0, 60_000, random.integers(0, 30)).tolist() for _ in range(60)]
        write(folder / f"tokens-{number:05d}.bin", texts)
    return folder


def batches(dataset: TokenDataset, **options: Any) -> list[Any]:
    return [plain(batch) for batch in feedline.Loader(dataset, 8, shuffle=True, seed=3, **options)]


@pytest.mark.parametrize(
    "options", [{"workers": 2}, {"workers": 2, "engine": "thread"}, {"workers": 1, "start_method": "spawn"}]
)
def test_batches_do_not_depend_on_workers(corpus: Path, options: dict[str, Any]) -> None:
    dataset = TokenDataset(corpus, 16, mask_crossing=True, positions=True, segment_ids=True)
    alone = batches(dataset)
    assert len(alone) == -(-len(dataset) // 8)
    assert batches(dataset, **options) == alone


@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_after_every_batch(corpus: Path, workers: int) -> None:
    dataset = TokenDataset(corpus, 16, stride=13, segment_ids=True)
    whole = batches(dataset)
    loader = feedline.Loader(
        dataset, 8, shuffle=True, seed=3, workers=workers, engine="thread" if workers else "inline"
    )
    states = [loader.state_dict() for _ in loader]
    for done, state in enumerate(states[:-1], 1):
        other = feedline.Loader(
            dataset, 8, shuffle=True, seed=3, workers=2 - workers, engine="inline" if workers else "thread"
        )
        other.load_state_dict(state)
        assert [plain(batch) for batch in other] == whole[done:]


def sparse(path: Path, tokens: int) -> Path:
    """A token file of this many zeros, which takes no space: one document."""
    file = TokenFile(str(path), 2, tokens, 1)
    with open(path, "wb") as opened:
        opened.write(file.header())
        opened.truncate(file.size)
        opened.seek(file.offsets_at + 8)
        opened.write(tokens.to_bytes(8, "little"))
    return path


def test_a_trillion_tokens_are_shuffled_and_resumed(tmp_path: Path) -> None:
    tokens = 10**12
    try:
        path = sparse(tmp_path / "tokens.bin", tokens)
    except OSError:  # not on every file system
        tokens = 10**10
        path = sparse(tmp_path / "tokens.bin", tokens)
    count = (tokens - 1) // 2048
    start = (count - 1) * 2048
    with open(path, "r+b") as opened:  # tell one place from another
        opened.seek(4096 + 2 * start)
        opened.write(bytes([7, 0]))
    dataset = TokenDataset(path, 2048, positions="document")
    assert len(dataset) == count
    last = dataset[-1]
    assert last["input_ids"][:2].tolist() == [7, 0]
    assert last["position_ids"][:2].tolist() == [start, start + 1]
    loader = feedline.Loader(dataset, 4, shuffle=True, seed=1)
    iterator = iter(loader)
    first = [plain(next(iterator)["position_ids"][:, 0]) for _ in range(3)]
    assert len({place for batch in first for place in batch}) == 12
    state = loader.state_dict()
    following = plain(next(iterator)["position_ids"][:, 0])
    assert len(pickle.dumps(state)) < 2000
    other = feedline.Loader(dataset, 4, shuffle=True, seed=1)
    other.load_state_dict(state)
    assert plain(next(iter(other))["position_ids"][:, 0]) == following


def test_a_pickle_holds_no_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.bin", [list(range(20_000))])
    dataset = TokenDataset(path, 10)
    dataset[3]
    dumped = pickle.dumps(dataset)
    assert len(dumped) < 3000
    assert plain(pickle.loads(dumped)[3]) == plain(dataset[3])


def test_many_files_are_not_all_open_at_a_time(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path / f"tokens-{number:05d}.bin", [[number, number, number]])
    dataset = TokenDataset(tmp_path, 3, labels=None)
    assert dataset.read_columns(np.arange(300))[:, 1].tolist() == list(range(300))
    before = len(os.listdir("/proc/self/fd"))
    dataset.close()
    assert before - len(os.listdir("/proc/self/fd")) == 256


def test_closing_unmaps_and_reading_maps_again(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.bin", [[1, 2, 3]])
    dataset = TokenDataset(path, 2)
    kept = dataset[0]["input_ids"]
    maps = Path("/proc/self/maps")
    assert str(path) in maps.read_text()
    dataset.close()
    assert str(path) not in maps.read_text()
    kept[0] = 9  # a copy of its own
    assert plain(dataset[0]["input_ids"]) == [1, 2]


def test_dtypes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", [[1, 65_535, 3]])
    assert TokenDataset(path, 2, dtype=None)[0]["labels"].dtype == np.uint16
    assert TokenDataset(path, 2, dtype="int32")[0]["input_ids"].tolist() == [1, 65_535]
    for wrong in ("float32", "int8", ">i8", "nothing"):
        with pytest.raises(BadOption, match="dtype="):
            TokenDataset(path, 2, dtype=wrong)
    with pytest.raises(BadOption, match="does not hold"):
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
        "input_ids": [1, 2, 0, 3, 0, 0, 4],
        "labels": [2, 0, IGNORED, 0, IGNORED, IGNORED, 5],
        "position_ids": [0, 1, 2, 0, 1, 0, 0],
        "segment_ids": [0, 0, 0, 1, 1, 2, 3],
    }
    with pytest.raises(BadOption, match="list of documents"):
        TokenDataset(path, 4, raw_dtype="uint16", positions="document", end_token=0)
    with pytest.raises(BadOption, match="bare tokens"):
        dataset.documents  # noqa: B018
    with pytest.raises(BadOption, match="raw_dtype='uint16'"):
        TokenDataset(path, 4)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="There is no file"):
        TokenDataset(tmp_path / "none.bin", 4)
    with pytest.raises(SourceError, match=r"no files that end in \.bin"):
        TokenDataset(tmp_path, 4)


def test_files_of_different_tokenizers_are_not_mixed(tmp_path: Path) -> None:
    one = write(tmp_path / "a.bin", [[1]], tokenizer="gpt2", tokenizer_hash="1")
    two = write(tmp_path / "b.bin", [[1]], tokenizer="llama", tokenizer_hash="2")
    with pytest.raises(BadOption, match="'gpt2' and 'llama'"):
        TokenDataset([one, two], 1)


def test_a_file_that_changes_before_it_is_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", [[1, 2, 3, 4]])
    changed, cut, gone = TokenDataset(path, 2), TokenDataset(path, 2), TokenDataset(path, 2)
    write(path, [[1, 2, 3, 5]])
    with pytest.raises(SourceChanged, match="Make the dataset anew"):
        changed[0]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptSource, match="cut short"):
        cut[0]
    path.unlink()
    with pytest.raises(SourceError, match="no file"):
        gone[0]


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


@given(
    ids=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4),
    is_tensor=st.booleans(),
)
def test_sequence_lengths(ids: list[list[bool]], is_tensor: bool) -> None:
    segments = np.cumsum(np.array(ids, np.int32), axis=1)
    expected = [0]
    for row in segments.tolist():
        for value in sorted(set(row)):
            expected.append(expected[-1] + row.count(value))
    found = cu_seqlens(torch.from_numpy(segments) if is_tensor else segments)
    assert isinstance(found, torch.Tensor if is_tensor else np.ndarray)
    assert str(found.dtype).endswith("int32")
    assert found.tolist() == expected
    assert cu_seqlens(segments[0]).tolist() == [one for one in expected if one <= 5]


def test_sequence_lengths_of_something_else() -> None:
    with pytest.raises(BadOption, match="shape"):
        cu_seqlens(np.zeros((2, 2, 2)))
    with pytest.raises(BadOption, match="shape"):
        cu_seqlens(3)
