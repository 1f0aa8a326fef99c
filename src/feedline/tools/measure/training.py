"""How much of a GPU's training rate on synthetic data remains when images have to be loaded.

A network trains first on batches that are already on the GPU, then on batches of the same size that a loader reads,
decodes, crops at random, flips and normalises. Only the steady state counts: the first two windows are left out. Times
come from the GPU's clock, so that the host does not wait for the GPU in between.
"""

from __future__ import annotations

import functools
import gc
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from feedline.errors import BadOption
from feedline.system import cuda_queues
from feedline.system.optional import require
from feedline.tools.measure import load
from feedline.tools.measure.harness import TORCH, Case, Entry, Figures, Outcome, Side, add_share
from feedline.tools.measure.rows import Column
from feedline.tools.measure.training_data import Pair, Row, opened, synthetic

SYNTHETIC = "synthetic"
SCRIPT_ORDERS = ("model-first", "loader-first")
"""What a training script creates first: most create the model, and put it on the GPU, before the loader."""
_WINDOW = 10
"""Training steps between two readings of the clock."""
_LEFT_OUT = 2

TABLE = (
    *(Row("resnet50", decode="gpu", workers=workers) for workers in (1, 2)),
    Row("resnet50", "tar", "gpu", workers=2),
    *(Row("resnet50", decode="cpu", workers=workers) for workers in (8, 14)),
    *(Row("resnet50", decode="opencv", library=TORCH, workers=workers) for workers in (8, 14)),
    *(Row("resnet50", decode="pillow", library=TORCH, workers=workers) for workers in (8, 14)),
    *(Row("resnet18", decode="gpu", workers=workers) for workers in (4, 8)),
    *(Row("resnet50 first", decode="gpu", workers=workers) for workers in (1, 2)),
    *(Row("resnet18 first", decode="gpu", workers=workers) for workers in (4, 8)),
    *(Row("resnet50 compiled", decode="gpu", workers=workers) for workers in (2, 4)),
)
"""The rows that `feedline bench gpu` measures."""

COLUMNS = (
    Column("images_per_s", "images/s", with_range=True),
    Column("share", "share", digits=3, with_range=True),
    Column("loader_cpu_s_per_1000", "CPU s\nper 1,000", digits=3),
    Column("first_batch_s", "first\nbatch s", digits=2),
    Column("host_mb", "host\nMB"),
    Column("loader_gpu_mb", "GPU\nMB"),
)


def entries(rows: Sequence[Row], data: Path, *, batch_size: int, seconds: float) -> list[Entry]:
    """Return the entries to measure: for each network its rate on synthetic data, then with each of its loaders."""
    made: list[Entry] = []
    for network in dict.fromkeys(row.network for row in rows):
        alone = Case(network=network, source="-", decode="-", workers=0)
        measure = functools.partial(_measure, network, synthetic, batch_size, seconds)
        made.append(Entry(alone, Side(SYNTHETIC), measure))
        for row in rows:
            if row.network == network:
                case = Case(network=network, source=row.source, decode=row.decode, workers=row.workers)
                fed = functools.partial(opened, row, data)
                made.append(
                    Entry(case, Side(row.library), functools.partial(_measure, network, fed, batch_size, seconds))
                )
    return made


def check_gpu() -> None:
    """Raise unless there are a GPU and torchvision to measure with.

    Raises:
        BadOption: there is no GPU.
        MissingExtra: torchvision is not installed.
    """
    cuda_queues.widen()
    if not torch.cuda.is_available():
        raise BadOption("torch finds no GPU here. Run this on a machine with one: loaders are compared with its rate.")
    require("torchvision.models", extra="gpu", purpose="Training on a GPU")


def start_cuda(order: str, rows: Sequence[Row], data: Path) -> None:
    """Create the first object on the GPU as a training script does: what comes first decides how CUDA starts.

    Args:
        order: one of `SCRIPT_ORDERS`.
        rows: what will be measured.
        data: the images.
    """
    if order == "model-first":
        _network(rows[0].network.split()[0]).to("cuda")
        return
    batches, loader = opened(rows[0], data, 8)
    next(iter(batches))
    if hasattr(loader, "close"):
        loader.close()


