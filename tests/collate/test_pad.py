"""Padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.collate import pad
from feedline.errors import BadOption, CollateError


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[NDArray[Any]], int]:
    """Draw arrays that differ in the length of one axis, and that axis."""
    dimensions = draw(st.integers(1, 3))
    axis = draw(st.integers(-dimensions, dimensions - 1))
    shape = draw(st.lists(st.integers(1, 3), min_size=dimensions, max_size=dimensions))
    dtype = draw(st.sampled_from(["int64", "uint8", "float32", "bool"]))
    arrays = []
    for number, length in enumerate(draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))):
        shape[axis] = length
        arrays.append((np.arange(np.prod(shape)).reshape(shape) + number + 1).astype(dtype))
    return arrays, axis


@given(
    arrays_and_axis=ragged(),
    multiple_of=st.sampled_from([None, 1, 4]),
    side=st.sampled_from(["left", "right"]),
    framework=st.sampled_from(["numpy", "torch"]),
    tensors=st.booleans(),
)
def test_trimming_a_padded_batch_gives_the_samples(
    arrays_and_axis: tuple[list[NDArray[Any]], int],
    multiple_of: int | None,
    side: Literal["left", "right"],
    framework: str,
    tensors: bool,
) -> None:
    arrays, axis = arrays_and_axis
    samples = [torch.as_tensor(array) for array in arrays] if tensors else arrays
    collate = pad(1, axis=axis, multiple_of=multiple_of, side=side).bound_to(framework)
    padded, lengths = collate(samples)
    assert isinstance(padded, torch.Tensor if framework == "torch" else np.ndarray)
    padded, lengths = np.asarray(padded), np.asarray(lengths)
    longest = max(array.shape[axis] for array in arrays)
    width = padded[0].shape[axis]
    assert longest <= width < longest + (multiple_of or 1)
    assert width % (multiple_of or 1) == 0
    assert lengths.dtype == np.int64
    assert padded.dtype == arrays[0].dtype
    for row, length, array in zip(padded, lengths, arrays, strict=True):
        along = np.moveaxis(row, axis, 0)
        kept, filled = (along[:length], along[length:]) if side == "right" else np.split(along, [width - length])[::-1]
        assert np.array_equal(np.moveaxis(kept, 0, axis), array)
        assert (filled == 1).all()


TOKENS = [
    {"ids": np.array([1, 2, 3]), "labels": np.array([4, 5, 6]), "weight": 0.5, "text": "abc"},
    {"ids": np.array([7]), "labels": np.array([8]), "weight": 0.25, "text": "a"},
]


def test_each_field_may_have_its_own_padding_value() -> None:
    batch = pad({"ids": 0, "labels": -100})(TOKENS)
    assert list(batch) == ["ids", "labels", "weight", "text", "ids_lengths", "labels_lengths"]
    assert batch["ids"].tolist() == [[1, 2, 3], [7, 0, 0]]
    assert batch["labels"].tolist() == [[4, 5, 6], [8, -100, -100]]
    assert batch["weight"].tolist() == [0.5, 0.25]
    assert batch["text"] == ["abc", "a"]
    assert batch["ids_lengths"].tolist() == batch["labels_lengths"].tolist() == [3, 1]


def test_every_sequence_is_padded_unless_fields_are_named() -> None:
    samples = [{"ids": np.arange(n), "image": np.zeros((3, 2)), "label": np.array(n)} for n in (1, 2)]
    batch = pad(multiple_of=4)(samples)
    assert (batch["ids"].shape, batch["image"].shape, batch["label"].shape) == ((2, 4), (2, 4, 2), (2,))
    batch = pad(multiple_of=4, fields=["ids"])(samples)
    assert (batch["ids"].shape, batch["image"].shape, batch["label"].shape) == ((2, 4), (2, 3, 2), (2,))


def test_tuples_get_lengths_at_the_end() -> None:
    ids, label, mask, ids_lengths, mask_lengths = pad()([(np.arange(n), n, np.ones(n + 1)) for n in (1, 2)])
    assert ids.tolist() == [[0, 0], [0, 1]]
    assert label.tolist() == [1, 2]
    assert mask.shape == (2, 3)
    assert (ids_lengths.tolist(), mask_lengths.tolist()) == ([1, 2], [2, 3])
    ids, label, lengths = pad(fields=[0])([(np.arange(n), n) for n in (1, 2)])
    assert (ids.shape, label.tolist(), lengths.tolist()) == ((2, 2), [1, 2], [1, 2])


class Pair(NamedTuple):
    ids: Any  # an array
    label: Any  # a number in a sample, an array in a batch


@dataclass
class Record:
    ids: Any  # an array
    label: Any  # a number in a sample, an array in a batch


@pytest.mark.parametrize("kind", [Pair, Record])
def test_rejects_samples_without_a_place_for_lengths(kind: Any) -> None:
    samples = [kind(np.arange(n), n) for n in (1, 3)]
    batch = pad(lengths=False)(samples)
    assert type(batch) is kind
    assert batch.ids.shape == (2, 3)
    assert batch.label.tolist() == [1, 3]
    with pytest.raises(CollateError, match=f"{kind.__name__}.*lengths=False"):
        pad()(samples)


def test_other_fields_are_passed_to_the_inner_function() -> None:
    def inner(samples: list[dict[Any, Any]]) -> dict[Any, Any]:
        return {"label": [sample["label"] for sample in samples], "count": len(samples)}

    batch = pad(inner=inner)([{"label": n, "ids": np.arange(n)} for n in (1, 2)])
    assert list(batch) == ["label", "ids", "count", "ids_lengths"]
    assert (batch["label"], batch["count"]) == ([1, 2], 2)


class Room:
    """Memory of a task."""

    crosses = True
    has_space = True

    def __init__(self) -> None:
        self.buffer = np.zeros(1 << 12, np.uint8)
        self.used = 0

    def allocate(self, size: int) -> tuple[Any, int] | None:
        start = self.used
        self.used += -(-size // 64) * 64
        return self.buffer, start


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_batch_is_written_into_the_slot(framework: str) -> None:
    room = Room()
    memory.on_this_thread.memory = room
    try:
        padded, _ = pad().bound_to(framework)([np.arange(3.0), np.arange(5.0)])
    finally:
        memory.on_this_thread.memory = None
    assert np.shares_memory(np.asarray(padded), room.buffer)


# Errors


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([np.zeros((2, 3)), np.zeros((4, 5))], r"Samples 0 and 1 .* \(2, 3\) and \(4, 5\)"),
        ([{"a": np.zeros(2)}, {"a": np.array(1)}], r"Sample 1 .* of shape \(\) in field 'a'.*axis 0"),
        ([{"a": np.zeros(2)}, {"a": None}], r"Sample 1 .* None in field 'a', .*drop_none\(drop="),
        ([{"a": np.zeros(2)}, {"b": 1}], "Sample 1 .* 'b', and sample 0 has 'a'"),
        ([{"a": [[1, 2], [3]]}], "in field 'a'"),
        (["text"], "Sample 0 .* str"),
        ([{"a": [1], "a_lengths": 1}], r"'a_lengths'.*lengths=False"),
        ([(np.arange(2),), (np.arange(3), 1)], "Sample 1"),
    ],
)
def test_rejects_samples_that_cannot_be_padded(samples: list[Any], message: str) -> None:
    with pytest.raises(CollateError, match=message):
        pad()(samples)


def test_the_error_names_missing_fields() -> None:
    samples = [{"tokens": np.arange(2), "label": 1}, {"tokens": np.arange(3), "label": 2}]
    for padding in (pad(fields=["ids"]), pad({"tokens": 0, "ids": 0})):
        with pytest.raises(CollateError, match=r"'ids', only 'tokens', 'label'"):
            padding(samples)
    with pytest.raises(CollateError, match="'count', only 0, 1"):
        pad(fields=["count"])([(np.arange(2), 1)])  # tuples have it, as a method
    with pytest.raises(CollateError, match=r"Sample 1 .*'ids'"):
        pad(fields=["ids"])([{"label": 1}, {"label": 2, "ids": np.arange(2)}])
    with pytest.raises(CollateError, match="'ids'"):
        pad({"ids": 0})([np.arange(2)])


@pytest.mark.parametrize(
    ("value", "dtype", "framework"),
    [(-1, "uint8", "numpy"), (0.5, "int64", "torch"), (2, "bool", "numpy"), (float("nan"), "int32", "torch")],
)
def test_rejects_a_padding_value_that_does_not_fit_the_dtype(value: float, dtype: str, framework: str) -> None:
    with pytest.raises(CollateError, match=dtype):
        pad(value).bound_to(framework)([np.zeros(1, dtype), np.zeros(2, dtype)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": [np.arange(3)]}, "value="),
        ({"value": {"a": 0}, "fields": ["a", "b"]}, "'b'"),
        ({"fields": "ids"}, r"fields=\['ids'\]"),
        ({"lengths": 3}, "lengths=3"),
        ({"multiple_of": 0}, "multiple_of=0"),
        ({"axis": "time"}, "axis='time'"),
        ({"side": "top"}, "side='top'"),
    ],
)
def test_bad_arguments_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        pad(**arguments)
