"""A crash writes a core file no larger than the memory in use."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.datasets.cache.shared_bytes import SharedMemory
from tests.faults.programs import running_afresh
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


CRASH = """
import resource
import feedline.memory.sparse
feedline.memory.sparse._LARGEST_MAPPING = 2 << 30  # what a failure of this test may cost, instead of 256 GB
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
os.chdir(sys.argv[3])

class Crashing(Numbers):
    def __getitem__(self, index):
        if index == 40 and sys.argv[2] == "worker":
            os.kill(os.getpid(), signal.SIGSEGV)
        return np.full(100_000, index)

loader = Loader(Crashing(), 4, workers=1, engine=sys.argv[1], restarts=0)
try:
    for batch in loader:
        if batch[0, 0] == 40:
            os.abort()
except feedline.errors.WorkerDied:
    say("the worker died")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "who"), [("process", "worker"), ("process", "trainer"), ("thread", "trainer")])
def test_a_core_file_is_not_much_larger_than_the_memory_in_use(engine: str, who: str, tmp_path: Path) -> None:
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
        pytest.skip("core files go elsewhere on this system")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip("core files are limited here")
    with running_afresh(CRASH, engine, who, tmp_path) as program:
        if who == "worker":
            assert program.line() == "the worker died"
        program.end()
    (core,) = tmp_path.iterdir()
    assert 1 << 20 < core.stat().st_size < 512 << 20
