"""The page that follows one batch names every file that a steady batch passes, and no other."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray

import feedline

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "feedline"

BATCH_SIZE = 8
FIRST, LAST = 20, 40
"""Batches that are followed: those before are the start of the epoch, and for the last ones nothing is requested."""


@contextmanager
def files_called(found: set[str]) -> Iterator[None]:
    """Collect the files of this thread's functions, by their path in `src/feedline/`."""

    names: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" or event == "return":  # fast, or the samples would be measured as slow ones
            names.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        found |= {Path(name).relative_to(SOURCE).as_posix() for name in names if Path(name).is_relative_to(SOURCE)}


class Followed(torch.utils.data.Dataset[NDArray[np.float32]]):
    """Samples of 16 KB; a worker follows the batches from `FIRST` to `LAST` that it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: set[str] = set()

    def __len__(self) -> int:
        return 60 * BATCH_SIZE

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        batch = index // BATCH_SIZE
        if FIRST <= batch < FIRST + 2 and not self.found:
            self._files = files_called(self.found)
            self._files.__enter__()
            self.found.add("")
        elif batch >= LAST and "" in self.found:
            self._files.__exit__(None, None, None)
            self.found.remove("")
            (self.folder / f"worker-{batch}").write_text("\n".join(sorted(self.found)))
        return np.full((64, 64), index, np.float32)


def on_the_page(heading: str) -> set[str]:
    """Return the files in the table under a heading of the page."""
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    section = page.split(f"\n### {heading}\n")[1].split("\n#")[0]
    return {name for row in section.splitlines() if row.startswith("|") for name in re.findall(r"`([\w/]+\.py)`", row)}


def test_a_steady_batch_passes_the_files_on_the_page(tmp_path: Path) -> None:
    trainer: set[str] = set()
    with feedline.DataLoader(Followed(tmp_path), BATCH_SIZE, num_workers=2) as loader:
        batches = iter(loader)
        for _ in range(FIRST):
            next(batches)
        with files_called(trainer):
            for _ in range(FIRST, LAST):
                next(batches)
        for _ in batches:
            pass
    workers = [set(path.read_text().split("\n")) for path in tmp_path.glob("worker-*")]
    assert len(workers) == 2
    sometimes, steady = on_the_page("Now and then"), on_the_page("In the training process")
    assert (trainer - sometimes, len(steady) <= 18) == (steady, True)
    for worker in workers:
        steady = on_the_page("In a worker")
        assert (worker - sometimes, len(steady) <= 10) == (steady, True)
