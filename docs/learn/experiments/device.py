"""What does it cost to bring batches to a GPU, and what hides that cost?

Run it on a machine with a GPU, from the root of the repository (about two minutes):

    python docs/learn/experiments/device.py

It prints one JSON object. Durations are in milliseconds, rates in GB/s (10^9 bytes): medians of repeated measurements.

rates      host to device, one call of `copy_` at a time into memory that exists: pageable against pinned memory
calls      a copy of 64 MB: when the call returns, and when the copy is done
pinning    what it costs to get pinned memory: a new block, and a block that torch's allocator has kept
hazards    what goes wrong if the other side of a non_blocking copy is touched too early: wrong results in 20 attempts
overlap    a copy of 256 MB and matrix products that take about as long: one after the other, on one stream, on two
loop       a small CNN on batches that already lie in host memory: what the transfer alone costs
training   the same CNN behind a loader with worker processes
"""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

MB = 1_000_000
BATCH, SIDE = 256, 224
WORKERS = 8


def wall(work: Callable[[], object]) -> float:
    """Return the milliseconds from the call until the GPU has nothing left to do."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def median(values: list[float], digits: int = 3) -> float:
    """Return the median, rounded."""
    return round(statistics.median(values), digits)


def host(megabytes: float, *, pinned: bool) -> torch.Tensor:
    """Return memory whose pages exist: the first touch of a page is not part of a transfer."""
    return torch.empty(int(megabytes * MB), dtype=torch.uint8, pin_memory=pinned).fill_(1)


def machine() -> dict[str, Any]:
    """Say what this was measured on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def rates() -> dict[str, Any]:
    """Measure copies of several sizes."""
    found: dict[str, Any] = {}
    for megabytes in (0.064, 1, 8, 64, 256):
        there = torch.empty(int(megabytes * MB), dtype=torch.uint8, device="cuda")
        sources = {"pageable": host(megabytes, pinned=False), "pinned": host(megabytes, pinned=True)}
        taken: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(25 if megabytes >= 64 else 60):
            for name, source in sources.items():
                taken[name].append(wall(lambda source=source, there=there: there.copy_(source)))
        row: dict[str, float] = {}
        for name, values in taken.items():
            row[f"{name}_ms"] = median(values[5:], 4)
            row[f"{name}_gb_s"] = round(megabytes * MB / 1e9 / (row[f"{name}_ms"] / 1e3), 2)
        row["ratio"] = round(row["pageable_ms"] / row["pinned_ms"], 2)
        found[f"{megabytes:g}"] = row
    return found


