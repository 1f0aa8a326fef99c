"""What `feedline pack` writes keeps the contract of sources in every format, with the same samples and batches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.sources.stores import FORMATS, TAR_FIELDS, Original, packed

COUNT = 30


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
    has_checksums = True
    test_a_missing_file_is_named = None  # type: ignore[assignment]  # it is a missing field

    def rewrite(self) -> None:
        """Skip this: `feedline.json` belongs to the files."""

    test_columns_are_what_the_default_collate_function_makes_of_samples = None  # type: ignore[assignment]
    test_an_index_out_of_range = None
    test_an_index_that_is_no_number = None  # type: ignore[assignment]


class TestHDF5(Packed):
    format, pattern = "hdf5", "all.h5"


class TestLMDB(Packed):
    format, pattern = "lmdb", "all.lmdb"
    takes_fields = True


class TestTar(Packed):
    format, pattern = "tar", "all.tar"


class TestParquetShards(Packed):
    format, pattern = "parquet shards", "parquet/shard-*"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # its own
def test_the_webdataset_package_reads_the_same_samples(stores: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    shards = sorted(map(str, (stores / "old" / "tar").glob("*.tar")))
    found = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
    assert len(found) == COUNT
    for index, sample in enumerate(found):
        assert_same({name: sample[key] for name, key in TAR_FIELDS.items()}, Original(COUNT)[index])
