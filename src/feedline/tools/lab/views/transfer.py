"""How batches get to the device: copied from ordinary memory, from pinned memory, or ahead of time on a side stream.

With a GPU, the view measures the copies. Without one, it shows a recorded run and says so. `python -m
feedline.tools.lab.views.transfer FILE` makes the recording.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated

import torch
from torch.utils.data import Dataset

from feedline.tools.lab import view as lab
from feedline.types import JsonObject

_STEPS_MS = (1, 3, 6, 12)
_BATCH = 64
_BATCH_BYTES = _BATCH * 3 * 224 * 224 * 4
_BATCHES, _WARM_UP, _SHOWN = 120, 20, 12
_PINNED: dict[str, object] = {"pin_memory": True}
_WAYS: dict[str, tuple[str, str, dict[str, object]]] = {
    "pageable": ("bad", "copied from ordinary memory by the CPU", {}),
    "pinned": ("queue", "copied from pinned memory while the training loop waits", _PINNED),
    "non_blocking": ("transfer", "the same, queued behind the last step: no waiting, but no overlap", _PINNED),
    "device=": ("good", "copied ahead of time on a side stream, during the last step", {"device": "cuda"}),
}
"""For each way to copy: its shade, what happens, and the arguments of the loader."""


class Ready(Dataset[torch.Tensor]):
    """Samples of 600 kB that are in memory already, so that only their transfer is measured."""

    def __init__(self) -> None:
        self.pool = torch.rand(64, 3, 224, 224)

    def __len__(self) -> int:
        return _BATCH * (_BATCHES + _WARM_UP)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.pool[index % 64]


def transfer(
    pin: Annotated[bool, lab.Control("Pinned memory (pin_memory)")] = True,
    step_ms: Annotated[int, lab.Control("Training step", 1, 12, unit="ms")] = 6,
) -> Iterator[lab.Event]:
    """See how batches get to the GPU: four ways to copy 64 images (38.5 MB).

    The system may move a page of ordinary, pageable memory at any time, so the GPU cannot fetch it: the CPU copies a
    batch through a pinned buffer of the driver, and the GPU waits. Pinned pages stay where they are, and the GPU
    fetches them at the speed of its link, but between two steps. With non_blocking=True, only the training loop no
    longer waits.

    With device=, the GPU fetches the batch ahead of time on another stream, during the last step, and the training loop
    gets tensors that are already on the GPU.
    """
    way, argument = ("pinned", ", non_blocking=True") if pin else ("pageable", "")
    ahead = _code("device=").partition("\n\n")[2]
    yield lab.code(f"""{_code(way)}
for images in loader:
    loss = train_step(images.to("cuda"{argument}))

