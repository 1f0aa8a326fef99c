"""One batch followed from the sampler to the training step and back: who has it, and where its bytes are."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import torch
from torch.utils.data import Dataset

import feedline
from feedline.insight.recording import Recording
from feedline.tools.lab.apart import apart
from feedline.tools.lab.controls import Choice, Number, Values
from feedline.tools.lab.pictures import Event, doing, figures, path, say, table
from feedline.tools.lab.view import Actions, View, loader_code

_SAMPLES = 512
_FOLLOWED = 5
"""The batch to follow. By then, workers have started and memory is warm."""
_PACE_S = 1.5


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Images of 12 kB that take a millisecond."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return torch.full((3, 64, 64), index % 256, dtype=torch.uint8), index


def _run(values: Values, _: Actions) -> Iterator[Event]:
    size = values["batch_size"]
    yield doing(f"The loader is delivering {_SAMPLES} samples, and the lab follows batch {_FOLLOWED}.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        loader = feedline.DataLoader(
            Pictures(),
            batch_size=size,
            shuffle=True,
            seed=0,
            num_workers=values["workers"],
            engine=values["engine"] if values["workers"] else "inline",
        )
        with feedline.record(loader, file):
            details = _follow(loader)
        loader.close()
        recording = Recording.load(file)
    stations = _stations(details, recording, values)
    for reached in range(len(stations)):
        yield path("journey", f"Batch {_FOLLOWED}, step by step", stations, reached, at=reached * _PACE_S)
    yield figures(
        {
            "bytes in the batch": details["bytes"],
            "copies after collating": 0 if details["mapped"] or not values["workers"] else "see step 5",
            "slots in use while you hold it": details["held"],
            "slots in use after you drop it": details["dropped"],
        }
    )
    yield table("owners", "Owner of its memory", ["while", "owner"], _owners(values, details))
    yield say("Its memory is reused as soon as its last tensor is gone.")


class Details(TypedDict):
    """Facts about one batch."""

    mapped: str
    held: int
    dropped: int
    bytes: int
    indices: list[int]
    address: int


def _follow(loader: feedline.DataLoader[tuple[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]) -> Details:
    """Run an epoch, and inspect one batch closely."""
    details = Details(mapped="", held=0, dropped=0, bytes=0, indices=[], address=0)
    number = -1
    for pictures, labels in loader:  # enumerate would hold the batch a moment longer
        number += 1
        if number != _FOLLOWED:
            continue
        details["bytes"] = pictures.numel() * pictures.element_size()
        details["indices"] = labels.tolist()
        details["address"] = pictures.data_ptr()
        details["mapped"] = _mapping(pictures.data_ptr())
        details["held"] = loader.stats()["leased_slots"]
        del pictures, labels
        details["dropped"] = loader.stats()["leased_slots"]
    return details


def _mapping(address: int) -> str:
    """Return the name of the shared memory at an address of this process; empty if it is other memory."""
    for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines():
        span, *rest = line.split(maxsplit=5)
        begin, _, end = span.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return rest[4] if len(rest) > 4 and "memfd" in rest[4] else ""
    return ""


def _stations(details: Details, recording: Recording, values: Values) -> list[tuple[str, str]]:
    rows = recording.rows
    place = [int(ordinal) for ordinal in rows["ordinal"]].index(_FOLLOWED)
    us = {name: int(column[place]) / 1000 for name, column in rows.items()}
    first = ", ".join(map(str, details["indices"][:4]))
    worker = int(rows["worker"][place])
    who = "the training loop itself" if worker < 0 else f"worker {worker}"
    lies = f"shared memory ({details['mapped']})" if details["mapped"] else "memory of the training process"
    collated, sent = us["collate"] + us["write"], max(0.0, us["came"] - us["finished"])
    waited = max(0.0, us["got"] - us["asked"])
    return [
        ("Sampler", f"yields indices:\n{first}, …"),
        ("Plan", f"numbers them: task {_FOLLOWED} of epoch 0, {len(details['indices'])} indices"),
        ("Scheduler", f"assigns the task and a slot to {who}" if worker >= 0 else "has nothing to do without workers"),
        ("Fetch", f"{who} makes the samples: {us['fetch']:,.0f} µs"),
        ("Collate", f"and stacks them into {lies}: {details['bytes']:,} bytes in {collated:,.0f} µs"),
        ("Answer", f"a few hundred bytes with the location of the batch arrive {sent:,.0f} µs later"),
        ("Training loop", f"gets tensors in that memory, at {details['address']:#x}, after waiting {waited:,.0f} µs"),
        (
            "Slot is released",
            f"when the last tensor is gone: {details['held']} in use before, {details['dropped']} after",
        ),
    ]


def _owners(values: Values, details: Details) -> list[list[str]]:
    if not details["mapped"]:
        return [["it is made and used", "the training process: without worker processes, nothing has to be sent"]]
    return [
        ["it is collated", "the worker that has the slot, and no other process"],
        ["it waits for its turn", "the training process, which has read the answer"],
        ["you hold its tensors", "your program; keep them as long as you like, nothing is overwritten"],
        ["the last tensor is gone", "the loader, which assigns the slot to the next task"],
    ]


def _code(values: Values) -> str:
    engine = {"engine": values["engine"]} if values["workers"] else {}
    made = loader_code(batch_size=values["batch_size"], shuffle=True, seed=0, num_workers=values["workers"], **engine)
    return f"{made}for images, labels in loader:\n    ...  # tensors in the memory that the worker wrote to\n"


VIEW = View(
    name="pipeline",
    title="Pipeline",
    notice="Follow one batch from the sampler to the training step and back.",
    more="A worker writes the batch once, into memory that it shares with the training process; it sends only a "
    "message of a few hundred bytes. The memory has one owner at a time, and is reused when your last tensor is gone. "
    "Addresses, bytes and times were just measured.",
    controls=(
        Choice("engine", "Engine", ("process", "thread"), "process"),
        Number("workers", "Workers", 0, 4, 2),
        Number("batch_size", "Batch size", 2, 64, 16),
    ),
    code=_code,
    run=apart(_run),
    questions=(
        (
            "What happens if you keep every batch in a list?",
            "Each one keeps its slot, and the loader uses others. When there are no more, it copies batches into "
            "ordinary memory. Nothing that you hold is overwritten.",
        ),
        (
            "Why do threads need no message?",
            "They run in the training process, so the batch is in its memory already. Choose the engine thread, or no "
            "workers.",
        ),
    ),
    presets=({}, {"engine": "thread"}, {"workers": 0}, {"batch_size": 64}),
)
