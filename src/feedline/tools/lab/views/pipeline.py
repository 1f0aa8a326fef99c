"""One batch followed from the sampler to the training step and back: who has it, and where its bytes are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.utils.data import Dataset

from feedline.insight.recording import Recording
from feedline.tools.lab.loaders import loader_code, loader_of, record
from feedline.tools.lab.pictures import Event, code, doing, figures, path, say
from feedline.tools.lab.view import Control, View

_SAMPLES = 512
_FOLLOWED = 5
"""The batch to follow. By then, workers have started and memory is warm."""
_PACE_S = 1.5


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images of 12 kB that take a millisecond."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return torch.full((3, 64, 64), index % 256, dtype=torch.uint8), index


def pipeline(
    engine: Annotated[str, Control("Engine", options=("process", "thread"))] = "process",
    workers: Annotated[int, Control("Workers", 0, 4)] = 2,
    batch_size: Annotated[int, Control("Batch size", 2, 64)] = 16,
) -> Iterator[Event]:
    """Follow one batch from the sampler to the training step and back.

    A worker process writes the batch once, into memory that it shares with the training process, and sends only a
    message of a few hundred bytes. Threads need no shared memory: they run in the training process.

    The memory has one owner at a time, and is reused when your last tensor is gone. If you keep every batch, the
    loader uses other slots, and copies batches into ordinary memory when there are no more; nothing that you hold is
    overwritten. Addresses, bytes and times were just measured.
    """
    chosen = {"engine": engine} if workers else {}
    text = loader_code(batch_size=batch_size, shuffle=True, seed=0, num_workers=workers, **chosen)
    yield code(f"{text}\nfor images, labels in loader:\n    ...  # tensors in the memory that the worker wrote to")
    yield doing(f"The loader is delivering {_SAMPLES} samples, and the lab follows batch {_FOLLOWED}.")
    loader, batch = loader_of(text, dataset=Images()), _Followed()
    stations = _stations(batch, record(loader, lambda: batch.follow(loader)))
    for reached in range(len(stations)):
        yield path("journey", f"Batch {_FOLLOWED}, step by step", stations, reached, at=reached * _PACE_S)
    yield figures(
        {
            "bytes in the batch": batch.bytes,
            "slots in use while you hold it": batch.held,
            "slots in use after you drop it": batch.dropped,
        }
    )
    yield say("Its memory is reused as soon as its last tensor is gone.")


class _Followed:
    """Facts about the batch that is followed."""

    indices: list[int]
    bytes = address = held = dropped = 0
    memory = ""

    # Any: torch's types.
    def follow(self, loader: Any) -> None:
        """Run an epoch, and inspect one batch closely."""
        number = -1
        for images, labels in loader:  # enumerate would hold the batch a moment longer
            number += 1
            if number == _FOLLOWED:
                self.indices, self.bytes, self.address = labels.tolist(), images.nbytes, images.data_ptr()
                self.memory = _mapping(self.address)
                self.held = loader.stats()["leased_slots"]
                del images, labels
                self.dropped = loader.stats()["leased_slots"]


def _mapping(address: int) -> str:
    """Return the name of the shared memory at an address of this process; empty if it is other memory."""
    for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines():
        span, *rest = line.split(maxsplit=5)
        begin, _, end = span.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return rest[4] if len(rest) > 4 and "memfd" in rest[4] else ""
    return ""


def _stations(batch: _Followed, recording: Recording) -> list[tuple[str, str]]:
    place = [int(ordinal) for ordinal in recording.rows["ordinal"]].index(_FOLLOWED)
    row = {name: int(column[place]) for name, column in recording.rows.items()}
    us = {name: max(0.0, ns / 1000) for name, ns in row.items()}
    who = f"worker {row['worker']}" if row["worker"] >= 0 else "the training loop itself"
    memory = f"shared memory ({batch.memory}), which only it owns" if batch.memory else "memory of the training process"
    sent_us, waited_us = max(0.0, us["came"] - us["finished"]), max(0.0, us["got"] - us["asked"])
    return [
        ("Sampler", f"yields indices:\n{', '.join(map(str, batch.indices[:4]))}, …"),
        ("Plan", f"numbers them: task {_FOLLOWED} of epoch 0, {len(batch.indices)} indices"),
        ("Scheduler", f"gives the task and a slot of memory to {who}"),
        ("Fetch", f"{who} makes the samples: {us['fetch']:,.0f} µs"),
        ("Collate", f"and stacks them into {memory}: {batch.bytes:,} bytes in {us['collate'] + us['write']:,.0f} µs"),
        ("Answer", f"the place of the batch, a few hundred bytes, arrives {sent_us:,.0f} µs later"),
        ("Training loop", f"owns the tensors in that memory, at {batch.address:#x}, after waiting {waited_us:,.0f} µs"),
        ("Slot is released", f"when the last tensor is gone: {batch.held} in use before, {batch.dropped} after"),
    ]


VIEW = View(pipeline, presets=[{}, {"engine": "thread"}, {"workers": 0}, {"batch_size": 64}])
