"""How batches get to the device: copied from ordinary memory, from pinned memory, or ahead of time on a side stream.

With a GPU, the view measures the copies. Without one, it shows a recorded run and says so. `python -m
feedline.tools.lab.views.transfer FILE` makes the recording.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import feedline
from feedline.tools.lab.apart import apart
from feedline.tools.lab.controls import Number, Switch, Values
from feedline.tools.lab.pictures import Event, bars, doing, figures, lanes, path, say
from feedline.tools.lab.view import Actions, View
from feedline.types import JsonObject

RECORDED = "transfer.json"
_STEPS_MS = (1, 3, 6, 12)
_BATCH = 64
_BATCH_BYTES = _BATCH * 3 * 224 * 224 * 4
_BATCHES = 120
_SHOWN = 12
_WAYS: dict[str, tuple[dict[str, object], str]] = {
    "pageable": ({"pin_memory": False}, "copied from ordinary memory by the CPU"),
    "pinned": ({"pin_memory": True}, "copied from pinned memory while the training loop waits"),
    "non_blocking": ({"pin_memory": True}, "the same, queued behind the last step: no waiting, but no overlap"),
    "device=": ({"device": "cuda"}, "copied ahead of time on a side stream, during the last step"),
}

Details = JsonObject
"""About a measured run."""
Span = tuple[int, float, float, str, str]
"""Lane, start, end, shade and description."""


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
        origin = f"measured just now on {details['gpu']}"
    else:
        text = (resources.files("feedline.tools.lab") / "recorded" / RECORDED).read_text("utf-8")
        all_details: list[Details] = json.loads(text)
        details = min(all_details, key=lambda one: abs(one["step_ms"] - values["step_ms"]))
        yield say("This machine has no GPU: the lab shows a recorded run.")
        origin = f"recorded on {details['gpu']} with steps of {details['step_ms']:g} ms"
    rates = {way: details["ways"][way]["samples_per_s"] for way in _WAYS}
    yield figures(
        {
            "steps alone": f"{details['alone_per_s']:,.0f} samples/s",
            **{way: f"{rate / details['alone_per_s']:.0%} of that" for way, rate in rates.items()},
        }
    )
    way = "pinned" if values["pin"] else "pageable"
    copy_s = {way: _copy_s(details["ways"][way]["spans"]) for way in ("pageable", "pinned")}
    stations = _stations(way, copy_s[way])
    yield path("path", f"The path of a batch from {way} memory, {origin}", stations, len(stations) - 1)
    shades = dict(zip(_WAYS, ("bad", "queue", "transfer", "good"), strict=True))
    yield bars(
        "rates",
        f"Samples per second in training, {origin}",
        [(way, rate, f"{rate:,.0f}", shades[way]) for way, rate in rates.items()],
    )
    for way in (*(("pinned", "non_blocking") if values["pin"] else ("pageable",)), "device="):
        spans = [tuple(span) for span in details["ways"][way]["spans"]]
        yield lanes(way, f"{way}: {_WAYS[way][1]}", ["training loop", "GPU"], spans)
    slow, fast = (f"{seconds * 1000:.1f} ms" for seconds in copy_s.values())
    yield say(f"A copy takes {slow} from pageable memory, and {fast} from pinned memory.")


def _copy_s(spans: Iterable[Span]) -> float:
    """Return how long the GPU waited for a batch to arrive, between two steps: the median."""
    return statistics.median(
        [float(end - begin) for lane, begin, end, shade, _ in spans if (lane, shade) == (1, "transfer")]
    )


def _stations(way: str, copy_s: float) -> list[tuple[str, str]]:
    size = f"{_BATCH_BYTES / 1e6:.1f} MB"
    arrived = f"the batch is there after {copy_s * 1000:.1f} ms: {_BATCH_BYTES / copy_s / 1e9:.0f} GB/s"
    if way == "pinned":
        text = f"{size}, written by a worker; its pages stay in place, so the GPU can fetch them"
        return [("Pinned CPU memory", text), ("GPU memory", arrived)]
    return [
        ("Pageable CPU memory", f"{size}, written by a worker; the system may move its pages"),
        ("Staging buffer", "pinned memory of the driver: the CPU copies the batch into it, piece by piece"),
        ("GPU memory", f"the GPU fetches each piece; {arrived}"),
    ]


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
    device: list[Sequence[torch.cuda.Event]] = []
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
            device.append(events)
        if way != "device=" and number % 4 == 3:
            torch.cuda.current_stream().synchronize()  # as reading a loss does; otherwise the loop would run far ahead
    torch.cuda.synchronize()
    rate = (_BATCHES - 20) * _BATCH / (time.perf_counter() - rated_s)
    del batches
    loader.close()
    return {"samples_per_s": rate, "spans": _spans(loop, device, origin, way)}


def _spans(
    loop: list[tuple[float, float, float]], device: list[Sequence[torch.cuda.Event]], origin: torch.cuda.Event, way: str
) -> list[object]:
    spans: list[Span] = []
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
    option, argument = (", pin_memory=True", ", non_blocking=True") if values["pin"] else ("", "")
    return f"""from feedline import DataLoader

loader = DataLoader(dataset, batch_size=64, num_workers=4{option})
for images in loader:
    loss = train_step(images.to("cuda"{argument}))

loader = DataLoader(dataset, batch_size=64, num_workers=4, device="cuda")
for images in loader:  # already on the GPU, copied during the last step
    loss = train_step(images)
"""


VIEW = View(
    name="transfer",
    title="Transfer",
    notice="See how batches get to the GPU: four ways to copy 64 images (38.5 MB).",
    more="From ordinary, pageable memory, the CPU copies a batch through a buffer of the driver while the GPU waits. "
    "From pinned memory, the GPU fetches it at the speed of its link, but between two steps. With device=, it fetches "
    "the batch ahead of time on a separate stream, during the last step, and the training loop gets tensors that are "
    "already on the GPU.",
    controls=(
        Switch("pin", "Pinned memory (pin_memory)", default=True),
        Number("step_ms", "Training step", 1, 12, 6, unit="ms"),
    ),
    code=_code,
    run=apart(_run),
    questions=(
        (
            "Why can the GPU not fetch pageable memory by itself?",
            "The system may move or swap out a page at any time, and the GPU would read the wrong memory. So the CPU "
            "first copies the data into a pinned buffer of the driver. Pinned pages stay where they are.",
        ),
        (
            "Does non_blocking=True make the copy faster?",
            "No. The training loop does not wait for it, but the GPU still copies between two steps. A copy on "
            "another stream, as with device=, runs during a step.",
        ),
    ),
    presets=tuple({"step_ms": step_ms, "pin": pin} for step_ms in _STEPS_MS for pin in (True, False)),
)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps([measured(step_ms) for step_ms in _STEPS_MS]) + "\n", "utf-8")
