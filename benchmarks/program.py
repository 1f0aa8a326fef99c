"""A measurement in a fresh interpreter: `run` starts the script again with `--program`, and `main` prints the figures.

The script is the program's main module, as a training script would be: spawned workers import it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedline.tools.measure import load
from feedline.tools.measure.harness import Figures, Side, expected_warnings

_ROOT = Path(__file__).resolve().parent.parent


# Any: values that JSON keeps; they reach the script's own function by name.
def run(script: str, side: Side, **options: Any) -> Figures:
    """Run one measurement of `benchmarks.<script>` for one side.

    Raises:
        RuntimeError: the program failed; its error output is in the message.
    """
    given = json.dumps({"side": asdict(side), **options})
    command = [sys.executable, "-m", f"benchmarks.{script}", "--program", given]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(script: Callable[[], int], program: Callable[..., Figures]) -> int:
    """Run the script, or in an interpreter that `run` has started, one measurement."""
    if sys.argv[1:2] != ["--program"]:
        return script()
    options = json.loads(sys.argv[2])
    side = Side(**options.pop("side"))
    with expected_warnings():
        print(json.dumps(program(side, **options)))
    return 0


def trim() -> None:
    """Give memory back to the system that was needed for a while: what is left is held."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function, and no need of it
        ctypes.CDLL(None).malloc_trim(0)


def pss_mb(*, kinds: Collection[str] = ("Pss",)) -> float:
    """Read the summed PSS of this program and its workers."""
    found = load.pss_bytes(kinds=kinds)
    if found is None:
        raise RuntimeError("this system does not tell the summed PSS of processes; run this benchmark on Linux")
    return found / 1e6


def resident_mb(figure: str = "VmRSS") -> float:
    """Read what Linux says of this process's memory: as it is, VmRSS, or at its highest, VmHWM.

    tracemalloc would not see what torch allocates.
    """
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(text.partition(f"{figure}:")[2].split()[0]) * 1024 / 1e6


def forget_peak() -> None:
    """Make the highest resident memory so far what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