{ahead}
for images in loader:  # already on the GPU, copied during the last step
    loss = train_step(images)""")
    if torch.cuda.is_available():
        yield lab.doing("Measuring on this machine's GPU.")
        measured = measure(step_ms)
        origin = f"measured just now on {measured['gpu']}"
    else:
        text = (resources.files("feedline.tools.lab") / "recorded" / "transfer.json").read_text("utf-8")
        measured = min(json.loads(text), key=lambda one: abs(one["step_ms"] - step_ms))
        yield lab.say("This machine has no GPU: the lab shows a recorded run.")
        origin = f"recorded on {measured['gpu']} with steps of {measured['step_ms']:g} ms"
    rates = {name: measured["ways"][name]["samples_per_s"] for name in _WAYS}
    alone = measured["alone_per_s"]
    shares = {name: f"{rate / alone:.0%} of that" for name, rate in rates.items()}
    yield lab.figures({"steps alone": f"{alone:,.0f} samples/s", **shares})
    copy_s = {name: _copy_s(measured["ways"][name]["spans"]) for name in ("pageable", "pinned")}
    arrived = f"{copy_s[way] * 1000:.1f} ms: {_BATCH_BYTES / copy_s[way] / 1e9:.0f} GB/s"
    written = f"{_BATCH_BYTES / 1e6:.1f} MB, written by a worker"
    stations = [("Pinned CPU memory", f"{written}; its pages stay in place, so the GPU can fetch them")]
    if not pin:
        stations = [("Pageable CPU memory", f"{written}; the system may move its pages")]
        stations += [("Staging buffer", "pinned memory of the driver: the CPU copies the batch into it, in pieces")]
    stations += [("GPU memory", f"the batch is there after {arrived}")]
    yield lab.path("path", f"The path of a batch from {way} memory, {origin}", stations, len(stations) - 1)
    drawn = [(name, rate, f"{rate:,.0f}", _WAYS[name][0]) for name, rate in rates.items()]
    yield lab.bars("rates", f"Samples per second in training, {origin}", drawn)
    for name in (*(("pinned", "non_blocking") if pin else ("pageable",)), "device="):
        spans = measured["ways"][name]["spans"]
        yield lab.lanes(name, f"{name}: {_WAYS[name][1]}", ["training loop", "GPU"], spans)
    slow, fast = (f"{seconds * 1000:.1f} ms" for seconds in copy_s.values())
    yield lab.say(f"A copy takes {slow} from pageable memory, and {fast} from pinned memory.")


def _code(way: str) -> str:
    return lab.loader_code(batch_size=_BATCH, num_workers=4, engine="process", seed=0, **_WAYS[way][2])


def _copy_s(spans: list[lab.Span]) -> float:
    """Return how long the GPU waited for a batch to arrive, between two steps: the median."""
    return statistics.median(end - start for lane, start, end, shade, _ in spans if (lane, shade) == (1, "transfer"))


def measure(step_ms: float) -> JsonObject:
    """Train in each of the ways, with steps of `step_ms`; return rates and timelines."""
    matrix = torch.rand(2048, 2048, device="cuda", dtype=torch.bfloat16)

    def multiply(count: int) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    def seconds(count: int) -> float:
        multiply(20 * count)
        torch.cuda.synchronize()
        began = time.perf_counter()
        multiply(50 * count)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / 50

    count = max(1, round(step_ms / 1000 / seconds(1)))
    ways = {way: _trained(way, partial(multiply, count)) for way in _WAYS}
    alone_per_s = _BATCH / seconds(count)
    return {"gpu": torch.cuda.get_device_name(), "step_ms": step_ms, "alone_per_s": alone_per_s, "ways": ways}


def _trained(way: str, step: Callable[[], None]) -> JsonObject:
    """Train in one way; return its rate, and the spans of some steps on the lanes of the training loop and the GPU."""
    loader = lab.loader_of(_code(way), dataset=Ready())
    origin = torch.cuda.Event(enable_timing=True)
    seen: list[tuple[float, float, float, list[torch.cuda.Event]]] = []
    batches, began_s = iter(loader), 0.0
    for number in range(_BATCHES):
        if number == _WARM_UP:
            torch.cuda.synchronize()
            origin.record()
            began_s = time.perf_counter()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        asked = time.perf_counter() - began_s
        batch = next(batches)
        got = time.perf_counter() - began_s
        marks[0].record()
        if way != "device=":
            batch = batch.to("cuda", non_blocking=way == "non_blocking")
        marks[1].record()
        copied = time.perf_counter() - began_s
        batch.sum()
        step()
        marks[2].record()
        if _WARM_UP <= number < _WARM_UP + _SHOWN:
            seen.append((asked, got, copied, marks))
        if way != "device=" and number % 4 == 3:
            torch.cuda.current_stream().synchronize()  # as reading a loss does; otherwise the loop would run far ahead
    torch.cuda.synchronize()
    rate = (_BATCHES - _WARM_UP) * _BATCH / (time.perf_counter() - began_s)
    del batches
    loader.close()
    spans: list[lab.Span] = []
    for number, (asked, got, copied, marks) in enumerate(seen):
        arrives, computes, ends = (max(0.0, origin.elapsed_time(mark) / 1000) for mark in marks)
        spans.append((0, asked, got, "order", f"waits for batch {number}"))
        if copied - got > 2e-5:
            spans.append((0, got, copied, "transfer", f"copies batch {number}"))
        if way != "device=":
            spans.append((1, arrives, computes, "transfer", f"batch {number} arrives"))
        spans.append((1, computes, ends, "compute", f"step {number}"))
    return {"samples_per_s": rate, "spans": spans}


VIEW = lab.View(transfer, presets=[{"step_ms": step_ms, "pin": pin} for step_ms in _STEPS_MS for pin in (True, False)])

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps([measure(step_ms) for step_ms in _STEPS_MS]) + "\n", "utf-8")
