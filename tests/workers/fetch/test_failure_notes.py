"""Errors are the user's or torch's own, with notes that name the sample, its origin through wrappers, and a fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset
from torch.utils.data import DataLoader as TorchLoader

import feedline
from feedline.datasets import CachedDataset, mix


class Odd(Dataset[Any]):
    """Makes samples with a function."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def none_at_13(index: int) -> Any:
    return None if index == 13 else {"x": torch.tensor(index)}


def none_in_field(index: int) -> Any:
    return {"x": torch.tensor(index), "y": None if index == 13 else torch.tensor(1)}


def ragged(index: int) -> Any:
    return {"x": torch.zeros(3 if index == 13 else 2), "y": index}


def nested(index: int) -> Any:
    return {"box": (np.zeros(3 if index == 13 else 2), index)}


def without_a_field(index: int) -> Any:
    return {"x": 1} if index == 13 else {"x": 1, "y": 2}


CASES = {
    "None": (none_at_13, r"Sample 5 of the batch has None.*drop_none"),
    "None in a field": (none_in_field, "Sample 5 of the batch has None in field 'y'.*drop_none"),
    "ragged": (ragged, r"Samples 0 and 5 of the batch have shapes \(2,\) and \(3,\) in field 'x'.*collate.pad\(\)"),
    "ragged, nested": (nested, r"shapes \(2,\) and \(3,\) in field 'box' / 0.*collate.pad\(\)"),
    "a field less": (without_a_field, "Sample 5 of the batch has the fields 'x', and sample 0 has 'x', 'y'"),
}


def failure_of(loader: Any) -> Exception:
    with pytest.raises((TypeError, RuntimeError, KeyError)) as caught:
        list(loader)
    return caught.value


@pytest.mark.parametrize("case", CASES)
def test_notes_name_the_sample_that_does_not_fit_and_a_fix(case: str) -> None:
    make, expected = CASES[case]
    options: dict[str, Any] = {"num_workers": 1} if case == "None" else {"seed": 3}
    data = Subset(Odd(make), range(8, 20))
    ours, torchs = failure_of(feedline.DataLoader(data, 8, **options)), failure_of(TorchLoader(data, 8))
    assert (type(ours), str(ours)) == (type(torchs), str(torchs))
    notes = "\n".join(ours.__notes__)
    assert re.search(expected, notes)
    assert (
        "Sample 5 of the batch is sample 5 of the dataset, which is sample 13 of the Odd in loader.dataset.dat" in notes
    )


class Shapeless:
    """Has no shape, like torch's nested tensors."""

    __array__ = None

    @property
    def shape(self) -> Any:
        raise RuntimeError("has no sizes")


def test_samples_that_cannot_be_inspected_do_not_hide_the_error() -> None:
    data = Odd(lambda index: Shapeless())
    ours, torchs = failure_of(feedline.DataLoader(data, 8)), failure_of(TorchLoader(data, 8))
    assert (type(ours), str(ours)) == (type(torchs), str(torchs))


# -- where a failed sample comes from ---

BAD = 70
SEVEN: Any = range(7)
BACKWARDS = list(range(99, -1, -1))


class Photos(Dataset[Any]):
    """Sample 70 is broken."""

    def __init__(self) -> None:
        self.requested: list[Any] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.requested.append(index)
        if index == BAD:
            raise ValueError("broken")
        index += 1000  # so the local variable no longer holds the requested index
        return index


class Table(Photos):
    """Reads several samples at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.requested.append(indices)
        torch.rand(())
        if BAD in indices:
            raise ValueError("broken")
        return indices


class StatefulTable(Table):
    """Has a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def notes_of(loader: Any) -> str:
    with pytest.raises(ValueError, match="broken") as caught:
        for _ in loader:
            pass
    return "\n".join(caught.value.__notes__)


WRAPPED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "itself": (lambda data: data, "About sample 70 (stage"),
    "subset of a subset": (lambda data: Subset(Subset(data, BACKWARDS), BACKWARDS), "loader.dataset.dataset.dataset"),
    "subset of parts": (
        lambda data: Subset(ConcatDataset([SEVEN, data]), list(range(107))),
        "About sample 77, which is sample 70 of the {kind} in loader.dataset.dataset.datasets[1]",
    ),
    "split": (lambda data: feedline.split(data, [1.0])[0], "sample 70 of the {kind} in loader.dataset.dataset"),
    "mix": (lambda data: mix([range(100), data]), "sample 70 of the {kind} in loader.dataset.datasets[1]"),
    "cache": (lambda data: CachedDataset(data, memory="1MB"), "sample 70 of the {kind} in loader.dataset.dataset"),
}


@pytest.mark.parametrize("kind", [Photos, Table])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_sample_is_traced_through_wrappers(wrapped: str, kind: type[Photos]) -> None:
    wrap, expected = WRAPPED[wrapped]
    assert expected.format(kind=kind.__name__) in notes_of(feedline.DataLoader(wrap(kind()), 16))


class OwnSubset(Subset[Any]):
    """Has a `__getitems__` of its own."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [-self.indices[index] for index in indices]


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, BACKWARDS)])
def test_a_subset_that_overrides_methods_is_called_as_torch_does(wrap: Callable[[Any], Any]) -> None:
    photos: Any = wrap(OwnSubset(Photos(), BACKWARDS))
    ours, torchs = feedline.DataLoader(photos, 16, seed=1), TorchLoader(photos, 16)
    assert torch.equal(torch.cat(list(ours)), torch.cat(list(torchs)))


def test_samples_are_retried_up_to_the_bad_one_without_drawing_numbers() -> None:
    torch.manual_seed(5)
    table = Table()
    notes_of(feedline.DataLoader(table, 16, shuffle=False, generator=torch.Generator()))
    assert table.requested[-8:] == [list(range(64, 80)), *([index] for index in range(64, 71))]
    drawn = torch.get_rng_state()
    torch.manual_seed(5)
    torch.rand(5)  # one for each batch
    assert torch.equal(drawn, torch.get_rng_state())


def test_a_stateful_dataset_is_not_asked_again() -> None:
    table = StatefulTable()
    notes = notes_of(feedline.DataLoader(table, 16, shuffle=False))
    assert "About one of the samples 64, 65" in notes
    assert table.requested[-1] == list(range(64, 80))
