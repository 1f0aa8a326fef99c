"""MDS shards: the contract, every encoding, compression, remote folders, damage, and MosaicML's own reader."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import struct
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.datasets import MDSDataset, open_dataset
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.datasets.formats.mds.shards import PACK, write

COLUMNS = {
    "any": "ndarray",
    "data": "bytes",
    "half": "float16",
    "label": "int",
    "list": "json",
    "many": "str_int",
    "matrix": "ndarray:int16:2,3",
    "money": "str_decimal",
    "ratio": "str_float",
    "small": "uint8",
    "text": "str",
    "vector": "ndarray:float32",
}


def sample(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {
        "any": rng.integers(0, 99, (number % 3 + 1, 2), np.int64),
        "data": bytes(range(number)),
        "half": np.float16(number / 4),
        "label": number - 5,
        "list": [number, {"a": None}],
        "many": 10**30 + number,
        "matrix": rng.integers(-9, 9, (2, 3), np.int16),
        "money": Decimal(number) / 7,
        "ratio": number / 3,
        "small": np.uint8(number),
        "text": f"näme {number}" * (number % 2),
        "vector": rng.random(number % 300 + 1, np.float32),
    }


SAMPLES = [sample(number) for number in range(30)]
SHARDS = [SAMPLES[:7], SAMPLES[7:8], [], SAMPLES[8:]]
FLAT = [{"label": number, "vector": np.full(4, number, np.float32), "name": f"n{number}"} for number in range(30)]
FLAT_COLUMNS = {"label": "int", "vector": "ndarray:float32:4", "name": "str"}


class TestAll(SourceContract):
    takes_fields = True

    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "x", COLUMNS, SHARDS)

    def make_source(self, **options: Any) -> MDSDataset:
        return MDSDataset(self.path, **options)

    def samples(self) -> list[Any]:
        return SAMPLES


class TestColumns(SourceContract):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "x", FLAT_COLUMNS, [FLAT[:11], FLAT[11:]], "zstd:3")

    def make_source(self, **options: Any) -> MDSDataset:
        return MDSDataset(self.path, ("vector", "label", "name"), cache_bytes=1, **options)

    def samples(self) -> list[Any]:
        return [(one["vector"], one["label"], one["name"]) for one in FLAT]


@pytest.mark.parametrize("compression", [*PACK, "zstd:7"])
def test_compressed_shards(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "x", COLUMNS, SHARDS, compression)
    dataset = MDSDataset(path, cache_bytes="1 KB")
    assert_same(dataset.__getitems__([29, 0, 7, 1]), [SAMPLES[29], SAMPLES[0], SAMPLES[7], SAMPLES[1]])
    dataset.close()


def test_decompressed_shards_are_preferred(tmp_path: Path) -> None:
    path = write(tmp_path / "x", FLAT_COLUMNS, [FLAT], "gz")
    packed = path / "shard.00000.mds.gz"
    (path / "shard.00000.mds").write_bytes(gzip.decompress(packed.read_bytes()))  # as MosaicML Streaming does
    packed.write_bytes(b"")
    dataset = MDSDataset(path, fields="label")
    assert list(dataset) == list(range(30))
    dataset.close()


def test_a_shard_that_decompresses_to_more_than_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "x", FLAT_COLUMNS, [FLAT], "gz")
    (path / "shard.00000.mds.gz").write_bytes(PACK["gz"](bytes(1 << 26)))
    with contextlib.closing(MDSDataset(path)) as dataset, pytest.raises(CorruptSource, match="does not decompress to"):
        dataset[0]


@pytest.mark.parametrize("compression", ["br", "snappy", "nothing:3"])
def test_other_compressions(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "x", FLAT_COLUMNS, [FLAT], "zstd")
    text = (path / "index.json").read_text()
    (path / "index.json").write_text(text.replace('"compression": "zstd"', f'"compression": "{compression}"'))
    with pytest.raises(BadOption, match="zstd, gz, bz2"):
        MDSDataset(path)


def test_images_stay_bytes_without_a_decoder(tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 5, 3), np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    png = file.getvalue()
    raw = struct.pack("<III", 5, 6, 3) + b"RGB" + image.tobytes()
    several = struct.pack("<3I", 2, len(png), len(png)) + png + png
    columns = {"png": "png", "raw": "pil", "array": "jpeg_array", "list": "list[png]"}
    one = {"png": png, "raw": raw, "array": several, "list": bytes(4) + several}
    path = write(tmp_path / "x", columns, [[one]])
    with contextlib.closing(MDSDataset(path)) as dataset:
        found = dataset[0]
    assert found["png"] == png
    assert found["array"] == found["list"] == [png, png]
    assert found["raw"].tobytes() == image.tobytes()
    with contextlib.closing(MDSDataset(path, ("png", "list"), decode="rgb8")) as dataset:
        pixels, images = dataset[0]
    assert pixels.tobytes() == image.tobytes()
    assert [one.shape for one in images] == [(6, 5, 3), (6, 5, 3)]
    with pytest.raises(BadOption, match="grey"):
        MDSDataset(path, decode="grey")
    path = write(tmp_path / "y", {"png": "png"}, [[{"png": png[:40]}]])
    with contextlib.closing(MDSDataset(path, decode="pil")) as dataset, pytest.raises(CorruptSource, match="shard"):
        dataset[0]


class Evil:
    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was decoded",)


def test_pickles_are_loaded_only_on_request(tmp_path: Path) -> None:
    evil = {"label": 3, "object": pickle.dumps(Evil())}
    path = write(tmp_path / "x", {"label": "int", "object": "pkl"}, [[evil]])
    with pytest.raises(BadOption, match="allow_pickle=True"):
        MDSDataset(path)
    with contextlib.closing(MDSDataset(path, "label")) as dataset:
        assert dataset[0] == 3
    path = write(tmp_path / "y", {"object": "pkl"}, [[{"object": pickle.dumps([1, "a"])}]])
    with contextlib.closing(MDSDataset(path, "object", allow_pickle=True)) as dataset:
        assert dataset[0] == [1, "a"]


def test_shards_in_subfolders(tmp_path: Path) -> None:
    path = write(tmp_path / "x", FLAT_COLUMNS, [FLAT])
    (path / "0").mkdir()
    (path / "shard.00000.mds").rename(path / "0" / "shard.00000.mds")
    index = json.loads((path / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = "0/shard.00000.mds"
    (path / "index.json").write_text(json.dumps(index))
    for place in (path, path / "index.json"):
        with contextlib.closing(open_dataset(place, fields="label")) as dataset:
            assert isinstance(dataset, MDSDataset)
            assert dataset[29] == 29


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ({"version": 1}, BadOption),
        ({"format": "json"}, BadOption),
        *(({"samples": count}, CorruptSource) for count in (-1, 1 << 40, None, 29)),
        ({"raw_data": None}, CorruptSource),
        *(({"column_names": names}, CorruptSource) for names in (["a"], [], [["a"], "b", "c"])),
        ({"column_sizes": [8, None, 1]}, CorruptSource),
        ({"column_encodings": ["int", "str", "magic"]}, CorruptSource),
        ({"column_encodings": ["int", "magic", "ndarray:float32:4"]}, BadOption),
        ({"column_encodings": ["int", "str", "ndarray:float32:4,-1"]}, BadOption),
        ({"column_encodings": ["int", "str", "ndarray:object"]}, BadOption),
    ],
)
def test_invalid_index_files(tmp_path: Path, odd: dict[str, Any], kind: type[Exception]) -> None:
    path = write(tmp_path / "x", FLAT_COLUMNS, [FLAT], **odd)
    with pytest.raises(kind, match=r"index\.json|shard\.00000"), contextlib.closing(MDSDataset(path)) as dataset:
        dataset[0]


def test_shards_of_different_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "x", FLAT_COLUMNS, [FLAT[:3], FLAT[3:]])
    index = json.loads((path / "index.json").read_text())
    index["shards"][1]["column_names"][0] = "other"
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(BadOption, match="different columns"):
        MDSDataset(path)


def test_missing_and_changed_files(tmp_path: Path) -> None:
    path = write(tmp_path / "x", FLAT_COLUMNS, [FLAT[:3], FLAT[3:]])
    with contextlib.closing(MDSDataset(path, "label")) as dataset:
        assert dataset[0] == 0
        (path / "shard.00001.mds").unlink()
        with pytest.raises(SourceError, match=r"shard\.00001\.mds"):
            dataset[5]
        with open(path / "shard.00000.mds", "ab") as file:
            file.write(b"x")
        with pytest.raises(SourceChanged, match=r"shard\.00000\.mds"):
            dataset[0]
    with pytest.raises(SourceError, match=r"index\.json"):
        MDSDataset(tmp_path / "nothing")
    with pytest.raises(BadOption, match="path"):
        MDSDataset(3)  # type: ignore[arg-type]
    (path / "index.json").write_text("[" * 10_000)
    with pytest.raises(CorruptSource, match="JSON"):
        MDSDataset(path)


def test_truncation_at_any_byte_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {"a": "str", "b": "int"}, [[{"a": "xyz", "b": 3}, {"a": "", "b": 4}]])
    for name in ("index.json", "shard.00000.mds"):
        whole = (path / name).read_bytes()
        for size in range(len(whole)):
            (path / name).write_bytes(whole[:size])
            with pytest.raises(CorruptSource, match=name), contextlib.closing(MDSDataset(path)) as dataset:
                list(dataset)
        (path / name).write_bytes(whole)


def peer() -> Any:
    """Return MosaicML Streaming. It imports torchvision, which only loads with the torch that it was compiled for."""
    pytest.importorskip("streaming", exc_type=ImportError)
    return sys.modules["streaming"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compression", [None, "gz", "zstd"])
def test_mosaicml_writes_and_reads_the_same_samples(tmp_path: Path, compression: str | None) -> None:
    streaming = peer()
    theirs = tmp_path / "theirs"
    with streaming.MDSWriter(
        columns=COLUMNS, out=str(theirs), compression=compression, hashes=["sha1"], size_limit=3000
    ) as out:
        for one in SAMPLES:
            out.write(one)
    with contextlib.closing(MDSDataset(theirs)) as dataset:
        assert len(list(theirs.glob("shard*"))) > 2
        assert_same(list(dataset), SAMPLES)
    if compression is not None:
        return
    found = streaming.LocalDataset(str(theirs))
    assert_same([found[index] for index in range(len(found))], SAMPLES)
    whole = tmp_path / "whole"
    with streaming.MDSWriter(columns=COLUMNS, out=str(whole)) as out:
        for one in SAMPLES:
            out.write(one)
    ours = write(tmp_path / "ours", COLUMNS, [SAMPLES])
    assert (ours / "shard.00000.mds").read_bytes() == (whole / "shard.00000.mds").read_bytes()
    assert json.loads((ours / "index.json").read_text()) == json.loads((whole / "index.json").read_text())
