"""The errors of failing samples are raised unchanged, and iteration continues."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.bad_samples.samples import refuse_five
from tests.faults.loaders import Bad, Numbers, Stream, everywhere, indices_of, make, on, outcomes_of


class Unpicklable(Exception):
    """Holds a lock, which cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Hopeless(Exception):
    """Cannot be pickled, nor rebuilt from its text."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


class Unprintable(Exception):
    """Its `str` fails."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


EXCEPTIONS: dict[str, Callable[[], Exception]] = {
    "plain": lambda: Bad("three is bad"),
    "of several lines": lambda: KeyError("first line\nsecond line"),
    "unpicklable": lambda: Unpicklable("with a lock"),
    "neither": lambda: Hopeless(1, 2),
}


class Raiser(Numbers):
    """Sample 3 raises an exception."""

    def __init__(self, make_error: Callable[[], Exception]) -> None:
        super().__init__(12)
        self.make_error = make_error

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise self.make_error()
        return index


@pytest.mark.parametrize(
    ("how", "loader_kind", "engine"),
    [
        ("plain", "Loader", "inline"),
        ("of several lines", "DataLoader", "thread"),
        ("unpicklable", "Loader", "process"),
        ("neither", "DataLoader", "process"),
    ],
)
def test_an_exception_is_raised_unchanged_with_notes(how: str, loader_kind: str, engine: str) -> None:
    original = EXCEPTIONS[how]()
    loader = make(loader_kind, Raiser(EXCEPTIONS[how]), **on(engine, 1))
    first, *rest = outcomes_of(loader)
    assert type(first) is (RuntimeError if how == "neither" else type(original)), "rebuilt as torch does"
    assert str(original) in str(first)
    notes = "\n".join(first.__notes__)
    assert "sample 3" in notes
    assert "stage: fetch" in notes
    assert "__getitem__" in str(first.__cause__) if engine == "process" else first.__traceback__ is not None
    assert ("worker 0" in notes) == (engine != "inline")
    assert rest == [[4, 5, 6, 7], [8, 9, 10, 11]], "iteration continues with the next batch"
    [fault] = loader.faults
    assert (fault.index, fault.action, fault.stage, fault.attempt) == (3, "raise", "fetch", 1)
    assert fault.worker == (None if engine == "inline" else 0)
    assert fault.error.endswith(type(original).__name__), "the original exception, even if it was rebuilt"
    assert str(original) in fault.message


@everywhere
@pytest.mark.parametrize("make_error", [Unprintable, lambda: Bad("x" * 3_000_000)], ids=["no text", "long"])
def test_exceptions_without_a_usable_text_are_logged(loader_kind: str, engine: str, make_error: Any) -> None:
    loader = make(loader_kind, Raiser(make_error), on_error="skip", **on(engine, 1))
    assert [index for batch in loader for index in batch.tolist()] == [0, 1, 2, *range(4, 12)]
    [fault] = loader.faults
    assert fault.index == 3
    assert len(fault.message) <= 500


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
