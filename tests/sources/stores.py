"""One dataset in every format, and how to open each: shared by the tests that cover all sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import feedline
from feedline.datasets import ArrayDataset, HDF5Dataset, LMDBDataset, ParquetDataset, TarDataset

TAR_FIELDS = {"image": "image.npy", "vector": "vector.npy", "label": "cls", "name": "name.txt"}
NAMES = list(TAR_FIELDS)
FORMATS: dict[str, Callable[..., Any]] = {
    "npy": lambda folder, **options: ArrayDataset(folder / "npy", fields=NAMES, **options),
    "hdf5": lambda folder, **options: HDF5Dataset(folder / "all.h5", fields=NAMES, **options),
    "hdf5 shards": lambda folder, **options: HDF5Dataset(f"{folder}/hdf5/shard-*.h5", fields=NAMES, **options),
    "lmdb": lambda folder, **options: LMDBDataset(folder / "all.lmdb", **options),
    "tar": lambda folder, **options: TarDataset(
        folder / "all.tar", **{"fields": TAR_FIELDS, "cache": folder / "cache", **options}
    ),
    "tar shards": lambda folder, **options: TarDataset(
        f"{folder}/tar/shard-*.tar", **{"fields": TAR_FIELDS, "cache": folder / "cache", **options}
    ),
    "parquet": lambda folder, **options: ParquetDataset(folder / "all.parquet", **options),
    "parquet shards": lambda folder, **options: ParquetDataset(f"{folder}/parquet/shard-*.parquet", **options),
}
OUTPUTS: dict[str, dict[str, Any]] = {
    "npy": {"format": "npy"},
    "all.h5": {},
    "hdf5": {"format": "hdf5"},
    "all.lmdb": {},
    "all.tar": {},
    "tar": {"format": "tar"},
    "all.parquet": {},
    "parquet": {"format": "parquet"},
}


class Original:
    """The dataset to pack: an image, a vector, a label and a name per sample."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(self.count))

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self.count:
            raise IndexError(index)
        rng = np.random.default_rng(index)
        return {
            "image": rng.integers(0, 256, (12, 10, 3), np.uint8),
            "vector": rng.standard_normal(16, np.float32),
            "label": index * 37 % 1000,
            "name": f"sample {index} ☃" if index % 11 else "",
        }


def packed(folder: Path, samples: Original) -> Path:
    for name, options in OUTPUTS.items():
        sharded: dict[str, Any] = (
            {"samples_per_shard": len(samples) // 3 + 1} if options.get("format", "npy") != "npy" else {}
        )
        feedline.pack(samples, folder / name, workers=0, **options, **sharded)
    return folder


def close(dataset: Any) -> None:
    if hasattr(dataset, "close"):
        dataset.close()
