"""Run one of the measuring programs beside this file in a fresh interpreter and read the figures it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness import Figures, Side

_ROOT = Path(__file__).resolve().parent.parent


def run(module: str, side: Side, flags: Mapping[str, str | int], *, timeout_s: float = 600.0) -> Figures:
    """Run `python -m module` for one side and return what it measured.

    Raises:
        RuntimeError: the program failed; its error output is in the message.
    """
    command = [sys.executable, "-m", module, "--library", side.library]
    if side.engine is not None:
        command += ["--engine", side.engine]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures
