"""Handles in a dataset that do not survive a fork."""

from __future__ import annotations

import functools
import gc
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from feedline.engines import handles
from feedline.engines.handles import warn_about
from feedline.errors import SharedHandle


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


class Reader:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def read(self) -> None: ...


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(":memory:")
    yield opened
    opened.close()


def told(dataset: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about(dataset)
    assert all(warning.category is SharedHandle for warning in caught)
    return [str(warning.message) for warning in caught]


# -- where it is found ---


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (lambda handle: Holding(db=handle), "dataset.db"),
        (lambda handle: Holding(dbs=[1, handle]), "dataset.dbs[1]"),
        (lambda handle: Holding(dbs=(handle,)), "dataset.dbs[0]"),
        (lambda handle: Holding(dbs=deque([handle])), "dataset.dbs[0]"),
        (lambda handle: Holding(dbs={handle}), "list(dataset.dbs)[0]"),
        (lambda handle: Holding(dbs={"train": handle}), "dataset.dbs['train']"),
        (lambda handle: Holding(dbs={(1, 2): handle}), "list(dataset.dbs.values())[0]"),
        (lambda handle: Holding(reader=InSlots(handle)), "dataset.reader.connection"),
        (lambda handle: Holding(reader=Record(handle)), "dataset.reader.connection"),
        (lambda handle: Holding(read=Reader(handle).read), "dataset.read.__self__.connection"),
        (lambda handle: Holding(read=functools.partial(print, handle)), "dataset.read.args[0]"),
        (lambda handle: Holding(read=functools.partial(print, end=handle)), "dataset.read.keywords['end']"),
        (lambda handle: Subset(Holding(db=handle), [0]), "dataset.dataset.db"),
        (lambda handle: ConcatDataset([Holding(), Holding(db=handle)]), "dataset.datasets[1].db"),
        (lambda handle: [handle], "dataset[0]"),
        (lambda handle: handle, "dataset"),
    ],
)
def test_a_handle_is_found_and_named(place: Callable[[Any], Any], path: str, connection: sqlite3.Connection) -> None:
    (message,) = told(place(connection))
    assert message.startswith(f"{path} is an open sqlite3.Connection")


def test_the_warning_says_what_breaks_and_what_to_do(connection: sqlite3.Connection) -> None:
    (message,) = told(Holding(db=connection))
    assert "must not be carried over a fork" in message
    assert "open it in __getitem__ when it is first used" in message


def test_the_warning_points_to_the_users_line(connection: sqlite3.Connection) -> None:
    with pytest.warns(SharedHandle) as caught:
        warn_about(Holding(db=connection))
    assert [warning.filename for warning in caught] == [__file__]


def test_many_handles_make_one_warning(connection: sqlite3.Connection) -> None:
    cursors = [connection.cursor() for _ in range(10)]
    (message,) = told(Holding(cursors=cursors))
    assert message.startswith(
        "dataset.cursors[0] is an open sqlite3.Cursor (others: dataset.cursors[1], dataset.cursors[2], 7 more)"
    )


# -- which are open ---


def test_a_closed_connection_is_harmless_and_so_is_its_cursor(connection: sqlite3.Connection) -> None:
    cursor = connection.cursor()
    connection.close()
    assert told(Holding(db=connection, cursor=cursor)) == []


def test_a_connection_of_another_thread_is_open_too() -> None:
    opened: list[sqlite3.Connection] = []
    done = threading.Event()

    def open_and_close() -> None:
        opened.append(sqlite3.connect(":memory:"))
        ready.set()
        done.wait()
        opened[0].close()

    ready = threading.Event()
    thread = threading.Thread(target=open_and_close)
    thread.start()
    ready.wait()
    try:
        assert len(told(Holding(db=opened[0]))) == 1
    finally:
        done.set()
        thread.join()


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class HDF5Object:
    """What h5py's classes have in common, as far as it matters here."""

    def __init__(self, is_open: bool = True) -> None:
        self.is_open = is_open

    def __bool__(self) -> bool:
        return self.is_open


def hdf5_class(name: str, module: str) -> Any:
    return type(name, (HDF5Object,), {"__module__": module, "__qualname__": name})


@pytest.fixture
def h5py(monkeypatch: pytest.MonkeyPatch) -> Any:
    return stand_in(
        monkeypatch,
        "h5py",
        File=hdf5_class("File", "h5py._hl.files"),
        Group=hdf5_class("Group", "h5py._hl.group"),
        Dataset=hdf5_class("Dataset", "h5py._hl.dataset"),
    )


@pytest.mark.parametrize("name", ["File", "Group", "Dataset"])
def test_open_hdf5_objects(h5py: Any, name: str) -> None:
    kind = getattr(h5py, name)
    (message,) = told(Holding(source=kind()))
    assert message.startswith(f"dataset.source is an open h5py.{name}")
    assert "wrong data or errors" in message
    assert "one file position" in message
    assert "__getitem__" in message
    assert told(Holding(source=kind(is_open=False))) == []


def test_a_class_derived_from_a_librarys(h5py: Any) -> None:
    derived = type("Mine", (h5py.File,), {})
    assert len(told(Holding(source=derived()))) == 1


