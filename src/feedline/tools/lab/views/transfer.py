"""How batches get to the device: copied from ordinary memory, from pinned memory, or ahead of time on a side stream.

With a GPU, the view measures the copies. Without one, it shows a recorded run and says so. `python -m
feedline.tools.lab.views.transfer FILE` makes the recording.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import feedline
from feedline.tools.lab.apart import apart
from feedline.tools.lab.controls import Number, Values
from feedline.tools.lab.pictures import Event, bars, doing, figures, lanes, say
from feedline.tools.lab.view import Actions, View

RECORDED = "transfer.json"
_STEPS_MS = (1, 3, 6, 12)
_BATCH = 64
_BATCHES = 120
_SHOWN = 12
_WAYS: dict[str, tuple[dict[str, object], str]] = {
    "pageable": ({"pin_memory": False}, "copied from ordinary memory by the CPU"),
    "pinned": ({"pin_memory": True}, "copied from pinned memory while the training loop waits"),
    "non_blocking": ({"pin_memory": True}, "the same, queued behind the last step: no waiting, but no overlap"),
    "device=": ({"device": "cuda"}, "copied ahead of time on a side stream, during the last step"),
}

# Any: details about a measured run, as JSON values.
Details = dict[str, Any]


class Ready(Dataset[torch.Tensor]):
    """Samples of 600 kB that are in memory already, so that only their transfer is measured."""

    def __init__(self) -> None:
        self.pool = torch.rand(64, 3, 224, 224)

    def __len__(self) -> int:
        return _BATCH * (_BATCHES + 20)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.pool[index % 64]


def _run(values: Values, _: Actions) -> Iterator[Event]:
    if torch.cuda.is_available():
        yield doing("Measuring on this machine's GPU.")
        details = measured(values["step_ms"])
        origin = f"Measured just now on {details['gpu']}."
    else:
        text = (resources.files("feedline.tools.lab") / "recorded" / RECORDED).read_text("utf-8")
        all_details: list[Details] = json.loads(text)
        details = min(all_details, key=lambda one: abs(one["step_ms"] - values["step_ms"]))
        step = f"{details['step_ms']:g} ms"
        origin = f"This machine has no GPU. This run was recorded on {details['gpu']}, with steps of {step}."
    yield say(origin)
    rates = {way: details["ways"][way]["samples_per_s"] for way in _WAYS}
    yield figures(
        {
            "steps alone": f"{details['alone_per_s']:,.0f} samples/s",
            **{way: f"{rate / details['alone_per_s']:.0%} of that" for way, rate in rates.items()},
        }
    )
    shades = dict(zip(_WAYS, ("bad", "queue", "transfer", "good"), strict=True))
    yield bars(
        "rates",
        "Samples per second in training",
        [(way, rate, f"{rate:,.0f}", shades[way]) for way, rate in rates.items()],
    )
    for way, (__, meaning) in _WAYS.items():
        spans = [tuple(span) for span in details["ways"][way]["spans"]]
        yield lanes(way, f"{way}: {meaning}", ["training loop", "GPU"], spans)
    yield say(origin)


def measured(step_ms: float) -> Details:
    """Train with each way of copying, and steps of `step_ms`; return rates and timelines."""
    step = _Step(step_ms)
    alone_s = step.seconds()
    details: Details = {
        "gpu": torch.cuda.get_device_name(),
        "step_ms": step_ms,
        "alone_per_s": _BATCH / alone_s,
        "ways": {way: _trained(way, arguments, step) for way, (arguments, _) in _WAYS.items()},
    }
    return details


class _Step:
    """Work for the GPU that takes some milliseconds."""

    def __init__(self, step_ms: float) -> None:
        self._matrix = torch.rand(2048, 2048, device="cuda", dtype=torch.bfloat16)
        self._count = 1
        each = self.seconds()
        self._count = max(1, round(step_ms / 1000 / each))

    def __call__(self) -> None:
        for _ in range(self._count):
            torch.mm(self._matrix, self._matrix)

    def seconds(self) -> float:
        """Return how long a step takes by itself."""
        for _ in range(20):
            self()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50):
            self()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / 50


# Any: arguments of a loader.
def _trained(way: str, arguments: dict[str, Any], step: _Step) -> Details:
    loader = feedline.DataLoader(Ready(), batch_size=_BATCH, num_workers=4, engine="process", seed=0, **arguments)
    origin = torch.cuda.Event(enable_timing=True)
    loop: list[tuple[float, float, float]] = []
    device: list[tuple[object, object, object]] = []
    batches = iter(loader)
    began_s = rated_s = 0.0
    for number in range(_BATCHES):
        if number == 20:
            torch.cuda.synchronize()
            origin.record()
            rated_s = began_s = time.perf_counter()
        asked = time.perf_counter() - began_s
        batch = next(batches)
        got = time.perf_counter() - began_s
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        events[0].record()
        if way != "device=":
            batch = batch.to("cuda", non_blocking=way == "non_blocking")
        events[1].record()
        copied = time.perf_counter() - began_s
        batch.sum()
        step()
        events[2].record()
        if 20 <= number < 20 + _SHOWN:
            loop.append((asked, got, copied))
            device.append((events[0], events[1], events[2]))
        if way != "device=" and number % 4 == 3:
            torch.cuda.current_stream().synchronize()  # as reading a loss does; otherwise the loop would run far ahead
    torch.cuda.synchronize()
    rate = (_BATCHES - 20) * _BATCH / (time.perf_counter() - rated_s)
    del batches
    loader.close()
    return {"samples_per_s": rate, "spans": _spans(loop, device, origin, way)}


def _spans(
    loop: list[tuple[float, float, float]], device: list[tuple[object, object, object]], origin: Any, way: str
) -> list[object]:
    spans: list[Any] = []
    for number, (asked, got, copied) in enumerate(loop):
        spans.append((0, asked, got, "order", f"waits for batch {number}"))
        if copied - got > 2e-5:
            spans.append((0, got, copied, "transfer", f"copies batch {number}"))
    for number, marks in enumerate(device):
        first, second, third = (origin.elapsed_time(mark) / 1000 for mark in marks)
        if way != "device=":
            spans.append((1, first, second, "transfer", f"batch {number} arrives"))
        spans.append((1, second, third, "compute", f"step {number}"))
    return [
        [lane, round(max(0.0, begin), 6), round(max(0.0, end), 6), shade, text]
        for lane, begin, end, shade, text in spans
    ]


def _code(values: Values) -> str:
    return """from feedline import DataLoader

loader = DataLoader(dataset, batch_size=64, num_workers=4, device="cuda")
for images in loader:  # already on the GPU, copied during the last step
    loss = train_step(images)
"""


VIEW = View(
    name="transfer",
    title="Transfer",
    notice="See how batches get to the GPU: four ways to copy 64 images (38 MB).",
    more="From ordinary memory, the CPU copies a batch while the GPU waits. From pinned memory, the GPU fetches it at "
    "the speed of its link, but between two steps. With device=, it fetches the batch ahead of time on a separate "
    "stream, during the last step, and the training loop gets tensors that are already on the GPU.",
    controls=(Number("step_ms", "Training step", 1, 12, 6, unit="ms"),),
    code=_code,
    run=apart(_run),
    presets=tuple({"step_ms": step_ms} for step_ms in _STEPS_MS),
)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps([measured(step_ms) for step_ms in _STEPS_MS]) + "\n", "utf-8")
