"""Batches on a GPU, and in pinned memory. Needs a CUDA device: run with `pytest -m gpu` on a machine that has one."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from feedline import DataLoader
from feedline.types import EngineName

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

Pair = namedtuple("Pair", ["image", "label"])


class Numbered(Dataset[Any]):
    """Sample i is an image filled with i, and i."""

    def __init__(self, length: int = 400, make: Callable[..., Any] = Pair) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(torch.full((3, 96, 96), float(index)), index)


class Graph:
    """A batch of a custom class, as in some libraries; it only has `to`."""

    def __init__(self, samples: Any) -> None:
        self.nodes = torch.stack([sample.image for sample in samples]) if isinstance(samples, list) else samples

    def to(self, device: Any, non_blocking: bool = False) -> Graph:
        return Graph(self.nodes.to(device, non_blocking=non_blocking))


@pytest.mark.parametrize("transform", [None, lambda graph: Graph(graph.nodes + 0)])
def test_batches_of_a_custom_class_are_moved_and_never_overwritten(transform: Any) -> None:
    kept = []
    for graph in DataLoader(Numbered(), 8, num_workers=3, collate_fn=Graph, device="cuda", device_transform=transform):
        torch.cuda._sleep(3_000_000)
        kept.append(graph.nodes[:, 0, 0, 0] * 1)
        assert graph.nodes.is_cuda
    assert torch.cat(kept).tolist() == list(range(400))


def test_a_captured_graph_reads_each_batch_from_where_it_was_copied() -> None:
    loader = DataLoader(Numbered(), 16, num_workers=2, device="cuda")
    static = Pair(torch.zeros(16, 3, 96, 96, device="cuda"), torch.zeros(16, dtype=torch.int64, device="cuda"))
    graph, total, sums = torch.cuda.CUDAGraph(), torch.zeros((), device="cuda"), []
    for step, batch in enumerate(loader):
        for place, tensor in zip(static, batch, strict=True):
            place.copy_(tensor)
        if step == 0:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                total.copy_(static.image[:, 0, 0, 0].sum())
        graph.replay()
        sums.append(total.clone())
    assert [int(one) for one in sums] == [sum(range(first, first + 16)) for first in range(0, 400, 16)]


def test_the_transform_runs_on_the_side_stream_and_ahead() -> None:
    streams = []

    def transform(batch: Any) -> Any:
        streams.append(torch.cuda.current_stream())
        return Pair(batch.image * 2, batch.label)

    loader = DataLoader(Numbered(), 16, num_workers=2, device="cuda", device_transform=transform)
    for batch in loader:
        assert bool((batch.image == 2 * batch.label.view(-1, 1, 1, 1)).all())
    assert torch.cuda.current_stream() not in streams


def test_the_training_loop_never_waits_for_the_device() -> None:
    loader = DataLoader(Numbered(64), 16, num_workers=2, device="cuda", persistent_workers=True)
    for _ in loader:
        pass
    torch.cuda.synchronize()
    batches = iter(loader)
    torch.cuda._sleep(4_000_000_000)  # keeps the training stream busy for two seconds
    busy = torch.cuda.Event()
    busy.record()
    got = [next(batches) for _ in range(3)]
    assert not busy.query(), "next() waited for the training loop's stream"
    assert [batch.label[0].item() for batch in got] == [0, 16, 32]


@pytest.mark.parametrize(
    ("engine", "workers", "ahead"),
    [("inline", 0, True), ("thread", 2, False), ("process", 3, False), ("process", 3, True)],
)
def test_thousands_of_batches_come_in_order_and_are_never_overwritten(
    engine: EngineName, workers: int, ahead: bool
) -> None:
    """Some batches are dropped at once, others kept. Copies are pending long after their batch was dropped, also on a
    side stream while the current one is idle. Work runs on side streams; values are checked on the device.
    """
    count = 2000 if workers else 500
    dataset = Numbered(count * 4)
    options: dict[str, Any] = {"device": "cuda"} if ahead else {"pin_memory": True}
    side = torch.cuda.Stream()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    kept = []
    for number, batch in enumerate(DataLoader(dataset, 4, num_workers=workers, engine=engine, **options)):
        assert isinstance(batch, Pair)
        image, label = batch.image, batch.label
        assert (image.is_cuda and label.is_cuda) if ahead else (image.is_pinned() and label.is_pinned())
        if not ahead:
            with torch.cuda.stream(side if number % 2 else torch.cuda.current_stream()):
                if number % 20 < 2:
                    torch.cuda._sleep(20_000_000)
                image, label = image.to("cuda", non_blocking=True), label.to("cuda", non_blocking=True)
        del batch
        torch.cuda.current_stream().wait_stream(side)
        for tensor in (image, label):
            tensor.record_stream(torch.cuda.current_stream())
        if number % 3 == 0:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(200_000)
                bad = (image != label.view(-1, 1, 1, 1)).sum()
            image.record_stream(side)
            label.record_stream(side)
            torch.cuda.current_stream().wait_stream(side)
            bad.record_stream(torch.cuda.current_stream())  # or the next copy on the side stream may take its memory
        else:
            if number % 7 == 0:
                torch.cuda._sleep(300_000)
            bad = (image != label.view(-1, 1, 1, 1)).sum()
        wrong += bad + (label[0] != number * 4)
        if number % 50 == 0:
            kept.append((number, image, label))
        del image, label, bad
    assert wrong.item() == 0
    for number, image, label in kept:
        assert label.tolist() == list(range(number * 4, number * 4 + 4))
        assert bool((image == label.view(-1, 1, 1, 1)).all())


class PinnedByHand:
    def __init__(self, samples: list[Any]) -> None:
        self.images = torch.stack([image for image, _ in samples])
        self.pinned_by_hand = False

    def pin_memory(self) -> PinnedByHand:
        self.images = self.images.pin_memory()
        self.pinned_by_hand = True
        return self


@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("process", 3)])
def test_the_pin_memory_method_of_a_batch_is_called(engine: EngineName, workers: int) -> None:
    options: dict[str, Any] = {"pin_memory": True, "collate_fn": PinnedByHand}
    for batch in DataLoader(Numbered(), 16, num_workers=workers, engine=engine, **options):
        assert batch.pinned_by_hand
        assert batch.images.is_pinned()


@pytest.mark.parametrize("line", ["break", "raise SystemExit(0)"])
def test_a_program_that_ends_early_ends_cleanly(line: str) -> None:
    program = f"""
import torch
from tests.device.test_torch_target import Numbered
from feedline import DataLoader
from feedline.device import torch_target
def threaded(device, transform):
    target = torch_target.target_for(device, transform)
    target.threads = 2
    return target
import feedline.loader.torch as loader_module
loader_module.target_for = threaded
loader = DataLoader(Numbered(4000), 4, num_workers=2, device="cuda", device_transform=lambda b: b)
for number, batch in enumerate(loader):
    if number == 5:
        {line}
print("done")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "terminate called" not in ended.stderr
    assert "Traceback" not in ended.stderr
