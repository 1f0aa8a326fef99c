"""The soak itself: it passes, and it detects growth and batches that are lost, repeated or different."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any  # values of JSON

import pytest

from tests import soak
from tests.soak import Checker, unsteady

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "figure", "text"),
    [
        ("private_bytes", lambda place: (240 + 30 * (place == 40) + place % 3) * MIB, ""),
        ("private_bytes", lambda place: 240 * MIB + place * MIB // 2, "memory grew by 28 MiB"),
        ("descriptors", lambda place: 4 + place // 20, "descriptors rose from 4 to 6"),
        ("batch_bytes", lambda place: 1000 * place, "batch_bytes rose"),
    ],
)
def test_growth_is_found(name: str, figure: Callable[[int], int], text: str) -> None:
    steady = {"private_bytes": 240 * MIB, "batch_bytes": 0, "descriptors": 4, "threads": 1, "processes": 0}
    found = unsteady([{**steady, name: figure(place)} for place in range(60)])
    assert len(found) == bool(text)
    assert text in "".join(found)


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([("resume", 0), ("take", 0, [0]), ("save", 1), ("take", 1, [1]), ("resume", 1), ("take", 1, [1])], ""),
        ([("resume", 1)], "resumed at step 1"),
        ([("resume", 0), ("take", 0, [0]), ("save", 1), ("resume", 0)], "1 were saved"),
        ([("resume", 0), ("take", 1, [1])], "step 1 came where step 0 was due"),
        ([("resume", 0), ("take", 0, [7])], "instead of [0]"),
    ],
)
def test_batches_that_are_lost_repeated_or_different_are_found(events: list[Any], text: str) -> None:
    checker = Checker(iter([[0], [1], [2]]))
    for name, *values in events:
        getattr(checker, name)(*values)
    assert len(checker.problems) == bool(text)
    assert text in "".join(checker.problems)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_configurations_are_killed_resumed_and_pass(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak", "--out", str(tmp_path / "soak"), "--hours", "0.002", "--seed", "2"]
    done = subprocess.run([*command, "--resumes", "1"], cwd=soak.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