class Environment:
    """py-lmdb's environment: its class says that it comes from `builtins`."""

    def __init__(self) -> None:
        self.closed = False

    def path(self) -> str:
        if self.closed:
            raise RuntimeError("Attempt to operate on closed/deleted/dropped object.")
        return "/data/train.lmdb"


Environment.__module__ = "builtins"


def test_an_open_lmdb_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "lmdb", Environment=Environment)
    environment = Environment()
    (message,) = told(Holding(env=environment))
    assert message.startswith("dataset.env is an open lmdb.Environment")
    assert "must not be used after a fork" in message
    environment.closed = True
    assert told(Holding(env=environment)) == []


class OnDevice:
    is_cuda = True


@pytest.mark.parametrize("initialized", [True, False])
def test_a_tensor_on_a_device(monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    cuda = ModuleType("torch.cuda")
    vars(cuda)["is_initialized"] = lambda: initialized
    stand_in(monkeypatch, "torch", Tensor=OnDevice, cuda=cuda)
    messages = told(Holding(weights={"first": OnDevice()}))
    assert len(messages) == initialized, "without CUDA no tensor can be on a device"
    if initialized:
        assert messages[0].startswith("dataset.weights['first'] is a torch.Tensor on a CUDA device")
        assert "cannot be initialised again in a forked process" in messages[0]
        assert "on the CPU" in messages[0]
        assert 'multiprocessing_context="spawn"' in messages[0]


def test_tensors_on_the_cpu_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert told(Holding(data=torch.zeros(3), model=torch.nn.Linear(2, 2))) == []


@pytest.fixture(scope="module")
def on_device() -> torch.Tensor:
    """A tensor that is made before the test: CUDA opens files for the life of the process."""
    return torch.zeros(3, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_tensor_on_a_device(on_device: torch.Tensor) -> None:
    (message,) = told(Holding(data=on_device, layer=torch.nn.Linear(2, 2).cuda()))
    assert message.startswith("dataset.data is a torch.Tensor on a CUDA device (others: dataset.layer._parameters")
    assert told(Holding(data=torch.zeros(3))) == []


# -- once ---


def test_each_place_of_a_dataset_is_named_once(connection: sqlite3.Connection) -> None:
    dataset = Holding(db=connection)
    assert len(told(dataset)) == 1
    assert told(dataset) == []
    dataset.cursor = connection.cursor()  # type: ignore[attr-defined]
    (message,) = told(dataset)
    assert message.startswith("dataset.cursor is")
    assert len(told(Holding(db=connection))) == 1, "another dataset"


def test_a_dataset_is_not_kept_alive_for_that(connection: sqlite3.Connection) -> None:
    gc.collect()
    before = len(handles._told)
    dataset = Holding(db=connection)
    told(dataset)
    assert len(handles._told) == before + 1
    del dataset
    gc.collect()
    assert len(handles._told) == before


@pytest.mark.filterwarnings("error")
def test_a_warning_that_was_made_an_error_comes_again(connection: sqlite3.Connection) -> None:
    dataset = Holding(db=connection)
    for _ in range(2):
        with pytest.raises(SharedHandle):
            warn_about(dataset)


# -- without the user's code, and without much of anything ---


class Touchy:
    """Complains about everything that is not reading its dictionary."""

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


def test_the_users_code_is_not_called(connection: sqlite3.Connection) -> None:
    dataset = Touchy(inner=Touchy(dbs=TouchyDict(train=TouchyList([connection]))))
    (message,) = told(dataset)
    assert message.startswith("dataset.inner.dbs['train'][0] is")


def test_a_handle_too_deep_is_not_looked_for(connection: sqlite3.Connection) -> None:
    at_the_edge: Any = connection
    for _ in range(handles._DEPTH):
        at_the_edge = [at_the_edge]
    assert len(told(at_the_edge)) == 1
    assert told([at_the_edge]) == []


def test_the_look_ends_soon(connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Any] = []
    lookup = handles._lookup

    def counting(kind: type, kinds: Any) -> Any:
        looked_at.append(kind)
        return lookup(kind, kinds)

    monkeypatch.setattr(handles, "_lookup", counting)
    wide = [[Record(None) for _ in range(90)] for _ in range(90)]
    assert told(Holding(wide=wide, db=connection)) != [], "what is near is looked at first"
    assert 1000 < len(looked_at) <= handles._OBJECTS


def test_the_first_items_of_a_container_speak_for_all(connection: sqlite3.Connection) -> None:
    items: list[Any] = [Record(None) for _ in range(handles._ITEMS)]
    assert told(Holding(items=[*items[1:], connection])) != []
    assert told(Holding(items=[*items, connection])) == []


def test_an_endless_structure(connection: sqlite3.Connection) -> None:
    dataset = Holding(db=connection)
    dataset.itself = [dataset]  # type: ignore[attr-defined]
    (message,) = told(dataset)
    assert "others" not in message


def test_nothing_is_looked_at_if_no_library_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("h5py", "lmdb", "sqlite3"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)

    def look(*_: Any) -> Any:
        raise AssertionError("looked")

    monkeypatch.setattr(handles, "_open_handles", look)
    warn_about(Holding())


def test_no_package_is_imported_for_this() -> None:
    source = Path(handles.__file__).parents[2]
    code = (
        "import sys; from feedline.engines import handles, unpicklable; handles.warn_about([1]); "
        "print(sorted({'torch', 'h5py', 'lmdb', 'sqlite3'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
