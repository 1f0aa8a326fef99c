"""One batch followed from the sampler to the training step and back: who has it, and where its bytes are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.utils.data import Dataset

from feedline.tools.lab import view as lab

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
    engine: Annotated[str, lab.Control("Engine", options=("process", "thread"))] = "process",
    workers: Annotated[int, lab.Control("Workers", 0, 4)] = 2,
    batch_size: Annotated[int, lab.Control("Batch size", 2, 64)] = 16,
) -> Iterator[lab.Event]:
    """Follow one batch from the sampler to the training step and back.

    A worker process writes the batch once, into memory that it shares with the training process, and sends only a
    message of a few hundred bytes. Threads need no shared memory: they run in the training process.

    The memory has one owner at a time, and is reused when your last tensor is gone. If you keep every batch, the
    loader uses other slots, and copies batches into ordinary memory when there are no more; nothing that you hold is
    overwritten. Addresses, bytes and times were just measured.
    """
    chosen = {"engine": engine} if workers else {}
    text = lab.loader_code(batch_size=batch_size, shuffle=True, seed=0, num_workers=workers, **chosen)
    yield lab.code(f"{text}\nfor images, labels in loader:\n    ...  # tensors in the memory that the worker wrote to")
    yield lab.doing(f"The loader is delivering {_SAMPLES} samples, and the lab follows batch {_FOLLOWED}.")
    loader, batch = lab.loader_of(text, dataset=Images()), _Followed()
    recording = lab.record(loader, lambda: batch.follow(loader))
    place = recording.rows["ordinal"].tolist().index(_FOLLOWED)
    stations = batch.stations({name: int(column[place]) for name, column in recording.rows.items()})
    for reached in range(len(stations)):
        yield lab.path("journey", f"Batch {_FOLLOWED}, step by step", stations, reached, at=reached * _PACE_S)
    slots = {"slots in use while you hold it": batch.held, "slots in use after you drop it": batch.dropped}
    yield lab.figures({"bytes in the batch": batch.bytes, **slots})
    yield lab.say("Its memory is reused as soon as its last tensor is gone.")


class _Followed:
    """Facts about the batch that is followed."""

    indices: list[int]
    bytes = address = held = dropped = 0
    mapping = ""

    # Any: torch's types.
    def follow(self, loader: Any) -> None:
        """Run an epoch, and inspect one batch closely."""
        number = -1
        for images, labels in loader:  # enumerate would hold the batch a moment longer
            number += 1
            if number == _FOLLOWED:
                self.indices, self.bytes, self.address = labels.tolist(), images.nbytes, images.data_ptr()
                self.mapping = _mapping(self.address)
                self.held = loader.stats()["leased_slots"]
                del images, labels
                self.dropped = loader.stats()["leased_slots"]

    def stations(self, row: dict[str, int]) -> list[tuple[str, str]]:
        """Return the stations of the batch, given its times in nanoseconds."""
        us = {name: max(0.0, ns / 1000) for name, ns in row.items()}
        who = f"worker {row['worker']}" if row["worker"] >= 0 else "the training loop itself"
        memory = f"shared memory ({self.mapping}), which only it owns" if self.mapping else "the process's own memory"
        sent_us, waited_us = max(0.0, us["came"] - us["finished"]), max(0.0, us["got"] - us["asked"])
        stacked = f"{self.bytes:,} bytes in {us['collate'] + us['write']:,.0f} µs"
        return [
            ("Sampler", f"yields indices:\n{', '.join(map(str, self.indices[:4]))}, …"),
            ("Plan", f"numbers them: task {_FOLLOWED} of epoch 0, {len(self.indices)} indices"),
            ("Scheduler", f"gives the task and a slot of memory to {who}"),
            ("Fetch", f"{who} makes the samples: {us['fetch']:,.0f} µs"),
            ("Collate", f"and stacks them into {memory}: {stacked}"),
            ("Answer", f"the place of the batch, a few hundred bytes, arrives {sent_us:,.0f} µs later"),
            ("Training loop", f"owns the tensors in it, at {self.address:#x}, after waiting {waited_us:,.0f} µs"),
            ("Slot is released", f"when the last tensor is gone: {self.held} in use before, {self.dropped} after"),
        ]


def _mapping(address: int) -> str:
    """Return the name of the shared memory at an address of this process; empty if it is other memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *rest = line.split(maxsplit=5)
        begin, _, end = span.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return rest[4] if len(rest) > 4 and "memfd" in rest[4] else ""
    return ""


VIEW = lab.View(pipeline, presets=[{}, {"engine": "thread"}, {"workers": 0}, {"batch_size": 64}])
