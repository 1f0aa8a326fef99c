"""torch as a framework: shortcuts for typical batches, and how a worker becomes torch's worker."""

from __future__ import annotations

import marshal
import random
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterDataPipe, get_worker_info
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.datapipes.iter import IterableWrapper

from feedline.frameworks.torch import TorchFramework, seed_pipe
from feedline.memory.codec import Views
from feedline.types import WorkerIdentity
from tests.memory.tasks import slot

FRAMEWORK = TorchFramework()


# -- describe and rebuild ---


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(6.0).reshape(2, 3),
        [torch.ones(2), torch.zeros(3, dtype=torch.int64)],
        (torch.ones(2),),
        {"x": torch.ones(2), "": torch.zeros(0, 4)},
        [],
        {},
        (),
    ],
)
def test_typical_batches_are_described_with_types_that_marshal_supports(batch: Any) -> None:
    writer = slot()
    description = marshal.loads(marshal.dumps(FRAMEWORK.describe(batch, writer)))
    again = FRAMEWORK.rebuild(description, Views(writer.view))
    assert type(again) is type(batch)
    pairs = (
        zip(again.values(), batch.values(), strict=True) if isinstance(batch, dict) else zip(again, batch, strict=True)
    )
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    if isinstance(batch, dict):
        assert list(again) == list(batch)


ONE = torch.ones(3)


@pytest.mark.parametrize(
    "batch",
    [
        "text",
        7,
        None,
        [ONE, "text"],
        [ONE, [ONE]],
        [ONE, ONE],
        {"x": ONE, 1: torch.ones(2)},
        OrderedDict(x=ONE),
        torch.Size([1, 2]),
        [np.ones(3)],
        [torch.ones(4)[::2]],
        [torch.ones(2, requires_grad=True)],
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(ONE),
        [torch.ones(2, device="meta")],
        [torch.ones(2, dtype=torch.complex64).conj()],
    ],
    ids=lambda batch: repr(batch)[:40],
)
def test_other_batches_are_left_to_pickle(batch: Any) -> None:
    assert FRAMEWORK.describe(batch, slot()) is None


# -- workers ---


class Numbers:
    def __len__(self) -> int:
        return 3


@pytest.fixture
def restored_process(two_torch_threads: None, generators_as_they_were: None) -> Iterator[None]:
    """Restore what opening a worker in this process changes."""
    yield
    torch_worker._worker_info = None


def open_worker(number: int, *, threaded: bool, dataset: Any = None, shared_seed: int | None = None) -> Any:
    dataset = Numbers() if dataset is None else dataset
    return FRAMEWORK.open_worker(WorkerIdentity(number, 2, 100 + number, dataset, threaded), 100, shared_seed)


@pytest.mark.usefixtures("restored_process")
def test_a_process_is_seeded_like_torchs_workers() -> None:
    drawn = []
    for number in (0, 1, 0):
        open_worker(number, threaded=False)
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]
    torch.manual_seed(100)
    assert drawn[0][2] == float(torch.rand(()))
    random.seed(100)
    assert drawn[0][0] == random.random()
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="devices in use are seeded at once")
@pytest.mark.usefixtures("restored_process")
def test_unused_devices_are_seeded_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = type(torch.cuda._lazy_seed_tracker)()
    monkeypatch.setattr(torch.cuda, "_lazy_seed_tracker", tracker)
    monkeypatch.setattr(torch.cuda.random, "device_count", lambda: 1)
    device = torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (device,))
    open_worker(1, threaded=False)
    *_, (seed_devices, stack) = tracker.get_calls()
    assert stack == [], "a stack would require reading source files"
    seed_devices()
    assert device.initial_seed() == 101


@pytest.mark.usefixtures("two_torch_threads")
def test_each_worker_thread_has_its_own_info_and_the_program_around_it_is_not_affected() -> None:
    before = random.getstate(), torch.get_rng_state(), torch.get_num_threads()
    seen: dict[int, Any] = {}
    barrier = threading.Barrier(2)

    def work(number: int) -> None:
        open_worker(number, threaded=True)
        barrier.wait()
        seen[number] = get_worker_info()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: (info.id, info.seed) for number, info in seen.items()} == {0: (0, 100), 1: (1, 101)}
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.get_num_threads() == before[2]
    assert get_worker_info() is None
    assert torch.utils.data.get_worker_info is get_worker_info


@pytest.mark.usefixtures("restored_process")
def test_reading_the_worker_info_is_recorded() -> None:
    open_worker(0, threaded=False)
    FRAMEWORK.reset_worker_info_read()
    assert not FRAMEWORK.worker_info_was_read()
    get_worker_info()
    assert FRAMEWORK.worker_info_was_read()
    FRAMEWORK.reset_worker_info_read()
    assert not FRAMEWORK.worker_info_was_read()


# -- data pipes ---


def pipe() -> IterDataPipe[Any]:
    made: IterDataPipe[Any] = IterableWrapper(list(range(12)), deepcopy=False)
    for _ in range(6):  # makes the traversal slow
        made = made.shuffle()
    return made.sharding_filter()


def test_the_seed_determines_the_order() -> None:
    assert list(seed_pipe(pipe(), 3)) == list(seed_pipe(pipe(), 3))
    assert list(seed_pipe(pipe(), 3)) != list(seed_pipe(pipe(), 4))
