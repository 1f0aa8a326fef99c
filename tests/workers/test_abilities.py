"""What feedline needs from the system, and that it works without it.

Linux without the functions that other systems lack stands in for those systems.
"""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedline.workers import abilities
from tests import program_server

PROGRAM = """
import asyncio, mmap, multiprocessing, os, select, selectors, socket, subprocess, sys
import multiprocessing.connection, multiprocessing.shared_memory

LACKING = {
    "macos": [
        (os, "memfd_create"), (os, "pidfd_open"), (os, "posix_fallocate"), (os, "sched_getaffinity"),
        (mmap, "MADV_HUGEPAGE"), (mmap, "MAP_NORESERVE"), (socket, "MSG_CMSG_CLOEXEC"),
    ],
    "windows": [
        (os, "memfd_create"), (os, "pidfd_open"), (os, "posix_fallocate"), (os, "sched_getaffinity"), (os, "sysconf"),
        (mmap, "MADV_HUGEPAGE"), (mmap, "MAP_NORESERVE"), (mmap, "MAP_PRIVATE"),
        (mmap, "MAP_ANONYMOUS"), (mmap, "PROT_READ"), (socket, "MSG_CMSG_CLOEXEC"), (socket, "SOCK_SEQPACKET"),
        (socket, "SCM_RIGHTS"), (socket, "CMSG_SPACE"), (socket, "MSG_DONTWAIT"),
    ],
}  # fmt: skip
for module, name in LACKING[sys.argv[1]]:  # in workers too: spawn runs this file again
    if hasattr(module, name):
        delattr(module, name)

import numpy as np

import feedline
from feedline.workers.portable import segments

segments.sys = type("sys", (), {"platform": sys.argv[1]})  # the one place that asks for the system


class Squares:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.full((50, 200), float(index) ** 2), index


class Stream:
    def __iter__(self):
        return iter(range(5))


def check(loader, collect):
    seen = collect(loader)
    assert seen == list(range(40)), seen
    assert collect(loader) == seen, "a second epoch"
    for _ in loader:
        break
    loader.close()


def numbers(loader):
    seen = []
    for squares, index in loader:
        assert (squares[:, 3, 5] == index.astype(float) ** 2).all()
        squares += 1
        seen += index.tolist()
    return seen


if __name__ == "__main__":
    methods = sys.argv[2].split(",")
    check(feedline.Loader(Squares(), 8), numbers)
    check(feedline.Loader(Squares(), 8, workers=2, engine="thread"), numbers)
    for method in methods:
        if method == "fork":  # which costs little
            check(feedline.Loader(Squares(), 8, workers=2, start_method=method), numbers)
        check(feedline.Loader(Squares(), 8, workers=2, start_method=method, persistent=True), numbers)
        streamed = feedline.Loader(Stream(), 3, workers=2, start_method=method)
        assert [batch.tolist() for batch in streamed] == [[0, 1, 2], [3, 4]]
        copied = feedline.Loader(Stream(), 3, workers=2, start_method=method, shard=False)
        assert [batch.tolist() for batch in copied] == [[0, 1, 2], [0, 1, 2], [3, 4], [3, 4]]
    assert "feedline.workers.processes.link" not in sys.modules
    assert not multiprocessing.active_children()
    print("done")
"""


@pytest.fixture(autouse=True)
def _clear_the_cached_answer() -> Iterator[None]:
    abilities.can_share_arenas.cache_clear()
    yield
    abilities.can_share_arenas.cache_clear()


def refusing(code: int) -> object:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize(("module", "name"), [(os, "memfd_create"), (os, "pidfd_open"), (select, "poll")])
def test_arenas_are_not_shared_where_a_function_is_missing(
    module: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module, name)
    assert not abilities.can_share_arenas()


@pytest.mark.parametrize("name", ["memfd_create", "pidfd_open"])
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_arenas_are_not_shared_where_the_kernel_or_a_sandbox_refuses(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, name, refusing(code))
    assert not abilities.can_share_arenas()


def test_running_out_of_descriptors_does_not_disable_shared_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EMFILE))
    assert abilities.can_share_arenas()


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert done.stderr == "", "no leaks and no warnings"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_loaders_work_with_portable_means(program: Path) -> None:
    check(program_server.run(program, "macos", "fork", finalizes=True))


@pytest.mark.slow
@pytest.mark.parametrize(("system", "methods"), [("windows", "spawn"), ("macos", "spawn,forkserver")])
def test_loaders_work_on_other_systems(system: str, methods: str, program: Path) -> None:
    command = [sys.executable, "-W", "error", str(program), system, methods]
    check(subprocess.run(command, capture_output=True, text=True, timeout=250, check=False))
