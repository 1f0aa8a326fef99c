"""Errors for samples that cannot be collated: torch's own exception, with notes that name the sample and a fix."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, Subset

import feedline
from feedline.datasets import ArrayDataset

pytestmark = pytest.mark.sample(4)


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


def lists(index: int) -> Any:
    return [1.0] * (3 if index == 13 else 2)


def without_a_field(index: int) -> Any:
    return {"x": 1} if index == 13 else {"x": 1, "y": 2}


CASES = {
    "None": (none_at_13, r"Sample 5 of the batch is None\..*drop_none"),
    "None in a field": (none_in_field, "Sample 5 of the batch has None in field 'y'.*drop_none"),
    "ragged": (ragged, r"Samples 0 and 5 of the batch have shapes \(2,\) and \(3,\) in field 'x'.*collate.pad\(\)"),
    "ragged, nested": (nested, r"shapes \(2,\) and \(3,\) in field 'box' / 0.*collate.pad\(\)"),
    "lists": (lists, r"Samples 0 and 5 of the batch have 2 and 3 fields.*collate.pad\(\)"),
    "a field less": (without_a_field, "Sample 5 of the batch has no field 'y'"),
}


def failure_of(loader: Any) -> Exception:
    with pytest.raises((TypeError, RuntimeError, KeyError)) as caught:
        list(loader)
    return caught.value


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "engine": "thread"}, {"seed": 3}], ids=str
)
@pytest.mark.parametrize("case", CASES)
def test_notes_name_the_sample_that_does_not_fit_and_a_fix(case: str, options: dict[str, Any]) -> None:
    make, expected = CASES[case]
    data = Subset(Odd(make), range(8, 20))
    ours, torchs = failure_of(feedline.DataLoader(data, 8, **options)), failure_of(TorchLoader(data, 8))
    assert (type(ours), str(ours)) == (type(torchs), str(torchs))
    notes = "\n".join(ours.__notes__)
    assert re.search(expected, notes)
    assert (
        "Sample 5 of the batch is sample 5 of the dataset, which is sample 13 of the Odd in loader.dataset.dat" in notes
    )


@pytest.mark.parametrize(
    ("size", "expected"), [(2, "While collating samples 0, 1 ("), (1, "While collating sample 0 (")]
)
def test_a_failing_collate_function_names_its_samples(size: int, expected: str) -> None:
    def failing(samples: list[Any]) -> None:
        raise KeyError(len(samples))

    exc = failure_of(feedline.DataLoader(Odd(int), size, collate_fn=failing))
    assert exc.__notes__[0].startswith(expected)


def test_a_note_counts_the_samples_read_from_a_stream() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([torch.zeros(1)] * 3 + [torch.zeros(2)])

    exc = failure_of(feedline.DataLoader(Stream(), 2))
    assert exc.__notes__[0] == "While collating a batch, after 4 samples (stage: collate)."


def test_the_numpy_loader_names_the_sample_too() -> None:
    exc = failure_of(feedline.Loader(Odd(lambda index: np.zeros(3 if index == 13 else 2)), 8))
    assert "Sample 5 of the batch is sample 13 of the dataset." in exc.__notes__


class Shapeless:
    """Has no shape, like torch's nested tensors."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("has no sizes")


def test_samples_that_cannot_be_inspected_do_not_hide_the_error() -> None:
    data = Odd(lambda index: Shapeless())
    ours, torchs = failure_of(feedline.DataLoader(data, 8)), failure_of(TorchLoader(data, 8))
    assert (type(ours), str(ours)) == (type(torchs), str(torchs))
    assert "has no sizes" in "".join(ours.__notes__)


def test_no_advice_for_custom_collate_functions() -> None:
    exc = failure_of(feedline.DataLoader(Odd(none_at_13), 8, collate_fn=lambda samples: samples[0]["z"]))
    assert "drop_none" not in "".join(exc.__notes__)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dict_of_arrays_fails_as_in_torch_and_a_note_recommends_array_dataset(workers: int) -> None:
    arrays: Any = {"x": torch.arange(10), "y": np.arange(10)}
    exc = failure_of(feedline.DataLoader(arrays, 4, num_workers=workers))
    assert type(exc) is KeyError
    assert any("Use feedline.datasets.ArrayDataset(arrays)" in note for note in exc.__notes__)
    table: Any = ArrayDataset(arrays)
    batch = next(iter(feedline.DataLoader(table, 4)))
    assert batch["x"].tolist() == batch["y"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [lambda index: {"x": 1, "day": np.datetime64("2020-01-01")}, None])
def test_a_note_names_the_field_with_dates(make: Any) -> None:
    days = np.arange("2020-01-01", "2020-01-21", dtype="M8[D]")
    dataset: Any = ArrayDataset({"x": np.arange(20), "day": days}) if make is None else Odd(make)
    with pytest.raises(TypeError) as raised:
        next(iter(feedline.DataLoader(dataset, 4)))
    assert "in field 'day', and torch has no tensors of these" in "".join(raised.value.__notes__)
