"""A crash writes a core file no larger than the memory in use."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.datasets.cache.shared_bytes import SharedMemory
from tests.mappings import Mapping, of_feedline

pytestmark = pytest.mark.sample(7)


class Mappings:
    """Sample i holds the pid of its worker and the worker's mappings."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pid": os.getpid(), "mapped": of_feedline(os.getpid()), "data": np.full(100_000, index)}


class Remembering:
    """A collate function that keeps its batches, so that their slots move elsewhere in the worker."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, samples: list[Any]) -> Any:
        from feedline.collate import default

        self.kept.append(default([sample["data"] for sample in samples]))
        return samples, self.kept[-1]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "thread", "fork", "forkserver", "spawn"])
def test_memory_for_batches_is_excluded_from_core_dumps(engine: str) -> None:
    options: dict[str, Any] = {"engine": engine, "workers": 0 if engine == "inline" else 1}
    if engine not in ("inline", "thread"):
        options.update(engine="process", start_method=engine)
    before = of_feedline(os.getpid())
    loader = Loader(Mappings(), 4, collate_fn=Remembering(), **options)
    mapped: set[Mapping] = set()
    for samples, _ in loader:
        mapped.update(*(sample["mapped"] for sample in samples))
        mapped.update(of_feedline(os.getpid()))
    mapped.difference_update(before)
    assert mapped, "there is memory for batches"
    if options["engine"] == "process":
        assert {sample["pid"] for sample in samples} != {os.getpid()}
    assert {mapping for mapping in mapped if "dd" not in mapping.flags} == set()
    loader.close()


def test_the_memory_of_a_cache_is_excluded_from_core_dumps() -> None:
    before = of_feedline(os.getpid())
    memory = SharedMemory(8 << 20)
    (found,) = (mapping for mapping in of_feedline(os.getpid()) if mapping not in before)
    assert found.size == memory.end
    assert "dd" in found.flags
