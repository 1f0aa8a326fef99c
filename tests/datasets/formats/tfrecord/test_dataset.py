"""TFRecord files: the source contract, indices, checksums, changed and damaged files, and the package tfrecord."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets import TFRecordDataset, open_dataset
from feedline.datasets.formats.tfrecord import framing
from feedline.errors import (
    BadOption,
    CorruptSource,
    FeedlineError,
    MissingExtra,
    SourceChanged,
    SourceError,
)
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.datasets.formats.tfrecord.records import example, field, file_of, framed
from tests.datasets.storage.servers import web_server


def sample(number: int) -> dict[str, Any]:
    return {
        "label": np.array([number - 5]),
        "vector": np.arange(number % 4, dtype=np.float32),
        "image": bytes(range(number)),
        "names": [b"a", b"b"],
    }


SAMPLES = [sample(number) for number in range(30)]
RECORDS = [example(one) for one in SAMPLES]


def write(folder: Path, *parts: list[bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, records in enumerate(parts):
        (folder / f"x.tfrecord-{number:05}-of-{len(parts):05}").write_bytes(file_of(records))
    return folder


class TestExamples(SourceContract):
    takes_fields = True

    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "x", RECORDS[:7], [], RECORDS[7:])

    def make_source(self, **options: Any) -> TFRecordDataset:
        return TFRecordDataset(self.path, **options)

    def samples(self) -> list[Any]:
        return SAMPLES


def test_parse(tmp_path: Path) -> None:
    path = write(tmp_path / "x", RECORDS) / "x.tfrecord-00000-of-00001"
    for parse, expected in ((bytes, RECORDS[3]), (len, len(RECORDS[3]))):
        with contextlib.closing(TFRecordDataset(path, parse=parse)) as dataset:
            assert dataset[3] == expected
            assert "30 samples" in repr(dataset)
    bad: list[dict[str, Any]] = [{"parse": 3}, {"parse": bytes, "fields": "image"}, {"checksums": 1}]
    for options in bad:
        with pytest.raises(BadOption):
            TFRecordDataset(path, **options)


def test_messages_that_are_not_examples_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [field(2, b""), b"text"])
    with contextlib.closing(TFRecordDataset(path)) as dataset:
        with pytest.raises(SourceError, match=r"SequenceExample.*parse="):
            dataset[0]
        with pytest.raises(CorruptSource, match=r"Record 1, at byte 30.*parse="):
            dataset[1]


def test_names(tmp_path: Path) -> None:
    for name in ("a.tfrecord", "b.tfrecords", "c.tfrecord-00000-of-00002", "plain", "D.TFRECORD"):
        (tmp_path / name).write_bytes(file_of(RECORDS[:2]))
        with contextlib.closing(open_dataset(tmp_path / name)) as dataset:
            assert isinstance(dataset, TFRecordDataset)
            assert len(dataset) == 2
    with contextlib.closing(open_dataset(str(tmp_path / "*.tfrecord"))) as dataset:
        assert len(dataset) == 2
    with pytest.raises(SourceError, match="nothing"):
        len(TFRecordDataset(tmp_path / "nothing.tfrecord"))


def test_compressed_files_can_only_be_streamed(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord.gz"
    path.write_bytes(gzip.compress(file_of(RECORDS)))
    with pytest.raises(BadOption, match=r"\.stream\(\)"):
        len(TFRecordDataset(path))
    assert_same(list(TFRecordDataset(path).stream()), SAMPLES)
    assert_same(list(open_dataset(path)), SAMPLES)
    (tmp_path / "y.tfrecord").write_bytes(file_of([bytes(0x8B1F)]))  # its length looks like the start of a gzip file
    assert (tmp_path / "y.tfrecord").read_bytes().startswith(b"\x1f\x8b")
    with contextlib.closing(open_dataset(tmp_path / "y.tfrecord", parse=len)) as dataset:
        assert list(dataset) == list(dataset.stream()) == [0x8B1F]


@given(records=st.lists(st.binary(max_size=300), max_size=20), window=st.sampled_from([12, 50, 1 << 16]))
def test_records_of_any_size(tmp_path_factory: pytest.TempPathFactory, records: list[bytes], window: int) -> None:
    path = tmp_path_factory.mktemp("x") / "x.tfrecord"
    path.write_bytes(file_of(records))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "_WINDOW", window)
        with contextlib.closing(TFRecordDataset(path, parse=bytes)) as dataset:
            assert list(dataset) == records
            assert list(dataset.stream()) == records


def test_truncation_at_any_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    ends = np.cumsum([0] + [len(framed(record)) for record in RECORDS[:3]]).tolist()
    whole = file_of(RECORDS[:3])
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        dataset = TFRecordDataset(path)
        if size in ends:  # nothing says how many records there were
            assert len(dataset) == ends.index(size)
            continue
        for read in (len, lambda dataset: list(dataset.stream())):
            with pytest.raises(CorruptSource, match=r"x\.tfrecord"):
                read(dataset)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_every_flipped_bit_is_detected(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    path = tmp_path_factory.mktemp("x") / "x.tfrecord"
    data = bytearray(file_of(RECORDS[:5]))
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with contextlib.closing(TFRecordDataset(path, checksums=True)) as dataset:
        for source in (dataset, dataset.stream()):
            with pytest.raises(CorruptSource, match=r"x\.tfrecord"):
                list(source)
    with contextlib.closing(TFRecordDataset(path, checksums=False)) as dataset, contextlib.suppress(FeedlineError):
        assert len(list(dataset)) == 5


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1, 10**6])
def test_rejects_an_impossible_length(tmp_path: Path, size: int) -> None:
    path, length = tmp_path / "x.tfrecord", struct.pack("<Q", size)
    path.write_bytes(length + struct.pack("<I", framing.sum_of(length)) + bytes(100))
    for read in (len, lambda dataset: list(dataset.stream())):
        with pytest.raises(CorruptSource, match=str(size)[:5]):
            read(TFRecordDataset(path))


def test_without_the_package_for_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x", RECORDS) / "x.tfrecord-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with contextlib.closing(TFRecordDataset(path)) as dataset, pytest.raises(CorruptSource, match="its data"):
        dataset[29]
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(MissingExtra, match=r"feedline\[tfrecord\]"):
        TFRecordDataset(path, checksums=True)
    with contextlib.closing(TFRecordDataset(path)) as dataset:
        assert_same(dataset[29], SAMPLES[29])


def test_changed_files_are_detected(tmp_path: Path) -> None:
    path = write(tmp_path / "x", RECORDS) / "x.tfrecord-00000-of-00001"
    dataset = TFRecordDataset(path)
    assert_same(dataset[0], SAMPLES[0])
    other = pickle.loads(pickle.dumps(dataset))
    with open(path, "ab") as file:
        file.write(framed(RECORDS[0]))
    for one in (dataset, other):
        with pytest.raises(SourceChanged, match=r"x\.tfrecord"):
            one[0]
        one.close()


def test_files_on_a_web_server_and_here_are_one_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_KEPT", 1)
    first, second = sorted(write(tmp_path / "x", RECORDS[:7], RECORDS[7:]).iterdir())
    cache = tmp_path / "cache"
    with web_server(tmp_path / "x") as server:
        paths: list[str | Path] = [f"{server.address}/{first.name}", second]
        with contextlib.closing(TFRecordDataset(paths, "label", cache=cache, checksums=True)) as dataset:
            assert dataset.is_remote
            assert [one.item() for one in dataset.__getitems__([29, 0, 8, 6])] == [24, -5, 3, 1]
            asked = len(server.requests)
            assert [one.item() for one in dataset.__getitems__([1, 2, 3])] == [-4, -3, -2]
            assert len(server.requests) == asked + 1, "nearby records are one read"
            assert_same(list(dataset.stream()), list(pickle.loads(pickle.dumps(dataset))))
        assert len(list(cache.glob("*.tfrecord"))) == 2
        with pytest.raises(SourceError, match="nothing"):
            len(TFRecordDataset(f"{server.address}/nothing.tfrecord"))


@pytest.mark.filterwarnings("ignore")
def test_the_package_tfrecord_writes_and_reads_the_same_records(tmp_path: Path) -> None:
    package = pytest.importorskip("tfrecord", exc_type=ImportError)
    path = str(tmp_path / "x.tfrecord")
    writer = package.TFRecordWriter(path)
    for one in SAMPLES:
        kinds = {"label": "int", "vector": "float", "image": "byte"}
        writer.write({name: (list(one[name]) if kind != "byte" else one[name], kind) for name, kind in kinds.items()})
    writer.close()
    theirs = list(package.tfrecord_loader(path, None, ["image", "label", "vector"]))
    with contextlib.closing(TFRecordDataset(path, ["image", "label", "vector"], checksums=True)) as dataset:
        assert_same(list(dataset), theirs)
    ours = tmp_path / "ours.tfrecord"
    ours.write_bytes(file_of(RECORDS))
    for found, one in zip(package.tfrecord_loader(str(ours), None), SAMPLES, strict=True):
        assert found["image"] == one["image"]
        assert found["label"].tolist() == one["label"].tolist()
        assert found["names"].tolist() == one["names"]


def test_a_record_of_a_stream_that_cannot_be_parsed_is_retried(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(file_of([b"1", b"two", b"3"]))
    samples = iter(TFRecordDataset(tmp_path, parse=int).stream())
    assert next(samples) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="two"):
            next(samples)
        assert samples.try_again()
    with pytest.raises(ValueError, match="two"):
        next(samples)
    assert list(samples) == [3]
