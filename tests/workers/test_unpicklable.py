"""Errors name the object that cannot be pickled, wherever it is, and say what to do; nothing else is blamed."""

from __future__ import annotations

import collections
import functools
import math
import multiprocessing
import os
import pickle
import re
import threading
import tracemalloc
import weakref
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.collate import pad
from feedline.errors import NotPicklable
from feedline.frameworks.numpy import NumpyFramework
from feedline.frameworks.torch import TorchFramework
from feedline.workers.unpicklable import explain
from tests.workers import unpicklable_objects as objects
from tests.workers.unpicklable_objects import (
    ADict,
    AList,
    AnArray,
    ASet,
    ATuple,
    FreshState,
    Holding,
    InSlots,
    Node,
    OutOfBand,
    OwnState,
    Pair,
    Raising,
    Rebuilt,
    RebuiltByLambda,
    Record,
    SecondOnly,
    StateOfAnotherForm,
    bad,
    decorated,
    explained,
    local_class,
    numbers,
    path_in,
    spec_of,
)

pytestmark = pytest.mark.sample(5)

HERE = re.escape(__file__)
THERE = re.escape(str(objects.__file__))


@pytest.mark.parametrize(
    ("kept", "type_name"),
    [
        (lambda: 1, "function"),
        (vars(decorated)["__wrapped__"], "function"),
        (local_class(), "type"),
        (threading.Lock(), "_thread.lock"),
        (numbers(), "generator"),
        (math, "module"),
        (weakref.ref(spec_of), "weakref.ReferenceType"),
        (torch.ones(2, requires_grad=True) * 2, "torch.Tensor"),
        (Raising(), "tests.workers.unpicklable_objects.Raising"),
        (memoryview(b"x"), "memoryview"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_message_names_path_and_type_and_says_what_to_do(kept: Any, type_name: str) -> None:
    message = explained(spec_of(Holding(kept=kept)))
    assert message.startswith(f"dataset.kept (of type {type_name}) ")
    assert "__getstate__" in message
    assert 'multiprocessing_context="fork"' in message
    assert 'engine="thread"' in message


# -- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "path"),
    [
        (bad, "dataset"),
        (Holding(_lock=threading.Lock()), "dataset._lock"),
        (Holding(transform=Holding(fns=[abs, math.floor, lambda x: x])), "dataset.transform.fns[2]"),
        (Holding(kept={"train": bad}), "dataset.kept['train']"),
        (Holding(kept={1: {(2, 3): bad}}), "list(dataset.kept[1].values())[0]"),
        (Holding(kept={"a": 1, bad: 2}), "list(dataset.kept)[1]"),
        (Holding(kept=(1, bad)), "dataset.kept[1]"),
        (Holding(kept={bad}), "list(dataset.kept)[0]"),
        (Holding(kept=frozenset([bad])), "list(dataset.kept)[0]"),
        (Holding(kept=collections.deque([1, bad])), "dataset.kept[1]"),
        (Holding(kept=collections.OrderedDict(a=1, b=bad)), "dataset.kept['b']"),
        (Holding(kept=collections.defaultdict(bad)), "dataset.kept.default_factory"),
        (Holding(kept=collections.defaultdict(list, a=bad)), "dataset.kept['a']"),
        (Holding(kept=Pair(1, bad)), "dataset.kept[1]"),
        (Holding(kept=ATuple((1, bad))), "dataset.kept[1]"),
        (Holding(kept=ASet([bad])), "list(dataset.kept)[0]"),
        (Holding(kept=AList([1, bad])), "dataset.kept[1]"),
        (Holding(kept=ADict(a=bad)), "dataset.kept['a']"),
        (Holding(kept=InSlots(bad)), "dataset.kept.kept"),
        (Holding(kept=Record([bad])), "dataset.kept.kept[0]"),
        (Holding(kept=OwnState(bad)), "dataset.kept.renamed[0]"),
        (Holding(kept=FreshState()), "dataset.kept.made[0]"),
        (Holding(kept=SecondOnly(bad)), "dataset.kept.second"),
        (Holding(kept=StateOfAnotherForm(bad)), "dataset.kept.__reduce__()[1]"),
        (Holding(kept=Rebuilt(bad)), "dataset.kept.kept"),
        (Holding(kept=RebuiltByLambda()), "dataset.kept.__reduce__()"),
        (Holding(kept=Raising()), "dataset.kept"),
        (Holding(kept=local_class()()), "dataset.kept"),
        (Holding(kept=Holding(inner=bad).method), "dataset.kept.__self__.inner"),
        (Holding(kept=functools.partial(print, bad)), "dataset.kept.args[0]"),
        (Holding(kept=np.array([1, bad], object)), "dataset.kept.flat[1]"),
        (Holding(kept=np.array([[1, bad]], object)), "dataset.kept.flat[1]"),
        (torch.utils.data.Subset(Holding(kept=bad), [0]), "dataset.dataset.kept"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_smallest_part_is_named(dataset: Any, path: str) -> None:
    assert path_in(explained(spec_of(dataset))) == path


@pytest.mark.parametrize(
    ("collate", "path"),
    [
        (bad, "collate_fn"),
        (functools.partial(print, end=bad), "collate_fn.keywords['end']"),
        (functools.partial(bad), "collate_fn.func"),
        (Holding(kept=bad).method, "collate_fn.__self__.kept"),
        (pad(inner=lambda samples: samples), "collate_fn.inner"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_functions_are_named_after_the_loaders_arguments(collate: Any, path: str) -> None:
    assert path_in(explained(spec_of([], collate))) == path
    assert path_in(explained(spec_of([], init=collate))) == path.replace("collate_fn", "worker_init_fn")


def test_an_object_in_two_attributes_is_named_by_the_first() -> None:
    shared = [bad]
    dataset = Holding(one=OwnState(1), two=shared, three=shared)
    assert path_in(explained(spec_of(dataset))) == "dataset.two[0]"


def test_the_first_of_several_is_named() -> None:
    assert path_in(explained(spec_of(Holding(fine=1, first=bad, second=bad), bad, bad))) == "dataset.first"


def test_a_part_is_not_blamed_for_its_owner() -> None:
    dataset = Holding()
    dataset.items = [Holding(parent=dataset) for _ in range(3)]
    dataset.lock = threading.Lock()
    assert path_in(explained(spec_of(dataset))) == "dataset.lock"


def test_circular_lists_are_searched() -> None:
    endless: list[Any] = []
    endless += [endless, bad]
    assert path_in(explained(spec_of(endless))) == "dataset[1]"


def test_too_deep_nesting_is_named() -> None:
    chain = None
    for _ in range(20_000):
        chain = Node(chain)
    dataset = Holding(fine=[[1]], graph=Holding(head=chain))
    try:
        message = explained(spec_of(dataset))
        assert path_in(message).startswith("dataset.graph.head.following")
        assert "RecursionError" in message
    finally:
        while chain is not None:  # link by link, since freeing all at once would recurse too deeply
            chain.following, chain = None, chain.following


# -- what is not to blame --------------------------------------------------------------------------------------------

SPAWN = multiprocessing.get_context("spawn")
HEAP = SPAWN.Value("i", 0)
"""Made here because the first shared value opens a file that stays open, and tests check for open files."""

MEGABYTE = 1 << 20


def test_objects_that_processes_can_share_are_not_blamed() -> None:
    here, there = SPAWN.Pipe()
    tasks = SPAWN.Queue()
    dataset = Holding(
        lock=SPAWN.Lock(),
        tasks=tasks,
        value=SPAWN.Value("i", 0),
        pipe=there,
        tensor=torch.zeros(3).share_memory_(),
        last=bad,
    )
    before = len(os.listdir("/proc/self/fd"))
    assert path_in(str(explain(spec_of(dataset), TypeError()))) == "dataset.last"
    assert len(os.listdir("/proc/self/fd")) == before
    tasks.close()
    here.close()
    there.close()


def test_a_lock_of_another_start_method_is_blamed() -> None:
    lock = multiprocessing.get_context("fork").Lock()
    if not hasattr(lock, "_is_fork_ctx"):
        pytest.skip("this version of Python sends it, and the worker cannot use it")
    assert path_in(explained(spec_of(Holding(lock=lock)))) == "dataset.lock"


def test_a_process_that_is_being_started_is_left_untouched() -> None:
    starting: Any = object()
    multiprocessing.context.set_spawning_popen(starting)
    try:
        explain(spec_of(bad), TypeError())
        assert multiprocessing.context.get_spawning_popen() is starting
    finally:
        multiprocessing.context.set_spawning_popen(None)


@pytest.mark.parametrize("framework", [TorchFramework(), NumpyFramework()])
def test_arrays_and_tensors_are_neither_blamed_nor_copied_nor_moved(framework: Any, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "data", np.uint8, "w+", shape=(16 * MEGABYTE,))
    tensor = torch.zeros(16 * MEGABYTE, dtype=torch.uint8)
    dataset = Holding(
        array=np.zeros(16 * MEGABYTE, np.uint8),
        with_gaps=np.zeros(32 * MEGABYTE, np.uint8)[::2],
        named=np.zeros(16 * MEGABYTE, np.uint8).view(AnArray),
        mapped=mapped,
        data=bytes(16 * MEGABYTE),
        out_of_band=OutOfBand(16 * MEGABYTE),
        tensor=tensor,
        view=tensor[::2],
        weights=torch.nn.Parameter(torch.zeros(3)),
        storage=tensor.untyped_storage(),
        dtype=torch.float32,
        last=bad,
    )
    tracemalloc.start()
    try:
        message = str(explain(spec_of(dataset, framework=framework), TypeError()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path_in(message) == "dataset.last"
    assert peak < MEGABYTE
    assert not tensor.is_shared(), "torch's own way of sending would move it to shared memory"


class OnDevice(torch.Tensor):
    """A tensor that says it is on a device."""

    is_cuda = True


def refuse(value: Any) -> Any:
    raise AssertionError("the device would keep the memory for a receiver that never comes")


def test_a_tensor_on_a_device_is_neither_blamed_nor_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    reducers: dict[type, Any] = vars(ForkingPickler)["_extra_reducers"]
    monkeypatch.setitem(reducers, OnDevice, refuse)
    dataset = Holding(tensor=torch.zeros(3).as_subclass(OnDevice), lock=threading.Lock())
    assert path_in(str(explain(spec_of(dataset), TypeError()))) == "dataset.lock"


@pytest.fixture(scope="module")
def on_device() -> torch.Tensor:
    """A tensor that is made before the test: CUDA opens files for the life of the process."""
    return torch.zeros(3, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_tensors_on_a_device_are_neither_blamed_nor_shared(
    on_device: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", refuse)
    dataset = Holding(tensor=on_device, parameter=torch.nn.Parameter(on_device), lock=threading.Lock())
    assert path_in(str(explain(spec_of(dataset), TypeError()))) == "dataset.lock"


def test_the_original_error_is_passed_on_if_each_part_can_be_pickled() -> None:
    error = explain(spec_of(Holding(fine=1)), ValueError("only the first time"))
    assert "ValueError: only the first time" in str(error)
    assert 'engine="thread"' in str(error)


def test_fork_is_not_recommended_where_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    message = explained(spec_of(bad))
    assert '"fork"' not in message
    assert 'engine="thread"' in message


@pytest.mark.parametrize("caught", [pickle.PicklingError, TypeError, AttributeError, RuntimeError])
def test_not_picklable_can_be_caught_as_any_error_that_pickle_raises(caught: type[Exception]) -> None:
    with pytest.raises(caught):
        raise explain(spec_of(bad), TypeError())
    assert issubclass(NotPicklable, caught)
