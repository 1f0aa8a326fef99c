"""The errors of failing samples are raised unchanged, and iteration continues."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.bad_samples.samples import refuse_five
from tests.faults.loaders import (
    Bad,
    Numbers,
    Stream,
    everywhere,
    indices_of,
    make,
    on,
    outcomes_of,
)

pytestmark = pytest.mark.sample(23)


class Unpicklable(Exception):
    """Holds a lock, which cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Particular(Exception):
    """Its constructor takes arguments other than its text."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} in {where}")
        self.code = code


class Hopeless(Exception):
    """Cannot be pickled, nor rebuilt from its text."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


def raise_bad() -> None:
    raise Bad("three is bad")


def raise_key_error() -> None:
    raise KeyError("first line\nsecond line")


def raise_unpicklable() -> None:
    raise Unpicklable("with a lock")


def raise_particular() -> None:
    raise Particular(7, where="a file")


def raise_hopeless() -> None:
    raise Hopeless(1, 2)


RAISERS: dict[str, tuple[Callable[[], None], type[Exception], str]] = {
    "plain": (raise_bad, Bad, "three is bad"),
    "of several lines": (raise_key_error, KeyError, "second line"),
    "unpicklable": (raise_unpicklable, Unpicklable, "with a lock"),
    "other arguments": (raise_particular, Particular, "code 7 in a file"),
    "neither": (raise_hopeless, Hopeless, "1 and 2"),
}


class Raiser(Numbers):
    """Sample 3 raises the chosen exception."""

    def __init__(self, how: str) -> None:
        super().__init__(12)
        self.how = how

    def __getitem__(self, index: int) -> int:
        if index == 3:
            RAISERS[self.how][0]()
        return index


@everywhere
@pytest.mark.parametrize("how", RAISERS)
def test_an_exception_is_raised_unchanged_with_notes(loader_kind: str, engine: str, how: str) -> None:
    loader = make(loader_kind, Raiser(how), **on(engine, 1))
    first, *rest = outcomes_of(loader)
    raiser, kind, text = RAISERS[how]
    rebuilt = engine == "process" and how in ("other arguments", "neither")  # as torch does, keeping its text
    assert type(first) is (RuntimeError if rebuilt else kind)
    assert text in str(first)
    notes = "\n".join(first.__notes__)
    assert "sample 3" in notes
    assert "stage: fetch" in notes
    cause = "" if first.__cause__ is None else str(first.__cause__)
    assert raiser.__name__ in cause if engine == "process" else first.__traceback__ is not None
    assert ("worker 0" in notes) == (engine != "inline")
    assert rest == [[4, 5, 6, 7], [8, 9, 10, 11]], "iteration continues with the next batch"
    [fault] = loader.faults
    assert (fault.index, fault.action, fault.stage, fault.attempt) == (3, "raise", "fetch", 1)
    assert fault.worker == (None if engine == "inline" else 0)
    assert fault.error.endswith(RAISERS[how][1].__name__), "the original exception, even if it was rebuilt"
    assert text in fault.message


class Transformed(Numbers):
    def __init__(self) -> None:
        super().__init__(8)
        self.transform = fail_five

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


def fail_five(sample: int) -> int:
    if sample == 5:
        raise Bad("in the transform")
    return sample


@everywhere
def test_notes_name_the_stage(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Transformed(), **on(engine, 1))
    raised = outcomes_of(loader)[1]
    assert "stage: transform" in "\n".join(raised.__notes__)
    assert loader.faults[0].stage == "transform"
    loader = make(loader_kind, Numbers(8), collate_fn=refuse_five, **on(engine, 1))
    raised = outcomes_of(loader)[1]
    assert "stage: collate" in "\n".join(raised.__notes__)
    assert "4, 5, 6, 7" in "\n".join(raised.__notes__)
    [fault] = loader.faults
    assert (fault.stage, fault.index) == ("collate", [4, 5, 6, 7])


@everywhere
@pytest.mark.parametrize("shard", [False, True])
def test_iteration_continues_after_an_exception_of_a_stream(loader_kind: str, engine: str, shard: bool) -> None:
    stream = Stream(Numbers(12, {4}), splits=False)
    loader = make(loader_kind, stream, 3, shard=shard, **on(engine, 2 if shard else 1))
    outcomes = outcomes_of(loader)
    failed = [type(outcome) is Bad for outcome in outcomes]
    assert failed.count(True) == 1
    assert "sample 4" in "\n".join(outcomes[failed.index(True)].__notes__)
    assert outcomes[0] == [0, 1, 2]
    assert outcomes[-1][-1] == 11
    assert indices_of(loader.faults) == [4]


@everywhere
@pytest.mark.parametrize(
    ("dataset", "options"),
    [(Numbers(bad=[1]), {}), (Numbers(), {"collate_fn": refuse_five}), (Stream(Numbers(bad=[1])), {})],
    ids=["sample", "collate", "stream"],
)
def test_a_failed_iteration_is_freed_without_the_garbage_collector(
    loader_kind: str, engine: str, dataset: Any, options: dict[str, Any]
) -> None:
    """The exception references frames of the worker that raised it, and none of them may reference the exception."""

    def train() -> weakref.ref[Any]:
        batches = iter(make(loader_kind, dataset, **options, **on(engine)))
        with pytest.raises(Bad):
            list(batches)
        return weakref.ref(batches)

    gc.disable()
    try:
        reference = train()
        assert reference() is None
    finally:
        gc.enable()
