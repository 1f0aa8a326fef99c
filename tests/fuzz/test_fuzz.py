"""Damaged files give the right samples or a feedline error that names the file, with little memory and time.

Formats are read in separate processes. A failure names the command that repeats it.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence

import pytest

from tests.fuzz.process import described, run_cases
from tests.fuzz.targets import PROCESSES

SEED = 1


def check(formats: Sequence[str], seed: int, cases: int) -> None:
    failures = run_cases(formats, seed, cases)
    assert not failures, described(seed, failures)


def test_a_few_damaged_files_of_every_format() -> None:
    # All formats in one process, since a short run spends most of its time on imports.
    check(list(itertools.chain.from_iterable(PROCESSES.values())), SEED, 5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("process", PROCESSES)
def test_thousands_of_damaged_files(process: str, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("FEEDLINE_FUZZ_SEED") or random.SystemRandom().randrange(1 << 32))
    with capsys.disabled():
        print(f"\n{process}: FEEDLINE_FUZZ_SEED={seed}")  # noqa: T201  (what repeats it)
    check(PROCESSES[process], seed, 3000)