def add_shares(outcomes: Sequence[Outcome]) -> None:
    """Add to each outcome its share of its network's synthetic rate, and the CPU time and memory that loading adds."""
    for outcome in outcomes:
        base = next(
            other
            for other in outcomes
            if other.side.library == SYNTHETIC and other.case["network"] == outcome.case["network"]
        )
        add_share(outcome, base, "images_per_s", "share")
        for ours, theirs in zip(outcome.rounds, base.rounds, strict=True):
            for figure in ("cpu_s_per_1000", "gpu_mb"):
                ours[f"loader_{figure}"] = (ours[figure] or 0.0) - (theirs[figure] or 0.0)


@functools.cache
def _trainer(network: str, batch_size: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a function that trains a network with one batch."""
    name, *ways = network.split()
    model = _network(name).to("cuda", dtype=torch.bfloat16, memory_format=torch.channels_last)
    if "compiled" in ways:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    criterion = torch.nn.CrossEntropyLoss()

    def train(batch: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(model(batch.contiguous(memory_format=torch.channels_last)), labels).backward()
        optimizer.step()

    torch.backends.cudnn.benchmark = True
    for batch, labels in itertools.islice(synthetic(batch_size)[0], 15):
        train(batch, labels)
    torch.cuda.synchronize()
    return train


# Any: torch does not declare every argument of `Module.to`.
def _network(name: str) -> Any:
    models = require("torchvision.models", extra="gpu", purpose="Training on a GPU")
    try:
        return getattr(models, name)()
    except AttributeError as exc:
        raise BadOption(
            f"--network {name} is not a torchvision network. Give resnet18 or resnet50, for example."
        ) from exc


@functools.cache
def _stream(is_first: bool) -> torch.cuda.Stream:
    return torch.cuda.Stream(priority=-1) if is_first else torch.cuda.default_stream()


def _measure(
    network: str, fed: Callable[[int], tuple[Iterable[Pair], object]], batch_size: int, seconds: float
) -> Figures:
    with torch.cuda.stream(_stream("first" in network.split())):
        return _trained(_trainer(network, batch_size), fed, batch_size, seconds)


def _trained(
    train: Callable[[torch.Tensor, torch.Tensor], None],
    fed: Callable[[int], tuple[Iterable[Pair], object]],
    batch_size: int,
    seconds: float,
) -> Figures:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begun_s = time.perf_counter()
    batches, loader = fed(batch_size)
    iterator = iter(batches)
    events: list[torch.cuda.Event] = []
    first_s, cpu, cpu_from = 0.0, {}, 0
    for step in itertools.count():
        batch, labels = next(iterator)
        if step == 0:
            first_s = time.perf_counter() - begun_s
        if step % _WINDOW == 0:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append(event)
            if len(events) == _LEFT_OUT + 1:
                event.synchronize()
                from_s, cpu, cpu_from = time.perf_counter(), load.cpu_seconds(load.process_tree()), step
            elif len(events) > _LEFT_OUT + 2 and time.perf_counter() - from_s > seconds:
                break
        train(batch, labels)
    torch.cuda.synchronize()
    used_s = load.cpu_used(cpu, load.cpu_seconds(load.process_tree()))
    counted = events[_LEFT_OUT:]
    elapsed_s = counted[0].elapsed_time(counted[-1]) / 1000
    pss = load.pss_bytes()
    figures: Figures = {
        "images_per_s": (len(counted) - 1) * _WINDOW * batch_size / elapsed_s,
        "cpu_s_per_1000": used_s / ((step - cpu_from) * batch_size) * 1000,
        "first_batch_s": first_s,
        "gpu_mb": torch.cuda.max_memory_allocated() / 1e6,
        "host_mb": None if pss is None else pss / 1e6,
    }
    del batch, labels, iterator, batches
    if hasattr(loader, "close"):
        loader.close()
    del loader
    gc.collect()
    return figures
