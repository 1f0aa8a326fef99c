"""LitData chunks: the contract, tokens, every container and value, damage, and LitData's own writer and reader."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import feedline
from feedline.datasets import LitDataDataset, MDSDataset, open_dataset
from feedline.datasets.formats.litdata.leaves import decoding_of
from feedline.errors import BadOption, CorruptSource
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.datasets.formats.litdata.chunks import LEAF, NUMPY, write


def sample(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {
        "label": number - 5,
        "image": rng.integers(0, 99, (2, number % 3 + 1, 2), np.uint8),
        "more": (f"näme {number}", [number / 3, number % 2 == 0], {"raw": bytes(range(number))}),
        "tokens": rng.integers(0, 99, number, np.int64),
    }


SAMPLES = [sample(number) for number in range(30)]
CHUNKS = [SAMPLES[:7], SAMPLES[7:8], SAMPLES[8:]]
TOKENS = [np.arange(start, start + start % 7 + 1, dtype=np.uint16) for start in range(40)]
ROWS = [{"text": f"näme {number}", "id": number, "tags": ["a"] * (number % 3)} for number in range(600)]


class TestTrees(SourceContract):
    takes_fields = True

    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "x", CHUNKS)

    def make_source(self, **options: Any) -> LitDataDataset:
        return LitDataDataset(self.path, **options)

    def samples(self) -> list[Any]:
        return SAMPLES


class TestBlocks(SourceContract):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "x", [TOKENS[:15], TOKENS[15:]], tokens=True)

    def make_source(self, **options: Any) -> LitDataDataset:
        return LitDataDataset(self.path, block_size=4, **options)

    def samples(self) -> list[Any]:
        chunks = [np.concatenate(TOKENS[:15]), np.concatenate(TOKENS[15:])]
        return [chunk[start : start + 4] for chunk in chunks for start in range(0, len(chunk) - 3, 4)]


class TestRows(SourceContract):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "x", [ROWS[:4], ROWS[4:29]], arrow=True, data_format=["str", "int", "json"])
        spec = json.loads((self.path / "index.json").read_text())
        tree = {"type": "builtins.dict", "context": '["text", "id", "tags"]', "children_spec": [LEAF] * 3}
        spec["config"]["data_spec"] = json.dumps([1, tree])
        (self.path / "index.json").write_text(json.dumps(spec))

    def make_source(self, **options: Any) -> LitDataDataset:
        return LitDataDataset(self.path, **options)

    def samples(self) -> list[Any]:
        return ROWS[:29]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_batches_of_tokens(tmp_path: Path, compression: str | None) -> None:
    path = write(tmp_path / "x", [TOKENS[:15], TOKENS[15:]], tokens=True, compression=compression)
    dataset = open_dataset(path, block_size=8)
    assert_same(np.concatenate(list(feedline.Loader(dataset, batch_size=4))), np.stack(list(dataset)))
    assert repr(dataset) == "LitDataDataset(19 samples of uint16[8])"
    dataset.close()
    with contextlib.closing(LitDataDataset(path)) as whole:
        assert_same(list(whole), TOKENS)
        assert repr(whole) == "LitDataDataset(40 samples of uint16[any length])"


@pytest.mark.parametrize("tokens", [False, True])
def test_chunks_of_earlier_versions(tmp_path: Path, tokens: bool) -> None:
    path = write(tmp_path / "x", [TOKENS[1:15], TOKENS[15:]], tokens=tokens, old=True)
    with contextlib.closing(LitDataDataset(path)) as dataset:
        assert_same(list(dataset), TOKENS[1:])


LEAVES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(),
    st.binary(),
    st.builds(
        lambda dtype, shape: np.arange(int(np.prod(shape))).astype(dtype).reshape(shape),
        st.sampled_from(NUMPY),
        st.lists(st.integers(0, 3), min_size=1, max_size=3),
    ),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(), inner)
    ),
    max_leaves=6,
)


@given(tree=TREES, compression=st.sampled_from([None, "zstd"]))
def test_nested_samples_of_any_structure(
    tmp_path_factory: pytest.TempPathFactory, tree: Any, compression: str | None
) -> None:
    if _is_hollow(tree):
        return  # nothing is stored for samples without values
    path = write(tmp_path_factory.mktemp("x"), [[tree, tree]], compression=compression)
    with contextlib.closing(LitDataDataset(path)) as dataset:
        assert_same(list(dataset), [tree, tree])
        assert "2 samples" in repr(dataset)


def _is_hollow(tree: Any) -> bool:
    if not isinstance(tree, (dict, list, tuple)):
        return False
    return all(map(_is_hollow, tree.values() if isinstance(tree, dict) else tree))


def test_tensors_become_arrays(tmp_path: Path) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = struct.pack(">4I", 0, 2, 2, 3) + value.tobytes()
    assert_same(decoding_of("tensor")(data), value)
    assert_same(decoding_of("tensor")(struct.pack(">2I", 17, 0) + bytes(8)), np.array(0))
    assert_same(decoding_of("no_header_tensor:18")(bytes(16)), np.zeros(2, np.int64))
    for name in ("no_header_tensor:10", "no_header_tensor:x", "no_header_numpy:11", "no_header_numpy:99999"):
        with pytest.raises(BadOption, match="type"):
            decoding_of(name)


def test_images_and_media_stay_bytes_without_a_decoder(tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 5, 3), np.uint8))
    out = io.BytesIO()
    image.save(out, "PNG")
    path = write(tmp_path / "x", [[{"a": out.getvalue(), "b": b"RIFF"}]], data_format=["image:png", "video:mp4"])
    with contextlib.closing(LitDataDataset(path)) as dataset:
        assert dataset[0] == {"a": out.getvalue(), "b": b"RIFF"}
    with contextlib.closing(LitDataDataset(path, "a", decode="rgb8")) as dataset:
        assert dataset[0].tobytes() == image.tobytes()
    with pytest.raises(BadOption, match="not an image decoder"):
        LitDataDataset(path, decode="grey")


def test_pickles_are_loaded_only_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [[{"a": pickle.dumps([1]), "b": 3}]], data_format=["pickle", "int"])
    with pytest.raises(BadOption, match="allow_pickle=True"):
        LitDataDataset(path)
    for fields, allow, expected in (("b", False, 3), ("a", True, [1])):
        with contextlib.closing(LitDataDataset(path, fields, allow_pickle=allow)) as dataset:
            assert dataset[0] == expected


@pytest.mark.parametrize(
    ("odd", "kind", "named"),
    [
        ({"encryption": {"algorithm": "fernet"}}, BadOption, "encrypted"),
        *(({"item_loader": name}, BadOption, "Parquet|Temporal") for name in ("ParquetLoader", "TemporalArrayLoader")),
        ({"compression": "zstd", "compression_level": "batch"}, BadOption, "compression_level"),
        ({"compression": "lz4"}, BadOption, "lz4"),
        ({"data_format": ["int", "graph", "str", "float", "bool", "bytes", "no_header_numpy:3"]}, BadOption, "graph"),
        ({"data_spec": '[1, {"type": "a.B", "context": "", "children_spec": [1]}]'}, BadOption, "a.B"),
        *(({"data_format": formats}, CorruptSource, "index.json") for formats in (["int"], None)),
        *(({"data_spec": spec}, CorruptSource, "index.json") for spec in (None, "[2, {}]", "[" * 9000)),
        (
            {"data_spec": '[1, {"type": "builtins.dict", "context": "[]", "children_spec": []}]'},
            CorruptSource,
            "index.json",
        ),
    ],
)
def test_chunks_that_feedline_does_not_read(
    tmp_path: Path, odd: dict[str, Any], kind: type[Exception], named: str
) -> None:
    with pytest.raises(kind, match=named):
        LitDataDataset(write(tmp_path / "x", CHUNKS, **odd))


def test_block_size_requires_tokens(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="not tokens"):
        LitDataDataset(write(tmp_path / "x", CHUNKS), block_size=4)
    path = write(tmp_path / "y", [TOKENS], tokens=True)
    with pytest.raises(BadOption, match="block_size"):
        LitDataDataset(path, block_size=0)
    text = (path / "index.json").read_text()
    (path / "index.json").write_text(text.replace('"dim": 155', '"dim": 156'))
    assert text != (path / "index.json").read_text()
    with pytest.raises(CorruptSource, match="156 tokens"):
        LitDataDataset(path, block_size=4)


def test_an_index_of_mds_or_litdata_names_the_right_class(tmp_path: Path) -> None:
    path = write(tmp_path / "x", CHUNKS)
    with pytest.raises(CorruptSource, match="LitDataDataset"):
        MDSDataset(path)
    (path / "index.json").write_text('{"shards": [], "version": 2}')
    with pytest.raises(CorruptSource, match="MDSDataset"):
        LitDataDataset(path)


@pytest.mark.parametrize("tokens", [False, True])
def test_truncation_at_any_byte_is_detected(tmp_path: Path, tokens: bool) -> None:
    path = write(tmp_path / "x", [TOKENS[:4]] if tokens else [SAMPLES[:2]], tokens=tokens)
    for name in ("index.json", "chunk-0-0.bin"):
        whole = (path / name).read_bytes()
        for size in range(len(whole)):
            (path / name).write_bytes(whole[:size])
            with pytest.raises(CorruptSource, match=name), contextlib.closing(LitDataDataset(path)) as dataset:
                list(dataset)
        (path / name).write_bytes(whole)


def write_with_litdata(folder: Path, samples: list[Any], **options: Any) -> Path:
    writer = pytest.importorskip("litdata.streaming.writer", exc_type=ImportError)
    folder.mkdir()
    out = writer.BinaryWriter(str(folder), **options)
    for index, one in enumerate(samples):
        out[index] = one
    out.done()
    out.merge()
    return folder


@pytest.mark.filterwarnings("ignore")
def test_litdata_writes_and_reads_the_same_samples(tmp_path: Path) -> None:
    theirs = write_with_litdata(tmp_path / "theirs", SAMPLES, chunk_size=7)
    chunks = [SAMPLES[start : start + 7] for start in range(0, 30, 7)]
    ours = write(tmp_path / "ours", chunks)
    for file in theirs.glob("*.bin"):
        assert (ours / file.name).read_bytes() == file.read_bytes()
    found, expected = (json.loads((folder / "index.json").read_text()) for folder in (ours, theirs))
    assert found["chunks"] == expected["chunks"]
    assert {**expected["config"], **found["config"]} == expected["config"]
    streaming = pytest.importorskip("litdata")
    with contextlib.closing(LitDataDataset(theirs)) as dataset:
        assert_same(list(dataset), SAMPLES)
        peer = streaming.StreamingDataset(str(theirs), shuffle=False)
        for ours_, theirs_ in zip(dataset, map(peer.__getitem__, range(30)), strict=True):
            theirs_["more"][2]["raw"] = bytes(theirs_["more"][2]["raw"])  # a view of LitData's memory
            assert_same(ours_, theirs_)