def calls() -> dict[str, Any]:
    """Measure when a call returns, and when its copy is done."""
    there = torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
    sources = {"pageable": host(64, pinned=False), "pinned": host(64, pinned=True)}
    cases = [(name, flag) for name in sources for flag in (False, True)]
    taken: dict[tuple[str, bool], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(25):
        for name, flag in cases:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            there.copy_(sources[name], non_blocking=flag)
            returned = time.perf_counter()
            torch.cuda.synchronize()
            done = time.perf_counter()
            taken[name, flag].append(((returned - begin) * 1e3, (done - begin) * 1e3))
    found = {}
    for (name, flag), values in taken.items():
        returns, done = (median([value[part] for value in values[5:]]) for part in range(2))
        found[f"{name}_{'non_blocking' if flag else 'blocking'}"] = {"returns_ms": returns, "done_ms": done}
    return found


def pinning() -> dict[str, Any]:
    """Measure what pinned memory costs."""
    source = host(64, pinned=False)
    size = 1 << 26  # torch rounds up to a power of two
    forget: Any = getattr(torch._C, "_host_emptyCache", None) or getattr(torch.accelerator, "empty_host_cache", None)
    first: list[float] = []
    again: list[float] = []
    copied: list[float] = []
    plain: list[float] = []
    for _ in range(7):
        if forget is not None and torch.cuda.is_available():
            forget()
            first.append(wall(lambda: torch.empty(size, dtype=torch.uint8, pin_memory=True)))
        again.append(wall(lambda: torch.empty(size, dtype=torch.uint8, pin_memory=True)))
        copied.append(wall(lambda: source.pin_memory()))
        plain.append(wall(lambda: source.clone()))
    return {
        "new_block_64mb_ms": median(first) if first else None,
        "kept_block_ms": median(again, 4),
        "pin_memory_call_64mb_ms": median(copied),
        "clone_64mb_ms": median(plain),
    }


def hazards() -> dict[str, Any]:
    """Touch memory before its copy is done, and count the wrong results."""
    size = 64 * MB
    there = torch.zeros(size, dtype=torch.uint8, device="cuda")
    busy = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    attempts = 20
    wrong_pinned = wrong_pageable = wrong_back = 0
    for _ in range(attempts):
        for pinned in (True, False):
            source = host(64, pinned=pinned).fill_(1)
            torch.cuda.synchronize()
            _ = busy @ busy @ busy @ busy  # the copy waits for this, as it would for a training step
            there.copy_(source, non_blocking=True)
            source.fill_(2)  # the next batch is written where the copy still has to read
            torch.cuda.synchronize()
            wrong = int(there[-1].item() != 1 or there[0].item() != 1)
            if pinned:
                wrong_pinned += wrong
            else:
                wrong_pageable += wrong
        there.fill_(7)
        back = host(64, pinned=True).fill_(0)
        torch.cuda.synchronize()
        _ = busy @ busy @ busy @ busy
        back.copy_(there, non_blocking=True)
        wrong_back += int(back[-1].item() != 7)  # read before the copy is done
        torch.cuda.synchronize()
    return {
        "attempts": attempts,
        "source_overwritten_pinned_wrong": wrong_pinned,
        "source_overwritten_pageable_wrong": wrong_pageable,
        "device_to_host_read_early_wrong": wrong_back,
    }


def overlap() -> dict[str, Any]:
    """Run a copy beside matrix products."""
    pinned, pageable = host(256, pinned=True), host(256, pinned=False)
    there = torch.empty(256 * MB, dtype=torch.uint8, device="cuda")
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(left)
    side = torch.cuda.Stream()

    def copy(source: torch.Tensor) -> None:
        there.copy_(source, non_blocking=True)

    def copy_beside(source: torch.Tensor) -> None:
        with torch.cuda.stream(side):
            there.copy_(source, non_blocking=True)

    for _ in range(20):
        torch.mm(left, left, out=product)
    one = median([wall(lambda: torch.mm(left, left, out=product)) for _ in range(20)])
    copying = median([wall(lambda: copy(pinned)) for _ in range(10)])
    count = max(1, round(copying / one))

    def compute() -> None:
        for _ in range(count):
            torch.mm(left, left, out=product)

    # Balance the two: back to back, products take less than one alone.
    for _ in range(3):
        count = max(1, round(count * copying / median([wall(compute) for _ in range(5)])))

    ways: dict[str, Callable[[], None]] = {
        "copy_pinned": lambda: copy(pinned),
        "copy_pageable": lambda: copy(pageable),
        "compute": compute,
        "one_stream_pinned": lambda: (copy(pinned), compute())[-1],
        "two_streams_pinned": lambda: (copy_beside(pinned), compute())[-1],
        "two_streams_pageable_copy_first": lambda: (copy_beside(pageable), compute())[-1],
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(15):
        for name, way in ways.items():
            taken[name].append(wall(way))
    return {"products": count, **{f"{name}_ms": median(values[3:]) for name, values in taken.items()}}


class Small(nn.Module):
    """A CNN that is small enough for its input to matter."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128), (128, 256)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.body(pixels)


class Step:
    """One training step on a batch that is on the GPU: pixels of 8 bits or floats."""

    def __init__(self) -> None:
        self.model = Small().to("cuda", memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loss = nn.CrossEntropyLoss()

    def __call__(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if pixels.dtype == torch.uint8:
            pixels = pixels.float().div_(255)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.loss(self.model(pixels), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


Batch = tuple[torch.Tensor, torch.Tensor]


def moved(batch: Any, *, non_blocking: bool) -> Batch:
    """Return the batch on the GPU."""
    return batch[0].to("cuda", non_blocking=non_blocking), batch[1].to("cuda", non_blocking=non_blocking)


def ahead(batches: Any) -> Iterator[Batch]:
    """Copy the next batch on a stream beside the training loop's: the prefetcher that many programs contain."""
    side = torch.cuda.Stream()
    waiting: Batch | None = None
    for batch in batches:
        with torch.cuda.stream(side):
            fresh = moved(batch, non_blocking=True)
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream().wait_stream(side)
        for tensor in fresh:
            tensor.record_stream(torch.cuda.current_stream())
        waiting = fresh
    if waiting is not None:
        yield waiting


def loop() -> dict[str, Any]:
    """Train on batches that exist: no loader, so that the transfer is all that differs."""
    step = Step()
    return {"batch": BATCH, "steps": 60, **{kind: loop_with(step, kind) for kind in ("uint8", "float32")}}


def loop_with(step: Step, kind: str) -> dict[str, Any]:
    """Measure the loop with pixels of one type."""
    labels = torch.randint(10, (BATCH,))
    made = [torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8) for _ in range(4)]
    pageable = [(pixels.float().div_(255) if kind == "float32" else pixels, labels) for pixels in made]
    pinned = [(pixels.pin_memory(), labels.pin_memory()) for pixels, labels in pageable]
    resident = moved(pinned[0], non_blocking=False)

    def each(batches: list[Any]) -> Iterator[Any]:
        for number in range(60):
            yield batches[number % 4]

    def run(batches: Iterator[Any]) -> None:
        for pixels, labels in batches:
            step(pixels, labels)

    ways: dict[str, Callable[[], None]] = {
        "on_the_gpu_already": lambda: run(resident for _ in range(60)),
        "pageable_to": lambda: run(moved(b, non_blocking=False) for b in each(pageable)),
        "pageable_non_blocking": lambda: run(moved(b, non_blocking=True) for b in each(pageable)),
        "pinned_to": lambda: run(moved(b, non_blocking=False) for b in each(pinned)),
        "pinned_non_blocking": lambda: run(moved(b, non_blocking=True) for b in each(pinned)),
        "pinned_side_stream": lambda: run(ahead(each(pinned))),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(6):
        for name, way in ways.items():
            taken[name].append(wall(way) / 60)
    found: dict[str, Any] = {"batch_mb": round(pageable[0][0].nbytes / MB, 1)}
    return found | {f"{name}_ms_per_step": median(values[1:]) for name, values in taken.items()}


class Pictures(torch.utils.data.Dataset):
    """Pictures that cost next to nothing to make, so that workers are not what the training waits for."""

    def __init__(self) -> None:
        self.pixels = torch.randint(0, 256, (64, 3, SIDE, SIDE), dtype=torch.uint8)

    def __len__(self) -> int:
        return BATCH * 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pixels[index % 64], index % 10


def training() -> dict[str, Any]:
    """Train behind a loader."""
    import torch.utils.data

    import feedline

    step, dataset = Step(), Pictures()
    steps, skipped = 100, 30
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": WORKERS, "drop_last": True}
    torchs, ours = torch.utils.data.DataLoader, feedline.DataLoader
    ways: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}
    for name, loader_class in (("torch", torchs), ("feedline", ours)):
        made = functools.partial(loader_class, dataset, **options)
        ways[f"{name}_to"] = made, functools.partial(map, functools.partial(moved, non_blocking=False))
        pinned = functools.partial(made, pin_memory=True)
        ways[f"{name}_pinned_non_blocking"] = (
            pinned,
            functools.partial(map, functools.partial(moved, non_blocking=True)),
        )
    ways["feedline_device"] = functools.partial(ours, dataset, device="cuda", **options), iter
    resident = moved(next(iter(torch.utils.data.DataLoader(dataset, batch_size=BATCH))), non_blocking=False)
    taken: dict[str, list[float]] = {"on_the_gpu_already": [], **{name: [] for name in ways}}
    for _ in range(3):
        for _ in range(skipped):
            step(*resident)
        taken["on_the_gpu_already"].append(wall(lambda: [step(*resident) for _ in range(steps)]) / steps)
        for name, (make, feed) in ways.items():
            loader = make()
            batches = iter(feed(loader))
            for _ in range(skipped):
                step(*next(batches))
            taken[name].append(wall(lambda batches=batches: [step(*next(batches)) for _ in range(steps)]) / steps)
            del batches
            if hasattr(loader, "close"):
                loader.close()
            del loader
    found: dict[str, Any] = {"workers": WORKERS, "batch": BATCH, "batch_mb": round(BATCH * 3 * SIDE * SIDE / MB, 1)}
    for name, values in taken.items():
        found[f"{name}_ms_per_step"] = median(values)
        found[f"{name}_images_s"] = round(BATCH / (median(values) / 1e3))
    return found


def main() -> int:
    """Run all parts and print what they found; one that fails does not stop the others."""
    if not torch.cuda.is_available():
        sys.stderr.write("This experiment needs a GPU that torch can use.\n")
        return 1
    torch.backends.cudnn.benchmark = True
    found: dict[str, Any] = {}
    begin = time.perf_counter()
    for part in (machine, training, rates, calls, pinning, hazards, overlap, loop):
        at = time.perf_counter()
        try:
            found[part.__name__] = part()
        except Exception:
            found[part.__name__] = {"failed": traceback.format_exc(limit=3)}
        sys.stderr.write(f"{part.__name__}: {time.perf_counter() - at:.1f} s\n")
    found["seconds"] = round(time.perf_counter() - begin, 1)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
