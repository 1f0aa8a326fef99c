"""Which combinations `make test` runs of tests that start many processes; `make slow` runs all of them.

Every test runs in at least one combination of its parameters, and which one differs from test to test, so that every
engine and every loader is met many times over.
"""

import zlib
from pathlib import Path

import pytest

EVERY = {
    "test_bad_samples.py": 4,
    "test_ends.py": 6,
    "test_fault_log.py": 3,
    "test_fork_safety.py": 4,
    "test_kept.py": 8,
    "test_memory_growth.py": 3,
    "test_resources.py": 4,
    "test_stuck.py": 2,
    "test_worker_killed.py": 3,
}
"""One in so many combinations of each test."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is left out as slow."""
    combinations: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        thinned = item.path.parent == Path(__file__).parent and item.path.name in EVERY
        if thinned and item.get_closest_marker("slow") is None:
            name = item.name.partition("[")[0]
            combinations.setdefault((item.path.name, name), []).append(item)
    for (file, name), members in combinations.items():
        chosen = zlib.crc32(name.encode()) % min(EVERY[file], len(members))
        for number, item in enumerate(members):
            if number % EVERY[file] != chosen:
                item.add_marker(pytest.mark.slow)
