"""Runs `feedline bench` and `feedline tune` on datasets of users, in programs of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import program_server

OWN = Path(__file__).parent / "own_datasets.py"
BROKEN = Path(__file__).parents[1] / "measure" / "broken.py"
QUIET = """
import os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with a GPU, there would also be settings with pinned memory
from feedline.tools.measure import load, sweep
from feedline.tools.cli.main import main
load.busy_seconds = lambda: None  # whatever else this machine does
sweep._COUNTED_S = 0.02  # per measurement, regardless of --seconds
sys.exit(main())
"""


def run_quietly(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run feedline with short measurements, as if nothing else ran on this machine."""
    return program_server.run(QUIET, *arguments)
