from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate as torch_default

import feedline
from feedline import collate
from feedline.datasets import ArrowDataset, ParquetDataset
from feedline.datasets.formats.parquet.table import RowGroupSource
from feedline.datasets.framework.block_stream import BlockPass, BlockStream
from feedline.errors import BadState, CorruptSource
from feedline.testing.asserting import assert_same
from tests.datasets.formats.parquet.tables import write
from tests.datasets.transforms import FailsOnce
from tests.sampling import examples

COUNT = 53


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    write(tmp_path / "1.parquet", pa.table({"x": np.arange(30)}), 7)
    write(tmp_path / "2.parquet", pa.table({"x": np.arange(30, COUNT)}), 5)
    return ParquetDataset(tmp_path, "x")


def numbers(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch.tolist()]


def test_row_groups_are_shuffled_and_samples_within_a_window(dataset: Any) -> None:
    sizes = dataset.row_group_sizes
    owner = np.repeat(np.arange(len(sizes)), sizes)
    stream = dataset.stream(shuffle=True, seed=5, window=2)
    found = [int(x) for x in stream]
    assert sorted(found) == list(range(COUNT))
    groups = [int(owner[x]) for x in found]
    start = 0
    seen: set[int] = set()
    while start < COUNT:  # each window has all samples of two row groups
        present = set(groups[start : start + 1])
        for length in range(1, COUNT - start + 1):
            present = set(groups[start : start + length])
            if length == sum(sizes[list(present)]) and (len(present) == 2 or start + length == COUNT):
                break
        assert len(present) <= 2
        assert not present & seen
        seen |= present
        start += length
    assert found != sorted(found)


def test_every_epoch_and_seed_has_its_own_order(dataset: Any) -> None:
    stream = dataset.stream(shuffle=True, seed=5)
    loader = feedline.Loader(stream, 8)
    first, second = numbers(loader), numbers(loader)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second
    assert numbers(feedline.Loader(dataset.stream(shuffle=True, seed=5), 8)) == first
    assert numbers(feedline.Loader(dataset.stream(shuffle=True, seed=6), 8)) != first


def test_the_order_does_not_depend_on_workers(dataset: Any) -> None:
    stream = dataset.stream(shuffle=True, seed=1)
    expected = [int(x) for x in stream]
    assert numbers(feedline.DataLoader(stream, 4, num_workers=2)) == expected


