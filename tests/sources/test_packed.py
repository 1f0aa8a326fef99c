"""What `feedline pack` writes keeps the contract of sources in every format, with the same samples and batches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.datasets import HDF5Dataset, ParquetDataset, TarDataset
from feedline.errors import SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.sources.stores import FORMATS, TAR_FIELDS, Original, close, packed
from tests.tools.write.stores import canonical

pytestmark = pytest.mark.sample(4)

COUNT = 60


class Other(Original):
    """Samples of the same form with other values."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {**sample, "vector": sample["vector"] + 1, "label": sample["label"] + 5000}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every store of the samples, and one with every store of others."""
    folder = tmp_path_factory.mktemp("stores")
    for name, kind in (("old", Original), ("new", Other)):
        (folder / name).mkdir()
        packed(folder / name, kind(COUNT))
    return folder


class Packed(SourceContract):
    format: str
    pattern: str
    """Of the files of the format."""

    @pytest.fixture(autouse=True)
    def _files(self, stores: Path, tmp_path: Path) -> None:
        self.stores, self.folder = stores, tmp_path / "store"
        for path in sorted(stores.glob(f"old/{self.pattern}")):
            place = self.folder / path.relative_to(stores / "old")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)

    def make_source(self, **options: Any) -> Any:
        return FORMATS[self.format](self.folder, **options)

    def samples(self) -> list[Any]:
        return list(Original(COUNT))

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob(self.pattern) if path.suffix != ".json")

    def rewrite(self) -> list[Any] | None:
        for path in self.folder.glob(self.pattern):
            shutil.copyfile(self.stores / "new" / path.relative_to(self.folder), path)
        return list(Other(COUNT))

    def same(self, found: object, expected: object) -> None:
        """Compare samples, whether or not numbers come as those of NumPy."""
        assert_same(plain(found), plain(expected))


# Any: a sample, a batch, or a part of one.
def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value.item() if isinstance(value, np.generic) else value


class TestNpy(Packed):
    format, pattern = "npy", "npy/*"
    stays_mapped = True
    test_a_missing_file_is_named = None  # type: ignore[assignment]  # it is a missing field

    def rewrite(self) -> None:
        """Skip this: `feedline.json` belongs to the files."""

    test_columns_are_what_the_default_collate_function_makes_of_samples = None  # type: ignore[assignment]
    test_an_index_out_of_range = None
    test_an_index_that_is_no_number = None  # type: ignore[assignment]


class TestHDF5(Packed):
    format, pattern = "hdf5", "all.h5"


class TestHDF5Shards(Packed):
    format, pattern = "hdf5 shards", "hdf5/shard-*"


class TestLMDB(Packed):
    format, pattern = "lmdb", "all.lmdb"


class TestTar(Packed):
    format, pattern = "tar", "all.tar"


class TestTarShards(Packed):
    format, pattern = "tar shards", "tar/shard-*"


class TestParquet(Packed):
    format, pattern = "parquet", "all.parquet"


class TestParquetShards(Packed):
    format, pattern = "parquet shards", "parquet/shard-*"


SHARDED: dict[str, tuple[Any, dict[str, Any]]] = {
    "hdf5": (HDF5Dataset, {}),
    "tar": (TarDataset, {"fields": TAR_FIELDS, "cache": False}),
    "parquet": (ParquetDataset, {}),
}


@pytest.mark.parametrize("format_", SHARDED)
def test_the_error_names_a_missing_shard(stores: Path, tmp_path: Path, format_: str) -> None:
    kind, options = SHARDED[format_]
    folder = Path(shutil.copytree(stores / "old" / format_, tmp_path / "shards"))
    paths = sorted(map(str, folder.glob("shard-*")))
    Path(paths[1]).unlink()
    with pytest.raises((SourceError, FileNotFoundError), match=Path(paths[1]).name):
        list(feedline.Loader(kind(paths, **options), 16))


@pytest.mark.parametrize("format_", FORMATS)
def test_torchs_loader_gives_the_same_batches(stores: Path, format_: str, tmp_path: Path) -> None:
    options = {"cache": False} if format_.startswith("tar") else {}
    dataset = FORMATS[format_](stores / "old", **options)
    expected: Any = Original(COUNT)
    order: list[int] = [int(index) for batch in feedline.Loader(np.arange(COUNT), 8, shuffle=True) for index in batch]
    ways = [torch.utils.data.DataLoader(one, 8, sampler=order) for one in (dataset, expected)]
    for found, batch in zip(*ways, strict=True):
        assert_same(found, batch)
    close(dataset)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_tar_shards_gives_the_same_samples(stores: Path, workers: int) -> None:
    """The order of a stream depends on the workers, so samples are compared instead of batches."""
    shards = str(stores / "old" / "tar" / "shard-*.tar")
    dataset: Any = TarDataset(shards, fields=TAR_FIELDS).stream(shuffle=False)
    loader = feedline.Loader(dataset, 8, workers=workers, collate_fn=list)
    found = sorted(canonical(sample) for batch in loader for sample in batch)
    assert found == sorted(canonical(sample) for sample in Original(COUNT))
    loader.close()
    close(dataset)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # its own
def test_the_webdataset_package_reads_the_same_samples(stores: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    shards = sorted(map(str, (stores / "old" / "tar").glob("*.tar")))
    found = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
    assert len(found) == COUNT
    for index, sample in enumerate(found):
        assert_same({name: sample[key] for name, key in TAR_FIELDS.items()}, Original(COUNT)[index])
