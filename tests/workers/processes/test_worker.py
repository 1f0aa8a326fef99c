"""The worker's side: its first messages, and how it uses shared memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

from feedline import DataLoader
from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.arena import Arena
from feedline.types import DatasetKind, Task, WorkerIdentity
from feedline.workers.failure import unpack_failure
from feedline.workers.processes.arena import SocketChannel, Stacks
from feedline.workers.processes.channel import passed_on
from feedline.workers.processes.link import ArenaLink, ArenaView, receive, send
from feedline.workers.processes.messages import Kind, Message, task_message
from feedline.workers.processes.worker import init_worker, serve
from tests.parity.children import in_a_child


class Cached(Dataset[torch.Tensor]):
    """Collates by itself and caches the results."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.cache: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return 80

    @staticmethod
    def number(index: int) -> int:
        return (index * 7 + index // 3) % 5

    def __getitem__(self, index: int) -> torch.Tensor:
        number = self.number(index)
        if number not in self.cache:
            self.cache[number] = default_collate([torch.full((self.width,), float(number))] * 2)
        return self.cache[number]


@pytest.mark.parametrize(("transport", "width"), [("arena", 30_000), ("portable", 30_000), ("arena", 1000)])
def test_tensors_cached_by_the_dataset_are_never_overwritten(
    transport: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.workers.abilities.can_share_arenas", lambda: transport == "arena")
    loader = DataLoader(Cached(width), 2, num_workers=2)
    for place, batch in enumerate(loader):
        expected = [Cached.number(2 * place), Cached.number(2 * place + 1)]
        assert [sample.unique().tolist() for sample in batch] == [[number] for number in expected]


# -- without a slot ---


class Large(Dataset[torch.Tensor]):
    """Also reports which files of /dev/shm the worker has mapped or open."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((50_000,), float(index))


class ReportShm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, samples: list[Any]) -> Any:
        before = self.mapped()
        batch = default_collate(samples)
        if self.mapped() - before:
            self.path.write_text("\n".join(self.mapped() - before))
        return batch

    @staticmethod
    def mapped() -> set[str]:
        return {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line}


@pytest.mark.parametrize("memory_budget", [None, 0])
def test_no_batch_ever_uses_dev_shm(tmp_path: Path, memory_budget: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is 64 MB in a container. Torch's default collate function makes a file there per tensor."""
    if memory_budget == 0:
        monkeypatch.setattr(Arena, "acquire", lambda *_: -1)
    report = tmp_path / "maps"
    loader = DataLoader(Large(tmp_path), 2, num_workers=2, collate_fn=ReportShm(report), memory_budget=memory_budget)
    seen = [batch[:, 0].tolist() for batch in loader]
    assert seen == [[float(2 * place), float(2 * place + 1)] for place in range(6)]
    assert not report.exists(), report.read_text()
    if memory_budget == 0:
        assert loader.stats()["overflowed_batches"] == 6


# -- getting ready ---


class Started:
    """A worker process to which a test sends messages itself."""

    def __init__(self, init: Callable[[int], None] | None = None, *, number: int = 2) -> None:
        self.channel = SocketChannel(number)
        self.arena = Arena(1, shared=True, budget=1 << 20)
        self.stacks = Stacks()
        spec = WorkerSpec(
            np.arange(10), DatasetKind.MAP, default, NumpyFramework(), worker_count=3, base_seed=0, init=init
        )
        link = ArenaLink(number, self.channel.far, ArenaView(self.arena), os.getpid(), self.stacks.far)
        self.process = multiprocessing.get_context("fork").Process(target=serve, args=(link, spec))
        with passed_on(link.sock):
            self.process.start()

    def message(self) -> Message | None:
        """Wait for the worker's next message."""
        assert select.select([self.channel.near], [], [], 30)[0], "the worker sent no message"
        return receive(self.channel.near, block=False)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the test may have done so
            self.channel.near.shutdown(socket.SHUT_RDWR)
        self.process.join()
        self.process.close()
        self.channel.close()
        self.stacks.close()


def test_a_worker_sends_alive_and_ready_before_any_task() -> None:
    with Started() as worker:
        assert [worker.message(), worker.message()] == [Message(Kind.ALIVE, 0, b""), Message(Kind.READY, 0, b"")]
        send(worker.channel.near, task_message(Task(5, [3], -1)), block=True)
        answer = worker.message()
        assert answer is not None
        assert (answer.kind, answer.task_id) == (Kind.DONE, 5)
        assert answer.fd < 0 < answer.used < len(answer.body), "a small batch comes with the message"


def refuse(number: int) -> None:
    raise PermissionError(f"worker {number} has no licence")


def test_a_worker_whose_init_fails_reports_the_error_and_exits() -> None:
    with Started(refuse) as worker:
        send(worker.channel.near, task_message(Task(5, [3], -1)), block=True)
        worker.message()
        reply = worker.message()
        assert reply is not None
        assert reply.kind is Kind.UNREADY
        failure = unpack_failure(reply.body)
        assert type(failure) is PermissionError
        assert str(failure) == "worker 2 has no licence"
        assert "worker process 2" in str(failure.__notes__), "the note names the worker"
        worker.process.join(100)
        assert worker.process.exitcode == 0, "nothing was printed and no task started"
        left = receive(worker.channel.far, block=False)
        assert left is not None
        assert left.task_id == 5, "its task can be taken back"


class RecordsWorker(NumpyFramework):
    """Records the worker."""

    worker: WorkerIdentity | None = None

    def open_worker(self, worker: WorkerIdentity, base_seed: int, shared_seed: int | None) -> Any:
        self.worker = worker
        return super().open_worker(worker, base_seed, shared_seed)


def seed_and_handler(number: int, generation: int) -> list[int]:
    """Become a worker; return its seed, and what it does on Ctrl-C."""
    framework = RecordsWorker()
    spec = WorkerSpec([1, 2], DatasetKind.MAP, default, framework, worker_count=3, base_seed=100)
    link: Any = SimpleNamespace(number=number, generation=generation, has_closed=bool, say_alive=lambda: None)
    init_worker(spec, link)
    assert framework.worker is not None
    return [framework.worker.seed, int(signal.getsignal(signal.SIGINT))]  # type: ignore[arg-type]  # SIG_IGN


def test_no_two_workers_of_any_generation_draw_the_same_random_numbers_and_all_ignore_ctrl_c() -> None:
    found: list[Any] = [
        in_a_child(partial(seed_and_handler, number, generation)) for generation in range(3) for number in range(3)
    ]
    seeds = [seed for seed, _ in found]
    assert seeds[:3] == [100, 101, 102], "torch's own seeds, for the workers that come first"
    assert len(set(seeds)) == 9
    assert {handler for _, handler in found} == {int(signal.SIG_IGN)}
