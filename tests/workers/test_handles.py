"""Open handles in a dataset that workers must not share."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import mmap
import multiprocessing
import os
import socket
import sqlite3
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from feedline import Loader, pipe
from feedline.errors import DataWarning
from feedline.workers import abilities, fork_safety
from feedline.workers.handles import warn_about


class Holding(Dataset[int]):
    """A dataset with whatever attributes it is given."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 3


class InSlots:
    __slots__ = ("connection", "never_filled")

    def __init__(self, connection: Any) -> None:
        self.connection = connection


@dataclass
class Record:
    connection: Any


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(":memory:")
    yield opened
    opened.close()


def warnings_about(dataset: Any, *, threaded: bool = False) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about(dataset, threaded=threaded)
    assert all(warning.category is DataWarning for warning in caught)
    return [str(warning.message) for warning in caught]


# -- where handles are found ---


@pytest.mark.parametrize(
    ("put", "path"),
    [
        (lambda handle: Holding(db=handle), "dataset.db"),
        (lambda handle: Holding(dbs={handle}), "list(dataset.dbs)[0]"),
        (lambda handle: Holding(dbs={"train": handle}), "dataset.dbs['train']"),
        (lambda handle: Holding(reader=InSlots(handle)), "dataset.reader.connection"),
        (lambda handle: Holding(read=functools.partial(print, handle)), "dataset.read.args[0]"),
        (
            lambda handle: ConcatDataset([Subset(Holding(reader=Record(handle)), [0])]),
            "dataset.datasets[0].dataset.reader.connection",
        ),
        (lambda handle: pipe(Holding(db=handle)).map(str), "dataset.stage._source.dataset.db"),
        (lambda handle: handle, "dataset"),
    ],
)
def test_a_handle_is_found_and_its_path_named(
    put: Callable[[Any], Any], path: str, connection: sqlite3.Connection
) -> None:
    (message,) = warnings_about(put(connection))
    assert message.startswith(f"{path} is an open sqlite3.Connection")


# -- open or closed ---


class OnDevice:
    is_cuda = True


@pytest.mark.parametrize("initialized", [True, False])
def test_a_tensor_on_a_device_is_found(monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: initialized)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=OnDevice, cuda=cuda))
    messages = warnings_about(Holding(weights={"first": OnDevice()}))
    assert len(messages) == initialized, "without CUDA no tensor can be on a device"
    if initialized:
        assert messages[0].startswith("dataset.weights['first'] is a torch.Tensor on a CUDA device")
        assert 'multiprocessing_context="spawn"' in messages[0]


# -- the search calls no user code and is bounded ---


class Touchy:
    """Fails on any access other than reading its `__dict__` directly."""

    def __init__(self, **held: Any) -> None:
        object.__setattr__(self, "__dict__", held)

    def _complain(self, *_: Any) -> Any:
        raise AssertionError("the user's code was called")

    __getattr__ = __getattribute__ = __setattr__ = __eq__ = __bool__ = __len__ = __iter__ = __repr__ = _complain
    __getitem__ = __contains__ = __reduce_ex__ = __reduce__ = __getstate__ = __dir__ = _complain
    __hash__ = _complain
    __class__ = property(_complain)
    vision = property(_complain)


