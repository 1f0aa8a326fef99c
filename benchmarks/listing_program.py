"""One way to list an image folder, measured from inside: `w9_listing` runs this in a fresh interpreter.

Prints one JSON object: `seconds` until paths and labels are there; `held`, the MB that the program keeps for them;
`peak`, the most that it had besides what it began with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--engine")
    parser.add_argument("--root", required=True)
    parser.add_argument("--cache", required=True)
    arguments = parser.parse_args()
    if arguments.library == "feedline":
        from feedline.datasets import ImageFolder  # before the clock starts, as the other has nothing to import
    machine.trim()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the highest memory so far
    before = memory_mb("VmRSS")
    began = time.perf_counter()
    # Any: a dataset, or a list of pairs.
    held: Any
    if arguments.library == "feedline":
        held = ImageFolder(arguments.root, decode="bytes", cache=Path(arguments.cache))
    else:
        held = make_dataset(arguments.root)
    seconds = time.perf_counter() - began
    peak = memory_mb("VmHWM")
    machine.trim()
    after = memory_mb("VmRSS")
    figures = {"seconds": seconds, "held": after - before, "peak": peak - before, "files": float(len(held))}
    sys.stdout.write(json.dumps(figures))
    return 0


def make_dataset(directory: str) -> list[tuple[str, int]]:
    """List an image folder as torchvision does."""
    classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    instances = []
    for number, name in enumerate(classes):
        for root, _, names in sorted(os.walk(os.path.join(directory, name), followlinks=True)):
            for file in sorted(names):
                path = os.path.join(root, file)
                if path.lower().endswith(EXTENSIONS):
                    instances.append((path, number))
    return instances


def memory_mb(figure: str) -> float:
    """Return what Linux says of this process's memory, in MB: as it is, VmRSS, or at its highest, VmHWM."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(text.partition(f"{figure}:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
