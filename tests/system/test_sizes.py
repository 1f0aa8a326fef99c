"""Sizes as users write them, in every option that is a number of bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import feedline
from feedline.datasets import CachedDataset, HDF5Dataset
from feedline.errors import BadOption, CorruptSource
from feedline.system.sizes import VARIABLE, SampleSize, byte_count, check_size, most_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (5, 5), (np.int64(5), 5), ("5", 5), ("5B", 5), ("2kB", 2000), ("2 KiB", 2048), ("1.5GB", 1_500_000_000),
        ("1gib", 1 << 30), (None, None),
    ],
)  # fmt: skip
def test_sizes_are_parsed(text: int | str | None, size: int | None) -> None:
    assert byte_count("memory", text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "4 XB", "5iB", -3, True, 1.5, "1e3", [1], 0, "0.1B"])
def test_rejects_invalid_sizes(text: Any) -> None:
    with pytest.raises(BadOption, match=r"memory=.* such as '4GB'"):
        byte_count("memory", text)


def test_rejects_sizes_below_the_minimum() -> None:
    assert byte_count("cache_bytes", 0, least=0) == 0
    with pytest.raises(BadOption, match="cache_bytes=5 is less than 6"):
        byte_count("cache_bytes", 5, least=6)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "a.h5", "w") as store:
        store["x"] = np.arange(10)
    return tmp_path / "a.h5"


OPTIONS: dict[str, Callable[[Any, Path], Any]] = {
    "memory": lambda size, file: CachedDataset([1], memory=size),
    "disk_limit": lambda size, file: CachedDataset([1], disk=file.parent / "cache", disk_limit=size),
    "cache_bytes": lambda size, file: HDF5Dataset(file, cache_bytes=size),
    "shard_bytes": lambda size, file: feedline.pack(
        [{"x": 1}], file.parent / "out", format="tar", shard_bytes=size, workers=0, overwrite=True
    ),
    "memory_budget": lambda size, file: feedline.Loader([1], memory_budget=size),
    "max_memory_per_worker": lambda size, file: feedline.Loader([1], workers=1, max_memory_per_worker=size),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_accepts_text_and_rejects_nonsense_alike(option: str, file: Path) -> None:
    make = OPTIONS[option]
    for size in (64_000_000, "64MB"):
        made = make(size, file)
        if callable(getattr(made, "close", None)):
            made.close()
    with pytest.raises(BadOption, match=rf"^{option}=.* Give an integer, or a text such as '4GB'"):
        make("4 XB", file)


def test_sizes_declared_by_files_are_checked() -> None:
    check_size("a.npy", 100, held=100, limit=100)
    with pytest.raises(CorruptSource, match=r"a\.npy declares 101 bytes, but only 100 are there: .*cut off or damaged"):
        check_size("a.npy", 101, held=100, limit=1000)
    with pytest.raises(CorruptSource, match="declares -1 bytes"):
        check_size("a.npy", -1)
    with pytest.raises(CorruptSource, match=r"a\.png takes 300 pixels, and at most 200 are.*raise MAX_PIXELS"):
        check_size(lambda: "a.png", 300, limit=200, option="MAX_PIXELS", unit="pixels")


def test_the_limit_applies_to_all_fields_of_a_sample_together() -> None:
    total = SampleSize(100, "max_field_bytes=")
    total.add("a", 60)
    assert total.left == 40
    with pytest.raises(CorruptSource, match=r"b, with the fields before it, takes 101 bytes.*raise max_field_bytes="):
        total.add("b", 41)


def test_the_limit_for_samples_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert most_bytes() == 1 << 31
    monkeypatch.setenv(VARIABLE, "8GiB")
    assert SampleSize().left == 1 << 33
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(BadOption, match="FEEDLINE_MAX_SAMPLE_BYTES='much'"):
        most_bytes()
