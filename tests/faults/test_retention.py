"""The memory of a program is that of the batches it keeps, plus a window.

Memory is read as the system counts it: the summed PSS of this process and its workers, without mapped files.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from feedline import DataLoader
from feedline.workers import abilities
from tests.mappings import mappings
from tests.sampling import examples

BATCH = 4
IMAGE_BYTES = 1 << 20
PARTS_BYTES = BATCH * (IMAGE_BYTES + IMAGE_BYTES // 2)
WINDOW_BYTES = (2 * 2 + 2 + 2 * 2) * PARTS_BYTES
"""Two batches per worker, those of the loop, and the last ones that the portable engine's workers made and sent."""
CONSTANT = 64 << 20
"""The arena's own slack (16 MB), and the memory of Python, its heap and two workers."""


class Images(Dataset[Any]):
    """An image, a mask of half its size, a label."""

    def __init__(self, count: int = 160) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        if index >= self.count:
            raise IndexError(index)
        # Not with torch, whose own heap may not return freed memory.
        image, mask = (np.full(size // 4, index, np.float32) for size in (IMAGE_BYTES, IMAGE_BYTES // 2))
        return torch.from_numpy(image), torch.from_numpy(mask), index


def memory() -> int:
    """Return the memory of this process and its workers in bytes, without what they share with other test processes.

    A proportional share of that would change whenever one of those ends.
    """
    own = os.getpid()
    pids = [own, *map(int, Path(f"/proc/self/task/{own}/children").read_text().split())]
    return sum(map(_own_memory, pids))


def _own_memory(pid: int) -> int:
    try:
        found = mappings(pid)
    except OSError:
        return 0  # it has just ended
    return sum(
        one.sizes["Pss"] if one.is_shared or one.name.startswith("/dev/shm") else _private(one.sizes) for one in found
    )


def _private(sizes: dict[str, int]) -> int:
    return min(sizes["Anonymous"], sizes["Private_Clean"] + sizes["Private_Dirty"])


def initial_memory() -> int:
    """Return the memory before a test, after collecting garbage of earlier tests."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return memory()


ENGINES = ["inline", "thread", "process", "portable"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "portable":
        monkeypatch.setattr(abilities, "can_share_arenas", lambda: False)
    return str(request.param)


def make(engine: str, dataset: Dataset[Any] | None = None, **options: Any) -> Any:
    workers = 0 if engine == "inline" else 2
    name: Any = "process" if engine == "portable" else engine  # one of the loader's
    return DataLoader(dataset or Images(), BATCH, num_workers=workers, engine=name, **options)


def checked(parts: Any) -> Any:
    """Touch every page of a batch, since untouched memory does not count yet."""
    image, mask, labels = parts
    assert np.asarray(image)[:, ::1024].sum() == np.asarray(labels).sum() * (IMAGE_BYTES // 4 // 1024)
    assert np.asarray(mask)[:, ::1024].sum() == np.asarray(labels).sum() * (IMAGE_BYTES // 8 // 1024)
    return parts


def test_closed_loaders_leave_only_kept_batches(engine: str) -> None:
    before = initial_memory()
    kept = []
    for _ in range(3):
        loader = make(engine, Images(60))
        batches = iter(loader)
        kept.append([checked(next(batches)) for _ in range(10)])
        kept[-1] = [parts[1:] for parts in kept[-1]]
        loader.close()
        del batches, loader
    held = sum(mask.nbytes for some in kept for mask, _ in some)
    assert memory() - before < 1.25 * held + CONSTANT
    for some in kept:
        del some[1:]  # no call to feedline follows
    assert memory() - before < 1.25 * held / 10 + CONSTANT


Keeping = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=8, max_size=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
@given(pattern=Keeping, length=st.integers(0, 25))
@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_memory_is_that_of_kept_batches_and_a_window_for_any_pattern(
    name: str, pattern: list[tuple[bool, bool, bool]], length: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if name == "portable":
            patch.setattr(abilities, "can_share_arenas", lambda: False)
        before = initial_memory()
        kept: deque[list[torch.Tensor]] = deque(maxlen=length)
        for place, parts in enumerate(make(name, Images(120))):
            kept.append([part for part, keep in zip(checked(parts), pattern[place % 8], strict=True) if keep])
            del parts
            if place in (15, 29):
                alive = sum(part.nbytes for some in kept for part in some)
                assert memory() - before <= 1.25 * alive + WINDOW_BYTES + CONSTANT
        assert list(_firsts(kept)) == sorted(_firsts(kept)), "every batch is unchanged"
        gc.collect()


def _firsts(kept: deque[list[torch.Tensor]]) -> Iterator[float]:
    return (float(some[0].flatten()[0]) for some in kept if some)
