"""Samples that fail in batches, datasets and exceptions of every form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.faults.bad_samples.samples import cut
from tests.faults.loaders import (
    Bad,
    ByRng,
    Numbers,
    batches_of,
    everywhere,
    indices_of,
    make,
    on,
    on_every_engine,
    outcomes_of,
)

pytestmark = pytest.mark.sample(23)


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "array": np.array,
    "tensor": torch.tensor,
    "tuple": tuple,
    "range": lambda batch: range(batch[0], batch[-1] + 1),
    "NumPy's numbers": lambda batch: [np.int64(index) for index in batch],
    "iterator": iter,
}


class Formed:
    """A batch sampler whose batches are not lists."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return map(FORMS[self.form], cut(range(12), 3))


class Plain(Numbers):
    """Takes indices of any kind of number."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(int(index))


@everywhere
@pytest.mark.parametrize("form", FORMS)
def test_policies_work_for_batches_of_any_form(loader_kind: str, engine: str, form: str) -> None:
    if (form, engine) == ("iterator", "process"):
        return  # such a batch cannot be sent
    for policy, middle in (("skip", [3, 5]), ("replace", [3, 5, 5])):
        loader = make(loader_kind, Plain(12, {4}), batch_sampler=Formed(form), on_error=policy, **on(engine, 1))
        for _ in range(2):
            assert batches_of(loader) == [[0, 1, 2], middle, [6, 7, 8], [9, 10, 11]]
        assert indices_of(loader.faults) == [4]


class Listed(Numbers):
    """An index is a list of numbers."""

    def __getitem__(self, index: Any) -> Any:
        return [super(Listed, self).__getitem__(number) for number in index]


@everywhere
def test_indices_that_are_lists_are_one_sample_each(loader_kind: str, engine: str) -> None:
    sampler = [[0, 1], [2, 3], [4, 5], [6, 7]]
    loader = make(loader_kind, Listed(8, {4}), None, sampler=sampler, on_error="skip", **on(engine, 1))
    for _ in range(2):
        assert sorted(batches_of(loader)) == [[0, 1], [2, 3], [6, 7]]
    assert indices_of(loader.faults) == [[4, 5]]
    assert [4, 5] in loader.faults.quarantined


class Unprintable(Exception):
    """Its `str` fails."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def raise_local() -> None:
    class Local(Exception):
        pass

    raise Local("nobody can import it")


def raise_shy() -> None:
    raise Unprintable


def raise_long() -> None:
    raise Bad("x" * 3_000_000)


def recurse() -> None:
    recurse()


ODD = {"local": raise_local, "shy": raise_shy, "long": raise_long, "recursion": recurse}


class Odd(Numbers):
    def __init__(self, how: str) -> None:
        super().__init__(8)
        self.how = how

    def __getitem__(self, index: int) -> int:
        if index == 3:
            ODD[self.how]()
        return index


@everywhere
@pytest.mark.parametrize("how", ODD)
def test_unusual_exceptions_are_raised_and_logged(loader_kind: str, engine: str, how: str) -> None:
    first, *rest = outcomes_of(make(loader_kind, Odd(how), **on(engine, 1)))
    assert isinstance(first, Exception)
    assert "sample 3" in "\n".join(first.__notes__)
    assert rest == [[4, 5, 6, 7]]
    loader = make(loader_kind, Odd(how), on_error="skip", **on(engine, 1))
    assert sorted(itertools.chain(*batches_of(loader))) == [0, 1, 2, 4, 5, 6, 7]
    assert indices_of(loader.faults) == [3]
    assert len(loader.faults[0].message) <= 500
    assert json.loads(json.dumps(loader.state_dict()))


def virtual(kind: str, engine: str, workers: int) -> tuple[Any, ...]:
    loader = make(kind, ByRng(23, {4, 9}), on_error="skip", seed=3, shuffle=True, **on(engine, workers))
    epochs = [batches_of(epoch) for epoch in itertools.islice(loader.virtual_epochs(7), 4)]
    loader.close()
    return epochs, indices_of(loader.faults)


@on_every_engine
def test_virtual_epochs_keep_their_length(loader_kind: str, engine: str, workers: int) -> None:
    epochs, faults = virtual(loader_kind, engine, workers)
    assert [len(epoch) for epoch in epochs] == [7] * 4
    assert {len(batch) for epoch in epochs for batch in epoch} == {2, 3, 4}
    assert sorted(faults) == [4, 9]
    assert (epochs, faults) == virtual(loader_kind, "inline", 0)