@pytest.mark.parametrize("kind", [feedline.Loader, feedline.DataLoader])
@pytest.mark.parametrize("fields", ["x", ("x", "name"), {"both": ["x", "y"], "name": "name"}])
def test_batches_are_made_of_columns_and_equal_those_made_of_samples(
    kind: Any, fields: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"x": np.arange(53), "y": -np.arange(53), "name": [f"row {number}" for number in range(53)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    made: list[object] = []
    samples_of = RowGroupSource._samples_of

    def noted(self: Any, ahead: Any) -> list[object]:
        samples = samples_of(self, ahead)
        made.extend(samples)
        return samples

    monkeypatch.setattr(RowGroupSource, "_samples_of", noted)

    def batches(function: Any) -> Any:
        return list(kind(ParquetDataset(tmp_path, fields).stream(shuffle=True, seed=1), 8, collate_fn=function))

    of_columns, count = batches(None), len(made)
    assert count == 53 % 8, "only the last batch, which is not full"
    default = torch_default if kind is feedline.DataLoader else collate.default
    of_samples = batches(lambda samples: default(samples))
    assert len(made) == count + 53
    for found, expected in zip(of_columns, of_samples, strict=True):
        assert_same(as_arrays(found), as_arrays(expected))


# Any: batches.
def as_arrays(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.numpy()
    if isinstance(batch, dict):
        return {name: as_arrays(one) for name, one in batch.items()}
    return type(batch)(map(as_arrays, batch)) if isinstance(batch, (list, tuple)) else batch


@pytest.mark.parametrize("parts", [1, 2, 20])
def test_parts_contain_each_sample_once(dataset: Any, parts: int) -> None:
    stream = dataset.stream(shuffle=True, seed=1)
    assert sorted(int(x) for part in range(parts) for x in BlockPass(stream, (part, parts))) == list(range(COUNT))


def test_resumes_with_another_number_of_workers(dataset: Any) -> None:
    def make(workers: int) -> Any:
        return feedline.DataLoader(dataset.stream(shuffle=True, seed=3), 8, num_workers=workers, engine="thread")

    expected = [batch.tolist() for batch in make(1)]
    for taken in (0, 2, 3, len(expected)):
        batches = iter(loader := make(2))
        for _ in range(taken):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
        other = make(1)
        other.load_state_dict(state)
        assert [batch.tolist() for batch in other] == expected[taken:]


def test_a_resumed_stream_reads_only_the_rest(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = dataset.stream()
    reading = iter(stream)
    for _ in range(30):
        next(reading)
    state = reading.state_dict()
    loads: list[int] = []
    load = ParquetDataset._load

    def noted(self: Any, file: Any, number: int, names: list[str]) -> Any:
        loads.append(number)
        return load(self, file, number, names)

    monkeypatch.setattr(ParquetDataset, "_load", noted)
    dataset.close()
    other = iter(stream)
    other.load_state_dict(state)
    assert [int(x) for x in other] == list(range(30, COUNT))
    assert len(loads) == 5


def test_skip_returns_how_many_samples_it_skipped(dataset: Any) -> None:
    reading = BlockPass(dataset.stream())
    assert reading.skip(20) == 20
    assert int(next(reading)) == 20
    assert reading.skip(1000) == COUNT - 21
    with pytest.raises(StopIteration):
        next(reading)
    assert reading.skip(1) == 0


def test_states_of_other_options_and_malformed_states_are_rejected(dataset: Any, tmp_path: Path) -> None:
    state = BlockPass(dataset.stream(shuffle=True, seed=1)).state_dict()
    BlockPass(dataset.stream(shuffle=True, seed=1)).load_state_dict(state)
    fewer = ParquetDataset(tmp_path, "x", filters=[("x", "<", 30)]).stream(shuffle=True, seed=1)
    for other, named in (
        (dataset.stream(), "shuffle"),
        (dataset.stream(shuffle=True, seed=2), "seed"),
        (dataset.stream(shuffle=True, seed=1, window=9), "window"),
        (fewer, "53 samples"),
    ):
        with pytest.raises(BadState, match=named):
            BlockPass(other).load_state_dict(state)
    with pytest.raises(BadState):
        BlockPass(fewer).load_state_dict({"x": 1})


@pytest.mark.parametrize(("shuffle", "part"), [(True, (0, 1)), (False, (0, 2)), (False, (0, 1))])
def test_a_state_of_other_row_groups_is_rejected_where_they_matter(
    dataset: Any, tmp_path: Path, shuffle: bool, part: tuple[int, int]
) -> None:
    """The same rows, written again: shuffled, positions would mean other samples."""

    def reading() -> BlockPass:
        return BlockPass(dataset.stream(shuffle=shuffle), part)

    first = reading()
    found = [int(next(first)) for _ in range(9)]
    state = first.state_dict()
    write(tmp_path / "1.parquet", pa.table({"x": np.arange(30)}), 10)
    write(tmp_path / "2.parquet", pa.table({"x": np.arange(30, COUNT)}), 10)
    dataset = ParquetDataset(tmp_path, "x")
    if shuffle or part != (0, 1):
        with pytest.raises(BadState, match=r"but these are|row groups of other sizes.*or was part_bytes changed"):
            reading().load_state_dict(state)
    else:
        rest = reading()
        rest.load_state_dict(state)
        assert sorted(found + [int(x) for x in rest]) == list(range(COUNT))


@settings(max_examples=examples(30), deadline=None)
@given(
    count=st.integers(1, 60),
    group=st.integers(1, 20),
    window=st.integers(1, 6),
    seed=st.integers(0, 5),
    start=st.integers(0, 60),
)
def test_any_stream_can_start_at_any_sample(
    tmp_path_factory: pytest.TempPathFactory, count: int, group: int, window: int, seed: int, start: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.arrow"
    stream = ArrowDataset(write(path, pa.table({"x": np.arange(count)}), group), "x").stream(
        shuffle=True, seed=seed, window=window
    )
    assert isinstance(stream, BlockStream)
    whole = [int(x) for x in stream]
    assert sorted(whole) == list(range(count))
    reading = BlockPass(stream)
    assert reading.skip(start) == min(start, count)
    assert [int(x) for x in reading] == whole[start:]


def test_a_retried_sample_is_not_lost(dataset: Any) -> None:
    dataset.transform = FailsOnce({0, 11, COUNT - 1})
    loader = feedline.Loader(dataset.stream(), 4, on_error=feedline.faults.Retry(1, wait_s=0))
    assert numbers(loader) == list(range(COUNT))
    assert loader.stats()["faults"]["retry"] == 3


def test_only_the_samples_of_a_damaged_row_group_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"x": np.arange(60)})
    pq.write_table(rows, path, 10, compression="none", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[data.find(np.arange(25, 28).tobytes())] ^= 1
    path.write_bytes(data)
    stream = ParquetDataset(path, "x").stream()
    assert numbers(feedline.Loader(stream, 4, on_error="skip")) == [*range(20), *range(30, 60)]
    with pytest.raises(CorruptSource):
        numbers(feedline.Loader(stream, 4))


class ChangesAndFailsOnce(FailsOnce):
    """A transform that writes into its argument before it fails."""

    def __call__(self, value: Any) -> Any:
        first = int(value[0])
        value *= 10
        if first in self.left:
            self.left.remove(first)
            raise OSError("not yet")
        return value


def test_a_retry_starts_from_the_stored_value(tmp_path: Path) -> None:
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(16.0)), 2)
    write(tmp_path / "a.parquet", pa.table({"x": values}), 4)
    stream = ParquetDataset(tmp_path / "a.parquet", "x", transform=ChangesAndFailsOnce({4})).stream()
    again = feedline.faults.Retry(1, wait_s=0)
    found = np.concatenate(list(feedline.Loader(stream, 2, on_error=again)))
    assert found.ravel().tolist() == (np.arange(16.0) * 10).tolist()


def test_a_state_can_be_restored_in_the_middle_of_another_epoch(dataset: Any) -> None:
    stream = dataset.stream(shuffle=True, seed=2)
    one = iter(stream)
    for _ in range(5):
        next(one)
    state = one.state_dict()
    rest = [int(x) for x in one]
    stream.set_epoch(1)
    other = iter(stream)
    next(other)
    other.load_state_dict(state)
    assert [int(x) for x in other] == rest