class TouchyList(list[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("the user's code was called")

    __len__ = __getitem__ = __iter__  # type: ignore[assignment]


class TouchyDict(dict[Any, Any]):
    def items(self) -> Any:
        raise AssertionError("the user's code was called")

    __iter__ = keys = values = items


def test_the_search_does_not_call_user_code(connection: sqlite3.Connection) -> None:
    dataset = Touchy(inner=Touchy(dbs=TouchyDict(train=TouchyList([connection]))))
    (message,) = warnings_about(dataset)
    assert message.startswith("dataset.inner.dbs['train'][0] is")


# -- files ---


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "lines.txt"
    made.write_text("first line\nother line\n")
    return made


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., Any]]:
    """A function that opens the file; it is closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *how, **more: stack.enter_context(open(path, *how, **more))


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="files are opened again through Linux's /proc")


def reopen_files() -> None:
    """Do in this process what a forked worker does with its files."""
    # Not all of quiesce_threads(): the locks that it holds are freed in the child.
    fork_safety._mine.positions = fork_safety.read_positions()
    fork_safety.reset_in_child(None)
    fork_safety._mine.positions = None


def share_a_position(one: int, other: int) -> bool:
    os.lseek(one, 1, os.SEEK_SET)
    os.lseek(other, 2, os.SEEK_SET)
    return os.lseek(one, 0, os.SEEK_CUR) == 2


@needs_proc
def test_a_reopened_file_keeps_its_descriptor_position_and_flags(path: Path, opened: Callable[..., Any]) -> None:
    file = opened("rb", 0, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NOATIME))
    fd = file.fileno()
    os.set_inheritable(fd, True)
    with open(os.dup(fd), "rb") as same:
        file.seek(6)
        path.unlink()
        path.write_text("another file by the same name")
        reopen_files()
        assert file.read(4) == b"line"
        assert os.get_inheritable(fd)
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NOATIME
        assert not share_a_position(fd, same.fileno())


@pytest.mark.parametrize("how", ["r+b", "a+", "w+b"])
def test_writable_files_warn(how: str, opened: Callable[..., Any]) -> None:
    (message,) = warnings_about(Holding(file=opened(how)))
    assert message.startswith("dataset.file is an open file (io.")


def test_no_warning_for_files_without_a_read_position(path: Path) -> None:
    with (
        open("/dev/zero", "rb") as device,
        open(path.parent / "log", "a") as log,
        open(0, "rb", closefd=False) as terminal,
        mapped(path) as mapping,
    ):
        mapping.seek(3)
        held = Holding(device=device, log=log, input=terminal, memory=io.BytesIO(b"x"), map=mapping)
        assert warnings_about(held) == []
    assert warnings_about(Holding(closed=log)) == []


def mapped(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


class Meeting:
    """Reads lines of ten characters; two workers meet between seek and read."""

    def __init__(self, file: Any, semaphore: Callable[[int], Any]) -> None:
        self.file = file
        self.arrived = [semaphore(0), semaphore(0)]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> str:
        self.file.seek(index * 11)
        self.arrived[index].release()
        assert self.arrived[1 - index].acquire(timeout=100)
        return str(self.file.read(10))


class Hidden(Meeting):
    """Holds the file where a search of the dataset does not find it."""

    def __init__(self, file: Any, semaphore: Callable[[int], Any]) -> None:
        super().__init__(None, semaphore)
        self.find: Callable[[], Any] = lambda: file

    def __getitem__(self, index: int) -> str:
        self.file = self.find()
        return super().__getitem__(index)


@pytest.mark.parametrize(("kind", "portable"), [(Meeting, False), (Meeting, True), (Hidden, False)])
def test_forked_workers_each_have_their_own_file_position(
    kind: type[Meeting], portable: bool, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abilities, "can_share_arenas", lambda: not portable)
    file = opened("rb", 0)  # unbuffered, so every read is a system call
    dataset = kind(file, multiprocessing.get_context("fork").Semaphore)
    file.seek(5)
    loader = Loader(dataset, None, workers=2, start_method="fork")
    assert list(loader) == ["b'first line'", "b'other line'"]
    assert file.tell() == 5, "the position in the training process did not move"
    loader.close()


# -- threads ---


def test_handles_with_a_position_that_threads_share_warn(opened: Callable[..., Any], path: Path) -> None:
    with socket.socket() as sock, mapped(path) as mapping:
        mapping.seek(1)
        for handle in (opened("r"), mapping, sock):
            (message,) = warnings_about(Holding(reader=Record(handle)), threaded=True)
            assert message.startswith("dataset.reader.connection"), handle
            assert "threading.local()" in message


def test_no_warning_for_handles_that_threads_may_share(opened: Callable[..., Any], path: Path) -> None:
    local = threading.local()
    local.file = opened("rb")
    with mapped(path) as mapping:
        assert mapping[:5] == b"first"
        assert warnings_about(Holding(map=mapping, local=local), threaded=True) == []
    locked = Holding(lock=threading.Lock(), files={"a": opened("rb")})
    assert warnings_about(locked, threaded=True) == [], "the dataset has a lock"


class Lines:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


def test_a_loader_with_several_threads_warns(opened: Callable[..., Any]) -> None:
    loader = Loader(Lines(opened("rb")), None, workers=2, engine="thread")
    with pytest.warns(DataWarning, match=r"dataset\.file is an open file"):
        assert len(list(loader)) == 2
    alone = Loader(Lines(opened("rb")), None, workers=1, engine="thread")
    assert len(list(alone)) == 2, "one thread does not share the file"


def test_open_hdf5_files_are_found(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "store.h5", "w") as file:
        (message,) = warnings_about(Holding(source=file))
        assert message.startswith("dataset.source is an open h5py.File")
    assert warnings_about(Holding(source=file)) == []


def test_a_dataset_is_warned_about_once(connection: sqlite3.Connection) -> None:
    dataset = Holding(db=connection)
    assert len(warnings_about(dataset)) == 1
    assert warnings_about(dataset) == []
    assert len(warnings_about(Holding(db=connection))) == 1, "another dataset"


@needs_proc
@pytest.mark.parametrize("name", ["O_RDWR", "O_WRONLY", "O_PATH"])
def test_files_not_opened_for_reading_only_are_not_reopened(name: str, path: Path) -> None:
    flags: int = getattr(os, name)
    fd = os.open(path, flags)
    same = os.dup(fd)
    try:
        reopen_files()
        if flags == os.O_PATH:
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH
        else:
            assert share_a_position(fd, same)
    finally:
        os.close(fd)
        os.close(same)
