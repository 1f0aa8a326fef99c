"""The default collate function, for NumPy and for torch."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import default_collate

from feedline.collate import default
from feedline.errors import CollateError, EmptyBatch
from feedline.frameworks.torch import TorchFramework

to_numpy = default.bound_to("numpy")
to_torch = default.bound_to("torch")


@dataclass(frozen=True)
class Picture:
    image: Any  # an array, with one more axis in a batch
    name: Any

    def __post_init__(self) -> None:
        if getattr(self.image, "ndim", 2) != 2:
            raise ValueError("a sample's image has two axes")


@dataclass
class Pair:
    first: int
    second: int


@dataclass
class Triple(Pair):
    third: int


def same(ours: Any, torchs: Any) -> bool:
    """Return whether a NumPy batch equals torch's, apart from tuples, which torch turns into lists."""
    if isinstance(torchs, torch.Tensor):
        return (
            isinstance(ours, np.ndarray)
            and torch.as_tensor(ours).dtype == torchs.dtype
            and np.array_equal(ours, torchs.numpy(), equal_nan=ours.dtype.kind in "fc")
        )
    if isinstance(torchs, dict):
        return ours.keys() == torchs.keys() and all(same(ours[key], torchs[key]) for key in torchs)
    if isinstance(torchs, (list, tuple)):
        return len(ours) == len(torchs) and all(map(same, ours, torchs))
    return bool(ours == torchs)


dtypes = st.sampled_from(["float32", "float64", "float16", "int64", "int32", "uint8", "bool", "complex64"])


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    """Draw samples of one random structure with random values."""
    count = draw(st.integers(1, 4))

    def column(depth: int) -> st.SearchStrategy[list[Any]]:
        arrays = st.tuples(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)).flatmap(
            lambda form: st.lists(hnp.arrays(*form), min_size=count, max_size=count)
        )
        plain = st.sampled_from([st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text()]).flatmap(
            lambda value: st.lists(value, min_size=count, max_size=count)
        )
        if depth == 0:
            return arrays | plain
        inner = st.lists(column(depth - 1), min_size=1, max_size=3)
        as_tuples = inner.map(lambda columns: list(zip(*columns, strict=True)))
        as_dicts = inner.map(lambda columns: [dict(enumerate(values)) for values in zip(*columns, strict=True)])
        return arrays | plain | as_tuples | as_dicts

    return draw(column(2))


@pytest.mark.slow
@given(batches())
def test_numpy_batches_equal_torchs(samples: list[Any]) -> None:
    assert same(to_numpy(samples), default_collate(samples))


@given(batches())
def test_bound_to_torch_it_equals_torchs(samples: list[Any]) -> None:
    for bound in (to_torch, TorchFramework().bind_collate(default)):
        ours, torchs = bound(samples), default_collate(samples)
        assert repr(ours) == repr(torchs)


def test_tuples_lists_and_mappings_keep_their_type() -> None:
    assert isinstance(to_numpy([(1, 2)]), tuple)
    assert isinstance(to_numpy([[1, 2]]), list)
    assert isinstance(to_numpy([OrderedDict(a=1)]), OrderedDict)
    assert to_numpy([defaultdict(list, a=1)]).default_factory is list
    assert to_numpy([MappingProxyType({"a": 1})])["a"].tolist() == [1]


def test_dataclasses_including_frozen_ones_that_check_their_values() -> None:
    batch = to_numpy([Picture(np.zeros((2, 2)), "a"), Picture(np.ones((2, 2)), "b")])
    assert isinstance(batch, Picture)
    assert batch.image.shape == (2, 2, 2)
    assert batch.name == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], "bool"),
        ([1, 2], "int64"),
        ([1, 2.5], "float64"),
        ([2**63, 2**63 + 1], "uint64"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.uint8(1), np.uint8(2)], "uint8"),
        ([1j, 2], "complex128"),
        ([np.datetime64("2024-01-01"), np.datetime64("2024-01-02")], "datetime64[D]"),
    ],
)
def test_numbers(values: list[Any], dtype: str) -> None:
    batch = to_numpy(values)
    assert batch.dtype == dtype
    assert batch.tolist() == [np.asarray(value).tolist() for value in values]


def test_tensors_become_arrays_when_bound_to_numpy() -> None:
    batch = to_numpy([{"x": torch.ones(2)}, {"x": torch.zeros(2)}])
    assert isinstance(batch["x"], np.ndarray)
    assert batch["x"].tolist() == [[1, 1], [0, 0]]


# Errors name the field and the sample, and say what to do.


def test_errors_name_nested_fields_from_the_outside_in() -> None:
    with pytest.raises(CollateError, match="in field 'inputs' / 1 / 'ids'"):
        to_numpy([{"inputs": (0, {"ids": np.zeros(size)})} for size in (1, 2)])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([1, None], r"Sample 1 of the batch has None.*\(sample 0 has a int\).*drop_none"),
        ([1, "a"], "Sample 1 of the batch has a str"),
        ([{"a": np.zeros(1)}, {"a": None}], r"Sample 1 .* has None in field 'a'.*drop_none\(drop="),
        ([(1, 2), None], r"Sample 1 of the batch has None.*drop_none\(\)"),
        ([{"a": torch.zeros(1, dtype=torch.bfloat16)}], r"a Tensor of torch.bfloat16 in field 'a'.*tensor\.float\(\)"),
        ([{"a": torch.zeros(1, requires_grad=True)}], r"Tensor of torch.float32 in field 'a'.*detach\(\)"),
        ([{"a": object()}], "Sample 0 of the batch has a object in field 'a'"),
        ([{"a": 1, "b": 2}, {"a": 1}], "Sample 1 of the batch has the fields 'a', and sample 0 has 'a', 'b'"),
        ([{"a": 1, "b": 2}, {"a": 1, "c": 2}], "Sample 1 of the batch has the fields 'a', 'c'"),
        ([{"a": 1}, {"a": 1, "b": 2}], "Sample 1 of the batch has the fields 'a', 'b', and sample 0 has 'a'"),
        ([{"a": {"x": 1}}, {"a": {"x": 1, "y": 2}}], "the fields 'x', 'y' in field 'a'"),
        ([Pair(1, 2), Triple(1, 2, 3)], "Sample 1 .*'third'"),
        ([(1, 2), (1,)], r"Sample 1 .*pad\(\)"),
        ([{"a": 2**63}, {"a": -1}], "numbers in field 'a' do not fit into one 64-bit integer type"),
    ],
)
def test_rejects_samples_that_cannot_be_stacked(samples: list[Any], message: str) -> None:
    with pytest.raises(CollateError, match=message):
        to_numpy(samples)


def test_rejects_an_empty_batch() -> None:
    with pytest.raises(EmptyBatch, match="batch sampler"):
        to_numpy([])


@pytest.mark.slow
def test_torch_is_not_imported_for_numpy() -> None:
    code = (
        "import sys, numpy, feedline; c = feedline.collate; a = numpy.zeros(2);"
        "c.default([a]); c.pad()([a]); c.detection()([(a, {})]); c.drop_none()([a]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
