"""Memory and files that processes share."""

import multiprocessing
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

from feedline.datasets.cache.ground import FileGround, Ground, MemoryGround
from feedline.errors import SourceError

KINDS = pytest.mark.parametrize("kind", ["memory", "file"])


def make_ground(kind: str, folder: Path) -> Ground:
    if kind == "memory":
        return MemoryGround(1 << 16)
    (folder / "ground").write_bytes(bytes(1 << 16))
    return FileGround(folder / "ground")


@KINDS
def test_what_a_forked_process_writes_is_there(kind: str, tmp_path: Path) -> None:
    ground = make_ground(kind, tmp_path)
    ground.write(100, b"before")
    pid = os.fork()
    if pid == 0:
        with ground.locked():
            ground.write(200, b"child")
        os._exit(0)
    os.waitpid(pid, 0)
    assert ground.read(200, 5) == b"child"
    assert ground.read(100, 6) == b"before"
    ground.close()


@KINDS
def test_a_killed_process_leaves_no_lock_behind(kind: str, tmp_path: Path) -> None:
    ground = make_ground(kind, tmp_path)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with ground.locked():
            os.write(writer, b"x")
            signal.pause()
    os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with ground.locked():  # would wait for ever
        ground.write(0, b"free")
    os.close(reader)
    os.close(writer)
    ground.close()


@KINDS
def test_the_lock_excludes_other_processes(kind: str, tmp_path: Path) -> None:
    ground = make_ground(kind, tmp_path)
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            for _ in range(200):
                with ground.locked():
                    count = int.from_bytes(ground.read(0, 8), "little")
                    ground.write(0, (count + 1).to_bytes(8, "little"))
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    assert int.from_bytes(ground.read(0, 8), "little") == 800
    ground.close()


def _write(ground: MemoryGround) -> None:
    ground.write(8, b"from afar")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_memory_arrives_in_a_started_process_as_the_same_memory(method: str) -> None:
    ground = MemoryGround(4096)
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_write, args=(ground,))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    assert ground.read(8, 9) == b"from afar"


def test_memory_that_is_pickled_otherwise_is_new() -> None:
    ground = MemoryGround(4096)
    ground.write(0, b"old")
    other = pickle.loads(pickle.dumps(ground))
    assert other.read(0, 3) == bytes(3)
    other.write(0, b"new")
    assert ground.read(0, 3) == b"old"


def test_a_file_that_ends_early_gives_fewer_bytes(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    ground = FileGround(tmp_path / "short")
    assert ground.read(1, 100) == b"bc"
    assert ground.read(50, 10) == b""
    ground.close()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"missing.* cannot be opened"):
        FileGround(tmp_path / "missing").read(0, 1)
