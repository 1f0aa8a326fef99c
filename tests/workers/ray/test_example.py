"""An example, in a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.ray
@pytest.mark.timeout(300)  # Ray takes half a minute to start on a busy machine
def test_the_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    without_token = {"RAY_AUTH_MODE": "disabled"}  # which Ray would write into the home directory
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "ray_workers.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, **without_token},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for epoch in range(3):
        assert f"epoch {epoch}: 256 samples" in done.stdout
    assert "bit by bit: True" in done.stdout
