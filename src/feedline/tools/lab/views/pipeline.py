"""One batch followed from the sampler to the training step and back: who has it, and where its bytes lie."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
"""The batch that is followed. By then workers have started, and memory is warm."""
_PACE_S = 1.5


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Pictures of 12 kB that take a millisecond."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return torch.full((3, 64, 64), index % 256, dtype=torch.uint8), index


def _run(values: Values, _: Actions) -> Iterator[Event]:
    size = values["batch_size"]
    yield doing(f"The loader runs through {_SAMPLES} samples, and batch {_FOLLOWED} is followed.")
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
            facts = _follow(loader)
        loader.close()
        recording = Recording.load(file)
    stations = _stations(facts, recording, values)
    for reached in range(len(stations)):
        yield path("journey", f"Batch {_FOLLOWED}, station by station", stations, reached, at=reached * _PACE_S)
    yield figures(
        {
            "bytes of the batch": facts["bytes"],
            "copies after it was collated": 0 if facts["mapped"] or not values["workers"] else "see station 5",
            "slots in use while it is held": facts["held"],
            "and after it was dropped": facts["dropped"],
        }
    )
    yield table("owners", "Who owns its memory", ["while", "owner"], _owners(values, facts))
    yield say("The memory of the batch is used again for a later one as soon as the last tensor that shows it is gone.")


# Any: facts of several kinds.
def _follow(loader: Any) -> dict[str, Any]:
    """Go through an epoch; look closely at one batch."""
    facts: dict[str, Any] = {"mapped": "", "held": 0, "dropped": 0}
    number = -1
    for pictures, labels in loader:  # enumerate would hold the batch a moment longer
        number += 1
        if number != _FOLLOWED:
            continue
        facts["bytes"] = pictures.numel() * pictures.element_size()
        facts["indices"] = labels.tolist()
        facts["address"] = pictures.data_ptr()
        facts["mapped"] = _mapping(pictures.data_ptr())
        facts["pinned"] = pictures.is_pinned() if torch.cuda.is_available() else False
        facts["held"] = loader.stats()["leased_slots"]
        del pictures, labels
        facts["dropped"] = loader.stats()["leased_slots"]
    return facts


def _mapping(address: int) -> str:
    """Return what the system says lies at an address of this process, if it is a file or shared memory."""
    for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines():
        span, *rest = line.split(maxsplit=5)
        begin, _, end = span.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return rest[4] if len(rest) > 4 and "memfd" in rest[4] else ""
    return ""


def _stations(facts: dict[str, Any], recording: Recording, values: Values) -> list[tuple[str, str]]:
    rows = recording.rows
    place = [int(ordinal) for ordinal in rows["ordinal"]].index(_FOLLOWED)
    us = {name: int(column[place]) / 1000 for name, column in rows.items()}
    first = ", ".join(map(str, facts["indices"][:4]))
    worker = int(rows["worker"][place])
    who = "the training loop itself" if worker < 0 else f"worker {worker}"
    lies = f"shared memory ({facts['mapped']})" if facts["mapped"] else "memory of the training process"
    collated, sent = us["collate"] + us["write"], max(0.0, us["came"] - us["finished"])
    waited = max(0.0, us["got"] - us["asked"])
    return [
        ("Sampler", f"yields indices:\n{first}, …"),
        ("Plan", f"numbers them: task {_FOLLOWED} of epoch 0, {len(facts['indices'])} indices"),
        ("Scheduler", f"gives the task to {who}, with a slot" if worker >= 0 else "asks nobody: there are no workers"),
        ("Fetch", f"{who} makes the samples: {us['fetch']:,.0f} µs"),
        ("Collate", f"and stacks them, {facts['bytes']:,} bytes, in {collated:,.0f} µs, into {lies}"),
        ("Answer", f"a few hundred bytes say where the batch lies; they arrive {sent:,.0f} µs later"),
        ("Training loop", f"gets tensors that show it, at {facts['address']:#x}; waited {waited:,.0f} µs"),
        ("Slot comes back", f"when the last tensor is gone: {facts['held']} in use before, {facts['dropped']} after"),
    ]


def _owners(values: Values, facts: dict[str, Any]) -> list[list[str]]:
    if not facts["mapped"]:
        return [["it is made and used", "the training process: without worker processes nothing has to cross over"]]
    return [
        ["it is collated", "the worker that was given the slot, and nobody else"],
        ["it waits for its turn", "the training process, which has read the answer"],
        ["tensors show it", "your program; keep them as long as you like, nothing is overwritten"],
        ["the last tensor is gone", "the loader, which gives the slot to the next task"],
    ]


def _code(values: Values) -> str:
    engine = {"engine": values["engine"]} if values["workers"] else {}
    made = loader_code(batch_size=values["batch_size"], shuffle=True, seed=0, num_workers=values["workers"], **engine)
    return f"{made}for images, labels in loader:\n    ...  # tensors show the memory that the worker wrote to\n"


VIEW = View(
    name="pipeline",
    title="Pipeline",
    notice="Follow one batch from the sampler to the training step and back.",
    more="A worker writes the batch once, into memory that the training process sees as well; what crosses between "
    "the processes is a message of a few hundred bytes. The memory belongs to one owner at a time, and is used again "
    "when your last tensor is gone. Addresses, bytes and times were just measured.",
    controls=(
        Choice("engine", "Engine", ("process", "thread"), "process"),
        Number("workers", "Workers", 0, 4, 2),
        Number("batch_size", "Batch size", 2, 64, 16),
    ),
    code=_code,
    run=apart(_run),
    presets=({}, {"engine": "thread"}, {"workers": 0}, {"batch_size": 64}),
)
