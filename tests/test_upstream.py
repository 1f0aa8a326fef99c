"""`make upstream` finds what passes with torch's loader and not with feedline's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = """
from torch.utils.data import DataLoader
def test_same(): assert len(DataLoader(range(4))) == 4
def test_lost(): assert DataLoader.__module__ == "torch.utils.data.dataloader"
"""


def upstream(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    for name in ("src/accelerate", "tests"):
        (folder / name).mkdir(parents=True)
    file = folder / "tests/test_data_loader.py"
    file.write_text(tests, "utf-8")
    command = [sys.executable, "-m", "tests.upstream", folder, file.relative_to(folder)]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def test_reports_tests_that_only_pass_with_torch(tmp_path: Path) -> None:
    done = upstream(tmp_path, TESTS)
    assert done.stdout.splitlines() == [
        "tests/test_data_loader.py: 2 pass with torch's loader, 1 with feedline's",
        "  tests.test_data_loader::test_lost: passed, with feedline failure",
    ]
    assert done.returncode == 1
