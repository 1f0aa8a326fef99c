"""Memory and files that processes share."""

import multiprocessing
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from feedline.datasets.derived.cache.shared_bytes import Counters, SharedBytes, SharedFile, SharedMemory
from feedline.errors import SourceError

pytestmark = pytest.mark.sample(4)

KINDS = pytest.mark.parametrize("kind", ["memory", "file"])


def make(kind: str, folder: Path) -> SharedBytes:
    if kind == "memory":
        return SharedMemory(1 << 16)
    (folder / "shared").write_bytes(bytes(1 << 16))
    return SharedFile(folder / "shared")


@KINDS
def test_writes_of_a_forked_process_are_visible(kind: str, tmp_path: Path) -> None:
    shared = make(kind, tmp_path)
    shared.write(100, b"before")
    pid = os.fork()
    if pid == 0:
        with shared.locked():
            shared.write(200, b"child")
        os._exit(0)
    os.waitpid(pid, 0)
    assert shared.read(200, 5) == b"child"
    assert shared.read(100, 6) == b"before"
    shared.close()


@KINDS
def test_cleared_bytes_are_zero(kind: str, tmp_path: Path) -> None:
    shared = make(kind, tmp_path)
    shared.write(0, bytes(range(1, 101)))
    shared.clear(10, 50)
    assert shared.read(0, 50) == bytes(range(1, 11)) + bytes(40)
    assert shared.read(50, 50) == (bytes(range(51, 101)) if kind == "memory" else b"")
    shared.close()


@KINDS
def test_a_killed_process_leaves_no_lock_behind(kind: str, tmp_path: Path) -> None:
    shared = make(kind, tmp_path)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with shared.locked():
            os.write(writer, b"x")
            signal.pause()
    os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with shared.locked():  # would wait forever
        shared.write(0, b"free")
    os.close(reader)
    os.close(writer)
    shared.close()


@KINDS
def test_the_lock_excludes_other_processes(kind: str, tmp_path: Path) -> None:
    shared = make(kind, tmp_path)
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            for _ in range(200):
                with shared.locked():
                    count = int.from_bytes(shared.read(0, 8), "little")
                    shared.write(0, (count + 1).to_bytes(8, "little"))
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    assert int.from_bytes(shared.read(0, 8), "little") == 800
    shared.close()


def _write(shared: SharedMemory) -> None:
    shared.write(8, b"from afar")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_started_process_receives_the_same_memory(method: str) -> None:
    shared = SharedMemory(4096)
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_write, args=(shared,))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    assert shared.read(8, 9) == b"from afar"


def test_pickling_it_for_anything_but_a_new_process_creates_new_memory() -> None:
    shared = SharedMemory(4096)
    shared.write(0, b"old")
    other = pickle.loads(pickle.dumps(shared))
    assert other.read(0, 3) == bytes(3)
    other.write(0, b"new")
    assert shared.read(0, 3) == b"old"


def test_reading_past_the_end_of_a_file_returns_fewer_bytes(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    shared = SharedFile(tmp_path / "short")
    assert shared.read(1, 100) == b"bc"
    assert shared.read(50, 10) == b""
    shared.close()


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"missing.* cannot be opened"):
        SharedFile(tmp_path / "missing", readonly=True).read(0, 1)


def test_counters_add_up_across_processes_and_threads() -> None:
    counters = Counters("memory_hits", "misses", "damaged")
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            for _ in range(500):
                counters.add("misses")
            os._exit(0)
        children.append(pid)

    def add() -> None:
        for _ in range(500):
            counters.add("damaged")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pid in children:
        os.waitpid(pid, 0)
    counters.add("memory_hits", 7)
    assert counters.totals() == {"memory_hits": 7, "misses": 2000, "damaged": 2000}
