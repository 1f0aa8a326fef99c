from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from feedline.datasets import ArrowDataset, ParquetDataset
from feedline.errors import BadOption, CorruptSource
from feedline.testing.asserting import assert_same
from tests.datasets.formats.parquet.tables import COUNT, TableContract, samples, table, write

ENDINGS = (".arrow", ".feather", ".ipc")


class TestArrowDataset(TableContract):
    source = ArrowDataset
    name = "a.arrow"
    stays_mapped = True


@pytest.mark.parametrize("ending", ENDINGS)
def test_reads_files_streams_and_compressed_files(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a{ending}", table())
    dataset = ArrowDataset(path)
    assert dataset.row_group_sizes.tolist() == [7, 7, 7, 7, 7, 5]
    assert_same(list(dataset), samples())
    assert_same(dataset.__getitems__([39, 0, 7]), [samples()[i] for i in (39, 0, 7)])


def test_mapped_files_take_no_memory_and_compressed_ones_do(tmp_path: Path) -> None:
    held = {}
    for ending in ENDINGS:
        dataset = ArrowDataset(write(tmp_path / f"a{ending}", table()), ("image", "number"))
        dataset.__getitems__(range(COUNT))
        held[ending] = dataset._blocks.held - 8192 * len(dataset._blocks)
    assert held[".arrow"] == held[".ipc"] == 0
    assert held[".feather"] >= COUNT * (24 + 8)


def test_no_file_stays_open(tmp_path: Path) -> None:
    dataset = ArrowDataset(write(tmp_path / "a.arrow", table()))
    before = len(os.listdir("/proc/self/fd"))
    assert len(dataset.__getitems__(range(COUNT))) == COUNT
    assert len(os.listdir("/proc/self/fd")) == before
    dataset.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("ending", ENDINGS)
def test_filters(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a{ending}", table())
    dataset = ArrowDataset(path, "number", filters=(pc.field("number") > 5) & (pc.field("maybe") < 15))
    assert [int(i) for i in dataset] == [i for i in range(6, 30) if i % 7 != 3]
    with pytest.raises(BadOption, match="colour"):
        len(ArrowDataset(path, filters=[("colour", "=", 1)]))


def test_a_stream_that_lacks_its_last_batch(tmp_path: Path) -> None:
    """It is cut between two messages, so only the end mark is missing."""
    rows = table()
    with pa.ipc.new_stream(tmp_path / "part.ipc", rows.schema) as stream:
        stream.write_table(rows.slice(0, 7))
    part = (tmp_path / "part.ipc").read_bytes()
    whole = write(tmp_path / "a.ipc", rows).read_bytes()
    assert whole.startswith(part[:-8])
    (tmp_path / "cut.ipc").write_bytes(part[:-8])
    assert len(ArrowDataset(tmp_path / "part.ipc")) == 7
    with pytest.raises(CorruptSource, match="cut off, still being written"):
        len(ArrowDataset(tmp_path / "cut.ipc"))


@pytest.mark.slow
def test_reads_what_hugging_face_saves_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("tqdm").tqdm.monitor_interval = 0  # its progress bars leave a thread behind
    datasets.Dataset.from_dict({"x": list(range(10)), "s": list("abcdefghij")}).save_to_disk(tmp_path / "saved")
    dataset = ArrowDataset(tmp_path / "saved", ("x", "s"))
    assert [(int(x), s) for x, s in dataset] == list(enumerate("abcdefghij"))


def test_arrays_are_writable_copies(tmp_path: Path) -> None:
    dataset = ArrowDataset(write(tmp_path / "a.arrow", table()), "image")
    dataset[3][:] = 0
    assert_same(dataset[3], samples()[3]["image"])
    columns = dataset.read_columns(np.array([1, 2]))
    assert columns.flags.writeable


def test_dictionaries_that_differ_between_batches(tmp_path: Path) -> None:
    rows = pa.table({"s": pa.chunked_array([pa.array(["a", "b"]).dictionary_encode()] * 3)})
    assert list(ArrowDataset(write(tmp_path / "a.arrow", rows), "s")) == ["a", "b"] * 3


def with_damage(path: Path, right: bytes, wrong: bytes) -> Path:
    """Replace bytes that occur once."""
    data = path.read_bytes()
    assert data.count(right) == 1
    path.write_bytes(data.replace(right, wrong))
    return path


@pytest.mark.parametrize("ending", [".arrow", ".ipc"])
def test_offsets_that_lead_out_of_the_file(tmp_path: Path, ending: str) -> None:
    """Arrow itself trusts them, and returns whatever is in memory there."""
    rows = pa.table({"s": pa.array([b"one", b"two", b"three"]), "n": [1, 2, 3]})
    offsets = np.array([0, 3, 6, 11], np.int32)
    wrong = np.array([0, 3, 6, 6000], np.int32), np.array([0, 3, -6, 11], np.int32), np.array([0, 9, 6, 11], np.int32)
    for number, one in enumerate(wrong):
        path = with_damage(write(tmp_path / f"{number}{ending}", rows), offsets.tobytes(), one.tobytes())
        with pytest.raises(CorruptSource, match=rf"{number}{ending}"):
            ArrowDataset(path)[2]
        with pytest.raises(CorruptSource, match=rf"{number}{ending}"):
            len(ArrowDataset(path, filters=[("n", ">", 1)]))


def test_damage_to_one_record_batch_does_not_affect_the_others(tmp_path: Path) -> None:
    rows = pa.table({"s": pa.array([b"one", b"two", b"three", b"four"])})
    offsets = np.array([0, 5, 9], np.int32)
    path = with_damage(write(tmp_path / "a.arrow", rows, 2), offsets.tobytes(), np.array([0, 7, 5], np.int32).tobytes())
    dataset = ArrowDataset(path, "s")
    assert (dataset[0], dataset[1]) == (b"one", b"two")
    with pytest.raises(CorruptSource, match=r"row group 1 of .*a\.arrow"):
        dataset[2]


def test_an_end_mark_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipc", table())
    data = path.read_bytes()
    starts = [place for place in range(len(data) - 8) if data[place : place + 4] == b"\xff\xff\xff\xff"]
    path.write_bytes(data[: starts[3] + 4] + bytes(4) + data[starts[3] + 8 :])
    with pytest.raises(CorruptSource, match=rf"a\.ipc' is damaged: a mark at byte {starts[3] + 8} says"):
        len(ArrowDataset(path))


@pytest.mark.parametrize("kind", [ArrowDataset, ParquetDataset])
def test_the_error_names_a_column_that_is_not_utf8(kind: type[ArrowDataset | ParquetDataset], tmp_path: Path) -> None:
    """Programs in other languages can write such strings."""
    path = tmp_path / "a.file"
    places = pa.py_buffer(np.array([0, 2, 4], np.int32))
    bad = pa.Array.from_buffers(pa.string(), 2, [None, places, pa.py_buffer(b"\xff\xfeab")])
    table = pa.table({"number": [1, 2], "name": bad, "text": ["a", "b"]})
    if kind is ParquetDataset:
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(CorruptSource, match=r"Column 'name' .*a\.file'.*binary column, or leave it out with fields="):
        kind(path)[1]
    assert kind(path, fields=("number", "text"))[1] == (2, "b")
