"""Question: what does it cost to list an image folder, in time and memory, before training can start?

Knob: the number of files, 20,000 or with `--full` a million, in a thousand directories at most.

Held still: empty files, made in a temporary folder and removed afterwards; names like those of ImageNet. Every
measurement is a fresh program that lists the folder once. `torch` stands for what torchvision's `ImageFolder` does,
`sorted(os.walk(...))` into a list of tuples, written out here. `feedline` is `ImageFolder` that lists the folder and
keeps the listing in a cache, `feedline/cache` the same when it finds the listing of an earlier program there.

How to read it: `seconds` is the time until paths and labels are ready; `held` what the program keeps for them, in MB;
`bytes` the same per file; `peak` the most it held meanwhile. A list grows again in every worker that reads it, as
`w7_memory` shows; what feedline keeps does not. The directories are in the system's cache. On a network file system,
waiting takes far longer than anything measured here, and threads help.

    python -m benchmarks.w9_listing
    python -m benchmarks.w9_listing --full
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import flags, program
from feedline.tools.measure import harness, rows

COLUMNS = (
    rows.Column("seconds", "s", digits=3, with_range=True, better="lower"),
    rows.Column("held", "held\nMB", digits=1, with_range=True, better="lower"),
    rows.Column("bytes", "bytes\nper file", digits=1),
    rows.Column("peak", "peak\nMB", digits=1),
)
LONG_AGO_NS = 1_600_000_000_000_000_000
SIDES = (harness.Side(harness.TORCH), harness.Side(harness.FEEDLINE), harness.Side(harness.FEEDLINE, "cache"))
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, files=20_000)
    parser.add_argument("--full", action="store_true", help="a million files")
    parser.add_argument("--data", type=Path, help="folder to make the files in; the temporary folder if unset")
    arguments = parser.parse_args(argv)
    if arguments.full:
        arguments.files = 1_000_000
    with tempfile.TemporaryDirectory(prefix="feedline-listing-", dir=arguments.data) as name:
        folder = Path(name)
        make_files(folder / "root", arguments.files)
        entries: list[harness.Entry] = []
        for side in SIDES:
            once = partial(one_program, side, folder, arguments.files)
            entries.append(harness.Entry({"files": arguments.files}, side, once, partial(warm_up, once)))
        outcomes = rows.measure(entries, arguments)
    rows.publish("w9_listing", outcomes, arguments, columns=COLUMNS, details=False)
    return 0


def make_files(root: Path, count: int) -> None:
    """Make empty files in directories, which seem to have been there for long."""
    directories = min(1000, max(1, count // 20))
    for number in range(directories):
        name = f"n{1_440_764 + 37 * number:08d}"
        (root / name).mkdir(parents=True)
        descriptor = os.open(root / name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for file in range(number, count, directories):
                os.close(os.open(f"{name}_{file}.JPEG", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=descriptor))
        finally:
            os.close(descriptor)
        os.utime(root / name, ns=(LONG_AGO_NS, LONG_AGO_NS))
    os.utime(root, ns=(LONG_AGO_NS, LONG_AGO_NS))


def warm_up(once: partial[harness.Figures]) -> None:
    """Run a first program, whose figures are not counted."""
    once()


def one_program(side: harness.Side, folder: Path, count: int) -> harness.Figures:
    cache = folder / "cache"
    run = partial(program.run, "w9_listing", side, root=str(folder / "root"), cache=str(cache))
    if side.engine is None:
        for file in cache.glob("*.listing"):
            file.unlink()
    elif not any(cache.glob("*.listing")):
        run()
    figures = run()
    found = figures["files"]
    if found != count:
        raise RuntimeError(f"{side.name} found {found} of {count} files")
    return {**figures, "bytes": (figures["held"] or 0.0) * 1e6 / found}


def measure(side: harness.Side, root: str, cache: str) -> harness.Figures:
    """List the folder in this program."""
    from feedline.datasets import ImageFolder  # before the clock starts, as the other has nothing to import

    program.trim()
    program.forget_peak()
    before = program.resident_mb()
    began = time.perf_counter()
    # Any: a dataset, or a list of pairs.
    held: Any
    if side.library == harness.FEEDLINE:
        held = ImageFolder(root, decode="bytes", cache=Path(cache))
    else:
        held = make_dataset(root)
    seconds = time.perf_counter() - began
    peak = program.resident_mb("VmHWM")
    program.trim()
    after = program.resident_mb()
    return {"seconds": seconds, "held": after - before, "peak": peak - before, "files": float(len(held))}


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


if __name__ == "__main__":
    sys.exit(program.main(main, measure))
