"""Batches at stable addresses, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from feedline import DataLoader
from feedline.device.static_buffers import StaticBuffers
from feedline.errors import BadOption
from feedline.types import EngineName

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]
ENGINES: list[tuple[EngineName, int]] = [("inline", 0), ("thread", 2), ("process", 2)]


class Pairs(torch.utils.data.Dataset[Any]):
    """Sample i is an image filled with i, and i."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.full((3, 8, 8), float(index)), "label": index, "name": str(index)}


def addresses(batch: Any) -> tuple[int, int]:
    return batch["image"].data_ptr(), batch["label"].data_ptr()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_every_batch_of_every_epoch_has_the_same_address(engine: EngineName, workers: int, device: str) -> None:
    loader = DataLoader(Pairs(), 4, num_workers=workers, engine=engine, device=device, device_buffers="static")
    seen = set()
    for _ in range(2):
        labels = []
        for batch in loader:
            seen.add(addresses(batch))
            labels += batch["label"].tolist()
            assert batch["name"] == [str(label) for label in batch["label"].tolist()]
            assert torch.equal(batch["image"][:, 0, 0, 0], batch["label"].float())
        assert labels == list(range(22))  # the last batch is shorter
    assert len(seen) == 1


def test_without_the_option_each_batch_has_its_own_memory() -> None:
    kept = list(DataLoader(Pairs(), 4, device="cpu"))
    assert [batch["label"].tolist()[0] for batch in kept] == [0, 4, 8, 12, 16, 20]
    overwritten = list(DataLoader(Pairs(), 4, device="cpu", device_buffers="static", drop_last=True))
    assert [batch["label"].tolist()[0] for batch in overwritten] == [16] * 5


def test_the_transform_runs_before_batches_are_copied_to_the_buffers() -> None:
    loader = DataLoader(
        Pairs(), 4, device="cpu", device_buffers="static", device_transform=lambda batch: batch["image"] * 2
    )
    batches = iter(loader)
    first = next(batches)
    assert first[3, 0, 0, 0] == 6
    assert next(batches) is first


def test_copies_of_a_loader_have_their_own_buffers() -> None:
    loader = DataLoader(Pairs(), 4, device="cpu", device_buffers="static")
    batch = next(iter(loader))
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.device_buffers == "static"
        assert addresses(next(iter(other))) != addresses(batch)


def test_batches_that_cannot_be_static_are_rejected() -> None:
    with pytest.raises(BadOption, match="needs device="):
        DataLoader(Pairs(), device_buffers="static")
    with pytest.raises(BadOption, match="neither 'fresh' nor 'static'"):
        DataLoader(Pairs(), device="cpu", device_buffers="stable")  # type: ignore[call-overload]
    growing = [torch.zeros(length) for length in (3, 3, 2, 5)]
    batches = iter(DataLoader(growing, batch_size=None, device="cpu", device_buffers="static"))
    assert [len(next(batches)) for _ in range(3)] == [3, 3, 2]
    with pytest.raises(BadOption, match=r"\(5,\) and torch.float32 does not fit where that one had \(3,\)"):
        next(batches)
    with pytest.raises(BadOption, match="contains a Movable"):
        StaticBuffers().filled([Movable()])


class Movable:
    """A batch of a custom class."""

    def to(self, device: object) -> Movable:
        return self


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_graph_reads_each_batch() -> None:
    loader = DataLoader(Pairs(), 4, num_workers=2, device="cuda", device_buffers="static", drop_last=True)
    graph, total = torch.cuda.CUDAGraph(), torch.zeros((), device="cuda")
    sums = []
    for step, batch in enumerate(batch for _ in range(3) for batch in loader):
        if step == 0:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                total.copy_(batch["image"][:, 0, 0, 0].sum())
        graph.replay()
        sums.append(total.clone())
    expected = [sum(range(first, first + 4)) for first in range(0, 20, 4)] * 3
    assert [int(one) for one in sums] == expected


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # torch's recommendation, unrelated to this test
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # from torch.compile's own warm-up
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_network_compiled_to_graphs_trains_on_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # more would leave a pool of processes behind
    tqdm = pytest.importorskip("tqdm")
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # the compiler's progress bars leave a thread
    losses: list[list[float]] = []
    for mode, buffers in ((None, "fresh"), ("reduce-overhead", "fresh"), ("reduce-overhead", "static")):
        torch.manual_seed(0)
        network: Any = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 1)).to("cuda")
        trained = network if mode is None else torch.compile(network, mode=mode)
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
        options: Any = {"device_buffers": buffers}
        losses.append([])
        for batch in DataLoader(Pairs(), 4, num_workers=2, device="cuda", drop_last=True, **options):
            loss = (trained(batch["image"])[:, 0] - batch["label"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_the_first_batch_after_resuming_may_be_the_last_of_its_epoch(device: str) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Pairs(), 4, device=device, device_buffers="static")

    first = loader()
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    lengths, seen = [], set()
    for _ in range(2):
        for batch in resumed:
            lengths.append(len(batch["image"]))
            seen.add(addresses(batch))
            assert torch.equal(batch["image"][:, 0, 0, 0], batch["label"].float())
    assert lengths == [2, 4, 4, 4, 4, 4, 2]
    assert len(seen) == 1


def test_buffers_with_room_for_more_rows_keep_the_memory_format() -> None:
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    buffers = StaticBuffers(4)
    for batch in (image, torch.rand(4, 3, 4, 5)):
        found: Any = buffers.filled([batch])
        assert found[0].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(found[0], batch)
    overlapping: Any = StaticBuffers(4).filled([torch.arange(6).view(3, 2).T])
    assert overlapping[0].tolist() == [[0, 2, 4], [1, 3, 5]]
