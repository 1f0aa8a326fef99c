"""`feedline bench`: the quick set of cases."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.utils.data import ConcatDataset, Dataset

from feedline.cli.contest import LOADERS, Case, Comparison, compare
from feedline.cli.pictures import PictureDataset, write_pictures
from feedline.cli.scoreboard import show_table, to_json_line

PICTURE_COUNT = 240
PICTURE_PASSES = 40  # the pictures are read over and over, so that no round reaches the end of the epoch
WORKER_COUNT = 2

Sample = tuple[torch.Tensor, int]


class TinyDataset:
    """Ten numbers and a label per sample: nothing but overhead."""

    def __init__(self, sample_count: int) -> None:
        self.inputs = torch.randn(sample_count, 10, generator=torch.Generator().manual_seed(0))
        self.labels = list(range(sample_count))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return self.inputs[index], self.labels[index]


class ReadyArrays:
    """Ready-made 3x224x224 float32 samples from a small pool: nothing but transport."""

    SHAPE = (3, 224, 224)

    def __init__(self, sample_count: int, pool_count: int = 64) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pool = [torch.randn(self.SHAPE, generator=generator) for _ in range(pool_count)]
        self.sample_count = sample_count

    def __len__(self) -> int:
        return self.sample_count

    def __getitem__(self, index: int) -> Sample:
        return self.pool[index % len(self.pool)], index


def quick_cases(pictures: PictureDataset) -> list[Case]:
    """List what `feedline bench` and the end of `feedline demo` measure."""
    tiny = TinyDataset(400_000)
    arrays = ReadyArrays(100_000)
    array_gigabytes = 64 * 4 * torch.Size(arrays.SHAPE).numel() / 1e9
    repeated: ConcatDataset[Sample] = ConcatDataset([cast("Dataset[Sample]", pictures)] * PICTURE_PASSES)
    return [
        Case("tiny", tiny, 64, 0, "batches", 1),
        Case("tiny", tiny, 64, WORKER_COUNT, "batches", 1),
        Case("38 MB", arrays, 64, WORKER_COUNT, "GB", array_gigabytes),
        Case("JPEG", repeated, 32, WORKER_COUNT, "images", 32),
    ]


def run(*, rounds: int, seconds: float, as_json: bool) -> None:
    """Measure the quick set and write a table, or JSON lines, to standard output."""
    with TemporaryDirectory(prefix="feedline-bench-") as folder:
        write_pictures(Path(folder), PICTURE_COUNT)
        cases = quick_cases(PictureDataset(Path(folder), range(PICTURE_COUNT)))
        comparisons = compare_all(cases, rounds=rounds, seconds=seconds)
    if as_json:
        sys.stdout.writelines(f"{to_json_line(comparison)}\n" for comparison in comparisons)
    else:
        show_table(comparisons, Console())


def compare_all(cases: Sequence[Case], *, rounds: int, seconds: float) -> list[Comparison]:
    """Measure every case, with a progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    comparisons = []
    # Drawn twice a second only: the bar's own thread competes with what is measured.
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True) as progress:
        bar = progress.add_task("comparing", total=len(cases) * rounds * len(LOADERS))
        advance = partial(progress.advance, bar)
        for case in cases:
            progress.update(bar, description=case.label)
            comparisons.append(compare(case, rounds=rounds, seconds=seconds, report=advance))
    return comparisons
