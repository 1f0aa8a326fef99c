"""Damaged files give the right samples, or an error of feedline's that names the file; and take little memory and time.

Each format is read in a process of its own. A failure names the command that repeats it.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fuzz.process import described, run_cases
from tests.fuzz.targets import PROCESSES

SEED = 1
AWAITED: dict[str, tuple[str, ...]] = {
    "tar": ("wrong",),
    "tar-random": ("wrong",),
    "tar.gz": ("wrong",),
    "tar.xz": ("wrong",),
    "npy": ("wrong",),
    "npz": ("wrong",),
    "arrow": ("crash", "foreign", "wrong"),
    "arrow-stream": ("crash", "foreign", "wrong"),
    "feather": ("crash", "foreign", "wrong"),
    "parquet": ("crash", "foreign", "wrong"),
    "lmdb": ("crash", "wrong"),
    "unpacked": ("crash", "foreign", "wrong"),
    "inspect-arrow": ("crash",),
    "inspect-arrow-stream": ("crash",),
    "inspect-feather": ("crash",),
    "inspect-lmdb": ("crash",),
}
"""Failures that are known, by format: their kinds. Checks of integrity that these formats lack are to remove each."""


def check(process: str, seed: int, cases: int) -> None:
    failures = run_cases(PROCESSES[process], seed, cases)
    found = [one for one in failures if one.kind not in AWAITED.get(one.format, ())]
    assert not found, described(seed, found)


@pytest.mark.parametrize("process", PROCESSES)
def test_a_hundred_damaged_files(process: str) -> None:
    check(process, SEED, 100)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("process", PROCESSES)
def test_thousands_of_damaged_files(process: str, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("FEEDLINE_FUZZ_SEED") or random.SystemRandom().randrange(1 << 32))
    with capsys.disabled():
        print(f"\n{process}: FEEDLINE_FUZZ_SEED={seed}")  # noqa: T201  (what repeats it)
    check(process, seed, 3000)
