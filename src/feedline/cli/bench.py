"""`feedline bench`: feedline and torch's loader in turns on a quick set of workloads."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import ConcatDataset

from feedline.bench import harness, jpegs, rows, training, training_data
from feedline.bench.workloads import ReadySamples, TinyMap
from feedline.cli.pictures import PictureDataset, write_pictures
from feedline.errors import InternalError

PICTURE_COUNT = 240
JPEG_COUNT = 300
TRAINING_IMAGES = 4000
PICTURE_PASSES = 40  # the pictures are read over and over, so that no round reaches the end of the epoch
WORKER_COUNT = 2
COLUMNS = (
    rows.Column("samples_per_s", "samples/s", better="higher"),
    rows.Column("first_batch_ms", "first\nms"),
)


def run(arguments: argparse.Namespace) -> None:
    """Measure a set and write a table, or JSON lines, to standard output."""
    if arguments.what == "gpu":
        measure_training(arguments)
        return
    with TemporaryDirectory(prefix="feedline-bench-") as folder:
        if arguments.what == "images":
            measure_images(Path(folder) / "images", arguments)
            return
        write_pictures(Path(folder), PICTURE_COUNT)
        compare(PictureDataset(Path(folder), range(PICTURE_COUNT)), arguments)


def measure_images(folder: Path, arguments: argparse.Namespace) -> None:
    """Measure `feedline.images` beside torch's loader with the decoders that people use, and publish it."""
    jpegs.write_jpegs(JPEG_COUNT, folder)
    asked = argparse.Namespace(
        **{**vars(arguments), "workers": [WORKER_COUNT], "engine": ["process"], "batch_size": 64}
    )
    entries = list(jpegs.entries(sorted(folder.iterdir()), 64_000, asked))
    rows.publish("feedline bench images", rows.measure(entries, asked), asked, columns=COLUMNS, details=False)


def measure_training(arguments: argparse.Namespace) -> None:
    """Measure what feeds a GPU, and publish it."""
    training.check_gpu()
    with TemporaryDirectory(prefix="feedline-bench-") as folder:
        training_data.write_images(Path(folder), TRAINING_IMAGES)
        entries = training.entries(training.TABLE, Path(folder), batch_size=256, seconds=max(3.0, arguments.seconds))
        outcomes = rows.measure(entries, arguments)
        training.add_shares(outcomes)
        rows.publish("feedline bench gpu", outcomes, arguments, columns=training.COLUMNS, peer="none", details=False)


def compare(pictures: PictureDataset, arguments: argparse.Namespace) -> None:
    """Measure both loaders on the quick set and publish it."""
    outcomes = rows.measure(quick_set(pictures, arguments), arguments)
    rows.publish("feedline bench", outcomes, arguments, columns=COLUMNS, details=False)


def quick_set(pictures: PictureDataset, arguments: argparse.Namespace) -> list[harness.Entry]:
    """List what is measured: nothing but overhead, nothing but transport, and decoding."""
    tiny = TinyMap(400_000)
    repeated: ConcatDataset[Any] = ConcatDataset([pictures] * PICTURE_PASSES)  # type: ignore[list-item]  # as torch's
    entries: list[harness.Entry] = []
    for name, dataset, size, workers in (
        ("tiny", tiny, 64, 0),
        ("tiny", tiny, 64, WORKER_COUNT),
        ("38 MB", ReadySamples(1_000_000), 64, WORKER_COUNT),
        ("JPEG", repeated, 32, WORKER_COUNT),
    ):
        check_equal_batches(name, dataset, size)
        asked = argparse.Namespace(**{**vars(arguments), "workers": [workers], "engine": ["auto"]})
        entries += rows.loaders(asked, {"data": name}, rows.same(dataset), batch_size=size, shuffle=True)
    return entries


# Any: a dataset that has a length.
def check_equal_batches(name: str, dataset: Any, size: int) -> None:
    """Compare the first batches of both loaders.

    Raises InternalError: they differ, so that speeds cannot be compared.
    """
    batches = []
    for side in harness.sides(0, ()):
        generator = torch.Generator().manual_seed(0)
        batch = next(iter(side.open(dataset, batch_size=size, shuffle=True, generator=generator)))
        batches.append([batch] if isinstance(batch, torch.Tensor) else batch)
    theirs, ours = batches
    if len(theirs) != len(ours) or not all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True)):
        raise InternalError(f"With the data {name!r} feedline's first batch differs from torch's.")
