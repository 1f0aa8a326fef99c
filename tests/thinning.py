"""Which combinations `make test` runs of tests that take long; `make slow` runs all of them.

Every test runs in at least one combination of its parameters, and which one differs from test to test, so that every
engine, loader and format is met many times over.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

EVERY = {
    "benchmarks/test_scripts.py": 8,
    "datasets/cache": 2,
    "datasets/streams/test_failures.py": 5,
    "faults/bad_samples": 4,
    "faults/test_ends.py": 6,
    "faults/test_fault_log.py": 3,
    "faults/test_fork_safety.py": 4,
    "faults/test_kept.py": 8,
    "faults/test_memory_growth.py": 3,
    "faults/test_resources.py": 4,
    "faults/test_stuck.py": 2,
    "faults/worker_killed": 3,
    "order": 3,
    "packing": 2,
    "parity": 3,
    "sources/test_process_group.py": 2,
}
"""One in so many combinations of each test, in a file or in all files of a folder."""

SLOW = {
    "test_batches_are_the_same_with_every_start_method": ("hdf5/test_dataset.py", "sql/test_dataset.py"),
}
"""Tests of a contract that are quick nowhere, and the files in which they are run all the same."""

_TESTS = Path(__file__).parent


def thin(items: Iterable[pytest.Item]) -> None:
    """Mark what is left out as slow."""
    combinations: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is not None or not item.path.is_relative_to(_TESTS):
            continue
        file = item.path.relative_to(_TESTS).as_posix()
        name = item.name.partition("[")[0]
        if name in SLOW and not file.endswith(SLOW[name]):
            item.add_marker(pytest.mark.slow)
        elif _every(file) > 1:
            combinations.setdefault((file, name), []).append(item)
    for (file, name), members in combinations.items():
        every = _every(file)
        chosen = zlib.crc32(name.encode()) % min(every, len(members))
        for number, item in enumerate(members):
            if number % every != chosen:
                item.add_marker(pytest.mark.slow)


def _every(file: str) -> int:
    folders = [folder.as_posix() for folder in PurePosixPath(file).parents]
    return next((EVERY[place] for place in (file, *folders) if place in EVERY), 1)
