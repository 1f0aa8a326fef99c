"""Arrays as a dataset."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import feedline
from feedline.collate import default
from feedline.datasets import ArrayDataset
from feedline.errors import BadOption
from feedline.frameworks.numpy import NumpyFramework
from feedline.frameworks.torch import TorchFramework
from tests.sampling import examples

COUNT = 20
ARRAYS = {
    "image": np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3),
    "label": np.arange(COUNT),
    "flag": np.arange(COUNT) % 2 == 0,
}
TABLES: list[Any] = [ARRAYS, tuple(ARRAYS.values()), (ARRAYS["label"],), ARRAYS["image"], ARRAYS["label"]]


def double(sample: Any) -> Any:
    return sample * 2


def as_tensors(table: Any) -> Any:
    if isinstance(table, dict):
        return {name: torch.from_numpy(array) for name, array in table.items()}
    return tuple(map(torch.from_numpy, table)) if isinstance(table, tuple) else torch.from_numpy(table)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one.dtype == other.dtype and bool((one == other).all())


@pytest.mark.parametrize("table", TABLES, ids=repr)
@pytest.mark.parametrize("tensors", [False, True])
def test_a_sample_has_the_form_of_the_arrays(table: Any, tensors: bool) -> None:
    table = as_tensors(table) if tensors else table
    dataset = ArrayDataset(table)
    assert len(dataset) == COUNT
    sample = dataset[3]
    if isinstance(table, dict):
        assert all((sample[name] == table[name][3]).all() for name in table)
    elif isinstance(table, tuple):
        assert all((value == array[3]).all() for value, array in zip(sample, table, strict=True))
    else:
        assert (sample == table[3]).all()
    assert equal(default(dataset.__getitems__([3, -1])), default([dataset[3], dataset[COUNT - 1]]))


@settings(max_examples=examples(25))
@given(
    table=st.sampled_from(TABLES),
    tensors=st.booleans(),
    indices=st.lists(st.integers(-COUNT, COUNT - 1), min_size=1, max_size=30),
    framework=st.sampled_from([NumpyFramework(), TorchFramework()]),
)
def test_gathered_batches_equal_collated_batches(table: Any, tensors: bool, indices: list[int], framework: Any) -> None:
    dataset = ArrayDataset(as_tensors(table) if tensors else table)
    gather = framework.gather_for(dataset, default)
    assert gather is not None
    collate = framework.bind_collate(default)
    assert equal(gather(np.array(indices)), collate([dataset[index] for index in indices]))


@pytest.mark.parametrize("framework", [NumpyFramework(), TorchFramework()])
@pytest.mark.parametrize("index", [COUNT, -COUNT - 1])
def test_indices_out_of_range(framework: Any, index: int) -> None:
    gather = framework.gather_for(ArrayDataset(ARRAYS), default)
    with pytest.raises(IndexError):
        gather(np.array([0, index]))


class Squared(ArrayDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) ** 2


class Unrelated:
    """Has methods with the same names as an ArrayDataset, but other meanings."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def columns(self) -> tuple[NDArray[Any], ...]:
        return (np.zeros(4),)

    def gather(self, indices: Any) -> str:
        return "not a batch"


@pytest.mark.parametrize("framework", [NumpyFramework(), TorchFramework()])
@pytest.mark.parametrize(
    "dataset",
    [
        ArrayDataset(ARRAYS["label"], transform=double),
        Squared(ARRAYS["label"]),
        Unrelated(),
        ArrayDataset(np.array(["a", "b"])),
        ArrayDataset(np.array([{}, None], object)),
    ],
    ids=["transform", "subclass", "unrelated", "strings", "objects"],
)
def test_datasets_that_cannot_be_gathered_are_read_sample_by_sample(framework: Any, dataset: Any) -> None:
    assert framework.gather_for(dataset, default) is None


@pytest.mark.parametrize("table", TABLES, ids=repr)
def test_batches_of_a_torch_loader(table: Any) -> None:
    dataset = ArrayDataset(as_tensors(table))
    ours = list(feedline.DataLoader(dataset, batch_size=8))
    samples: Any = [dataset[i] for i in range(COUNT)]
    plain = list(torch.utils.data.DataLoader(samples, batch_size=8))
    assert all(map(equal, ours, plain))
    assert len(ours) == len(plain)


def test_arrays_are_not_copied() -> None:
    dataset = ArrayDataset(ARRAYS)
    assert np.shares_memory(dataset[0]["image"], ARRAYS["image"])


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ((np.zeros(3), np.zeros(4)), "array 0 has 3 and array 1 has 4"),
        ({"x": np.zeros((3, 2)), "y": torch.zeros(2)}, "array 'x' has 3 and array 'y' has 2"),
        ((np.zeros(3), [1, 2, 3]), "array 1"),
        ([1, 2, 3], "list"),
        ({}, "one array"),
        ((), "one array"),
        (np.array(3), "axis"),
        ({"a": np.zeros(2), "b": np.float32(1)}, "array 'b'"),
    ],
)
def test_rejects_tables_that_are_not_datasets(table: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        ArrayDataset(table)


def test_pickle_and_repr() -> None:
    dataset = pickle.loads(pickle.dumps(ArrayDataset(ARRAYS, transform=double)))
    assert repr(dataset).startswith(
        "ArrayDataset(20 samples of {'image': float32[2, 3], 'label': int64[], 'flag': bool[]}, transform=<function"
    )
    assert repr(ArrayDataset(torch.zeros(4, 2))) == "ArrayDataset(4 samples of float32[2])"
    assert repr(ArrayDataset((np.zeros(4),))) == "ArrayDataset(4 samples of (float64[],))"
