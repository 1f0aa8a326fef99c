"""OpenMP and OpenBLAS before a fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import ctypes, os, shutil, sys
import torch
from feedline.system import openmp

copy = sys.argv[1]
paths = openmp._loaded("libgomp")
if not paths:
    sys.exit(77)
shutil.copy(paths[0], copy)
ctypes.CDLL(copy)
assert copy in openmp._loaded("libgomp")
os.unlink(copy)  # as a package manager does when it replaces a library that is in use
assert copy not in openmp._loaded("libgomp")
openmp.prepare_fork()
openmp.limit_this_thread()
print(torch.ones(512, 512).sum().item())
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of loaded libraries")
@pytest.mark.slow
@pytest.mark.parametrize("folder", ["a folder with spaces", "openblas"])
def test_a_library_whose_file_was_replaced_does_not_prevent_a_fork(tmp_path: Path, folder: str) -> None:
    pytest.importorskip("torch")
    copy = tmp_path / folder / "libgomp-copy.so"
    copy.parent.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(copy)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 77:
        pytest.skip("this torch does not use GNU OpenMP")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "262144.0"
