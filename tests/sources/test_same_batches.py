"""The same samples give the same batches, bit for bit, in every format and with every engine and start method."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # it keeps files open once imported, which would look like a leak of a test

import feedline
from feedline.datasets import TarDataset
from feedline.testing.source import assert_same
from feedline.types import EngineName
from tests.sources.stores import FORMATS, TAR_FIELDS, Original, close, packed
from tests.tools.packing.stores import canonical

pytestmark = pytest.mark.sample(4)

QUICK, FULL = 200, 5000
BATCH = 32
SEED = 7


@dataclass(frozen=True)
class How:
    """A way to load: engine, workers and start method."""

    engine: EngineName
    workers: int
    start_method: str | None = None

    def __str__(self) -> str:
        return "-".join(filter(None, (self.engine, str(self.workers), self.start_method)))


WAYS = [
    How("inline", 0),
    How("thread", 1),
    How("thread", 3),
    *(How("process", workers, method) for workers in (1, 3) for method in ("fork", "forkserver", "spawn")),
]
QUICK_WAYS = [How("inline", 0), How("thread", 3), How("process", 3, "fork")]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("stores"), QUICK)


@pytest.fixture(scope="module")
def full_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("full"), FULL)


def expected_batches(count: int) -> list[Any]:
    """Return the batches of the original dataset, made in the slowest and simplest way."""
    return list(feedline.Loader(Original(count), BATCH, shuffle=True, seed=SEED))


@pytest.fixture(scope="module")
def batches() -> list[Any]:
    return expected_batches(QUICK)


@pytest.fixture(scope="module")
def full_batches() -> list[Any]:
    return expected_batches(FULL)


def check(dataset: Any, how: How, expected: list[Any], *, opened: bool) -> None:
    """Compare every batch. With `opened`, the parent reads a sample before the workers start."""
    if opened:
        assert dataset[3]["name"] == "sample 3 ☃"
    loader = feedline.Loader(
        dataset, BATCH, shuffle=True, seed=SEED, workers=how.workers, engine=how.engine, start_method=how.start_method
    )
    for found, batch in itertools.zip_longest(loader, expected):
        assert_same(found, batch)
    loader.close()
    close(dataset)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("how", QUICK_WAYS, ids=str)
def test_same_batches(stores: Path, batches: list[Any], format_: str, how: How) -> None:
    check(FORMATS[format_](stores), how, batches, opened=True)


@pytest.mark.parametrize("format_", ["hdf5", "lmdb"])
def test_same_batches_with_a_fork_server(stores: Path, batches: list[Any], format_: str) -> None:
    check(FORMATS[format_](stores), How("process", 1, "forkserver"), batches, opened=True)


@pytest.mark.slow
@pytest.mark.parametrize("opened", [False, True], ids=["", "opened"])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_same_batches_of_many_samples(
    full_stores: Path, full_batches: list[Any], format_: str, how: How, opened: bool
) -> None:
    check(FORMATS[format_](full_stores), how, full_batches, opened=opened)


@pytest.mark.parametrize("format_", FORMATS)
def test_same_samples(stores: Path, format_: str) -> None:
    dataset = FORMATS[format_](stores)
    original = Original(QUICK)
    assert len(dataset) == QUICK
    for index in (0, 11, 57, QUICK - 1):
        found, expected = dataset[index], original[index]
        assert list(found) == list(expected)
        for name, value in expected.items():
            if isinstance(value, np.ndarray):
                assert_same(np.asarray(found[name]), value)
            else:
                assert found[name] == value
    close(dataset)


@pytest.mark.parametrize("format_", FORMATS)
def test_torchs_loader_gives_the_same_batches(stores: Path, batches: list[Any], format_: str) -> None:
    dataset = FORMATS[format_](stores)
    order = [int(index) for batch in orders() for index in batch]
    loader: Any = torch.utils.data.DataLoader(dataset, BATCH, sampler=order, collate_fn=feedline.collate.default)
    for found, expected in zip(loader, batches, strict=True):
        assert_same({name: numpy_of(value) for name, value in found.items()}, expected)
    close(dataset)


def orders() -> Iterator[list[int]]:
    """Return the indices of each batch of the shuffled epoch."""
    return iter(feedline.Loader(np.arange(QUICK), BATCH, shuffle=True, seed=SEED))


def numpy_of(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("how", [How("inline", 0), How("process", 2, "fork")], ids=str)
def test_a_stream_of_tar_shards_gives_the_same_samples(stores: Path, how: How) -> None:
    """The order of a stream depends on the workers, so samples are compared instead of batches."""
    dataset: Any = TarDataset(str(stores / "tar" / "shard-*.tar"), fields=TAR_FIELDS).stream(shuffle=False)
    loader = feedline.Loader(
        dataset, BATCH, workers=how.workers, engine=how.engine, start_method=how.start_method, collate_fn=list
    )
    found = sorted(canonical(sample) for batch in loader for sample in batch)
    assert found == sorted(canonical(sample) for sample in Original(QUICK))
    loader.close()
    close(dataset)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # its own
def test_the_webdataset_package_reads_the_same_samples(stores: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    shards = sorted(map(str, (stores / "tar").glob("*.tar")))
    found = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
    assert len(found) == QUICK
    for index, sample in enumerate(found):
        assert_same({name: sample[key] for name, key in TAR_FIELDS.items()}, Original(QUICK)[index])
