"""Ranks of a torch process group, each in its own process."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def _as_rank(rank: int, world_size: int, file: str, part: Callable[[], Any], sender: Any) -> None:
    """Run in a process of its own: join the group, run the part, send its report."""
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{file}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=30),
        )
        report: Any = part()
        dist.destroy_process_group()
    except BaseException as exc:
        report = exc
    sender.send_bytes(pickle.dumps(report))
    sender.close()


def run_ranks(world_size: int, folder: Path, part: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `part(rank, world_size, folder, *arguments)` on every rank, each a process; return the reports."""
    context = multiprocessing.get_context("fork")
    file = f"{folder}/group-{time.monotonic_ns()}"
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    ranks = [
        context.Process(
            target=_as_rank,
            args=(
                rank,
                world_size,
                file,
                functools.partial(part, rank, world_size, folder, *arguments),
                pipes[rank][1],
            ),
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    reports = []
    for (receiver, sender), process in zip(pipes, ranks, strict=True):
        sender.close()
        try:
            assert receiver.poll(100), "a rank does not answer"
            reports.append(pickle.loads(receiver.recv_bytes()))
        finally:
            process.join(100)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
            receiver.close()
    failed = [report for report in reports if isinstance(report, BaseException)]
    if failed:
        raise failed[0]
    return reports
