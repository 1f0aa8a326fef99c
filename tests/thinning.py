"""What `make test` runs of tests that take long, and in which order; `make slow` runs all of it.

Every test runs in at least one combination of its parameters, and which one differs from test to test, so that every
engine, loader and format is met many times over. Of properties fewer examples are tried.
"""

import functools
import zlib
from collections.abc import Hashable, Iterable
from pathlib import Path, PurePosixPath

import hypothesis
import pytest

THOROUGH = "thorough"
"""The profile of Hypothesis (`--hypothesis-profile`) in which all examples are tried."""

CIRCUMSTANCES = {"engine", "loader_kind", "method", "persistent", "start_method", "worker_parity", "workers"}
"""Parameters that say where a test runs and not what it is about: it runs in one of their combinations."""

PROCESSES_IN = 5
"""One test in so many runs with worker processes, of those that may run without: a worker costs 50 ms of a core."""

ABOUT_PROCESSES = ("driver", "engines", "faults")
"""Where worker processes are as frequent as other circumstances."""

EVERY = {
    "benchmarks/test_scripts.py": 8,
    "cli/test_pack_interrupted.py": 2,
    "cli/test_tune.py": 2,
    "core/test_splitting.py": 3,
    "datasets/cache": 2,
    "datasets/hdf5/test_dataset.py": 2,
    "datasets/sql": 2,
    "datasets/tar/test_webdataset.py": 2,
    "datasets/test_mixture_stream.py": 2,
    "datasets/streams/test_failures.py": 5,
    "device/test_image_finishing.py": 2,
    "driver/test_device_batches.py": 3,
    "engines/processes/test_engine.py": 3,
    "engines/processes/test_worker.py": 2,
    "engines/test_session.py": 4,
    "engines/test_telling.py": 2,
    "engines/test_unpicklable.py": 3,
    "faults": 3,
    "faults/bad_samples": 5,
    "faults/test_ends.py": 6,
    "faults/test_fork_safety.py": 7,
    "faults/test_kept.py": 8,
    "faults/test_resources.py": 4,
    "faults/test_stuck.py": 2,
    "faults/worker_killed": 4,
    "frameworks/test_torch_collate.py": 3,
    "frameworks/test_torch_memory.py": 2,
    "loader/test_auto.py": 2,
    "loader/test_loader.py": 2,
    "order": 12,
    "packing": 3,
    "parity": 12,
    "parity/test_grid.py": 24,
    "sources/test_process_group.py": 2,
    "sources/test_same_batches.py": 2,
    "randomness/test_bijection.py": 2,
    "state/test_ranks.py": 3,
    "tune/test_diagnosis.py": 2,
}
"""One in so many of the combinations that are left of each test, in a file or in all files of a folder."""

SLOW = {
    "test_batches_are_the_same_with_every_start_method": ("hdf5/test_dataset.py", "sql/test_dataset.py"),
}
"""Tests of a contract that are quick nowhere, and the files in which they are run all the same."""

LARGE_IMPORTS = (
    "test_docs.py",
    "cli",
    "bench",  # and benchmarks
    "sources",
    "packing",
    "frameworks/test_hugging_face.py",
    "loader/test_arguments.py",
    "images",
    "datasets",
)
"""Where tests import pandas, Hugging Face's datasets, OpenCV and the like, and what comes last in every test process:
one that has them takes half as long again for each fork. In this order: no long file is left when all others are done.
"""

_TESTS = Path(__file__).parent


def thin(items: Iterable[pytest.Item]) -> None:
    """Mark what is left out as slow."""
    places: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is not None or not _is_here(item.path):
            continue
        name = item.name.partition("[")[0]
        if name in SLOW and not item.path.as_posix().endswith(SLOW[name]):
            item.add_marker(pytest.mark.slow)
        else:
            places.setdefault((item.path, name, _subject(item)), []).append(item)
    tests: dict[tuple[Path, str], list[pytest.Item]] = {}
    for members in places.values():
        item = _in_one_circumstance(members)
        tests.setdefault((item.path, item.name.partition("[")[0]), []).append(item)
    for (path, name), members in tests.items():
        _kept(members, every=_every(path), key=name)


def try_fewer_examples(items: Iterable[pytest.Item]) -> None:
    """Let properties be tried on a quarter of their examples, and on five at least."""
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if hypothesis.is_hypothesis_test(test):
            given = getattr(test, _SETTINGS, None) or hypothesis.settings()
            count = min(given.max_examples, max(5, given.max_examples // 4))
            setattr(test, _SETTINGS, hypothesis.settings(given, max_examples=count))


def turn(item: pytest.Item) -> int:
    """When several test processes come to a test: 0 for most, and more for those of `LARGE_IMPORTS`."""
    if not _is_here(item.path):
        return 0
    places = enumerate(LARGE_IMPORTS, 1)
    return next((number for number, place in places if _place(item.path).startswith(place)), 0)


# Where Hypothesis keeps the settings of a test. Its decorator cannot be used twice.
_SETTINGS = "_hypothesis_internal_use_settings"


def _subject(item: pytest.Item) -> Hashable:
    """The parameters of a test, without its circumstances; the same object is the same parameter."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    return tuple((name, id(value)) for name, value in callspec.params.items() if not _is_circumstance(name, value))


def _is_circumstance(name: str, value: object) -> bool:
    return name in CIRCUMSTANCES and not (name == "workers" and not (isinstance(value, int) and value >= 0))


def _in_one_circumstance(members: list[pytest.Item]) -> pytest.Item:
    """Keep one, and mark the others."""
    key = members[0].nodeid
    kinds: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])  # those without processes, and those with them
    for item in members:
        kinds[_starts_processes(item)].append(item)
    if all(kinds) and not _place(members[0].path).startswith(ABOUT_PROCESSES):
        has_processes = zlib.crc32(key.encode()) // 64 % PROCESSES_IN == 0
        members = kinds[has_processes]
        for item in kinds[not has_processes]:
            item.add_marker(pytest.mark.slow)
    (kept,) = _kept(members, every=len(members), key=key)
    return kept


def _starts_processes(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    return parameters.get("engine", "process") not in ("inline", "thread") and parameters.get("workers") != 0


def _kept(members: list[pytest.Item], *, every: int, key: str) -> list[pytest.Item]:
    """Keep one in `every`, and mark the others."""
    chosen = zlib.crc32(key.encode()) % min(every, len(members))
    for number, item in enumerate(members):
        if number % every != chosen:
            item.add_marker(pytest.mark.slow)
    return members[chosen::every]


@functools.cache
def _is_here(path: Path) -> bool:
    return path.is_relative_to(_TESTS)


@functools.cache
def _place(path: Path) -> str:
    return path.relative_to(_TESTS).as_posix()


@functools.cache
def _every(path: Path) -> int:
    file = PurePosixPath(_place(path))
    folders = [folder.as_posix() for folder in file.parents]
    return next((EVERY[place] for place in (file.as_posix(), *folders) if place in EVERY), 1)
