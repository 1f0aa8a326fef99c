"""The plugin for environments without extras: what it skips, and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import bare

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import sys
import pytest
from feedline.system.optional import require
sys.modules["h5py"] = None

def test_passes(): pass
def test_needs_a_package(): import h5py
def test_needs_an_extra(): require("h5py", extra="hdf5", purpose="A test")
def test_fails(): assert False
def test_misses_something_else(): import nowhere_to_be_found
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "torch"),
        ("ModuleNotFoundError: No module named 'torch.utils'", "torch"),
        ("HDF5Dataset needs the package 'h5py', which is not installed.", "h5py"),
        ("import of redis halted; None in sys.modules", "redis"),
        ("No module named 'feedline.gone'", None),
        ("assert 1 == 2", None),
    ],
)
def test_the_missing_package_is_read_from_the_error(text: str, name: str | None) -> None:
    assert bare.missing_package(text) == name


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rsfE",
        "-p",
        "tests.bare",
        "-p",
        "no:cacheprovider",
        "--noconftest",
    ]
    return subprocess.run(
        [*command, *options, "-c", str(folder / "none.ini"), str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_only_tests_that_need_an_extra_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "none.ini").touch()
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_file.py").write_text("import sys\nsys.modules['lmdb'] = None\nimport lmdb\n")
    (tmp_path / "test_broken.py").write_text("import feedline.gone\n")
    done = run(tmp_path, "--continue-on-collection-errors")
    assert done.returncode == 1
    assert "2 failed, 1 passed, 3 skipped, 1 error" in done.stdout
    for line in ("test_some.py::test_fails", "test_some.py::test_misses_something_else", "test_broken.py"):
        assert line in done.stdout
