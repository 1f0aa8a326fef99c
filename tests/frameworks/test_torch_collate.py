"""The same results, types and errors as torch's default collate function, wherever the batch is made."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torchs
from torch.utils.data._utils import collate as torch_collate

from feedline.abc import memory
from feedline.frameworks import torch_collate as ours
from feedline.frameworks.torch_tensors import AS_NUMPY
from feedline.memory.arena import Arena
from feedline.memory.codec import MessageWriter, SlotWriter
from feedline.memory.local_buffers import LocalBuffers

pytestmark = pytest.mark.sample(3)


class Pair(NamedTuple):
    left: Any
    right: Any


class Tagged(torch.Tensor):
    pass


# -- where a batch is made ---


@contextmanager
def in_ordinary_memory() -> Iterator[None]:
    yield


@contextmanager
def in_a_slot() -> Iterator[None]:
    backing = np.zeros(1 << 20, np.uint8)
    memory.set_current(SlotWriter(backing, backing.__array_interface__["data"][0]))
    try:
        yield
    finally:
        memory.set_current(None)


@contextmanager
def in_a_full_slot() -> Iterator[None]:
    memory.set_current(SlotWriter(np.zeros(8, np.uint8), 0))
    try:
        yield
    finally:
        memory.set_current(None)


@contextmanager
def in_a_message() -> Iterator[None]:
    backing = np.zeros(1 << 14, np.uint8)
    memory.set_current(MessageWriter(backing, backing.__array_interface__["data"][0]))
    try:
        yield
    finally:
        memory.set_current(None)


@contextmanager
def in_local_buffers() -> Iterator[None]:
    memory.set_current(LocalBuffers(functools.partial(Arena, 2, shared=False, budget=1 << 20)))
    try:
        yield
    finally:
        memory.set_current(None)


PLACES = [in_ordinary_memory, in_a_slot, in_a_full_slot, in_a_message, in_local_buffers]


def outcome(make: Callable[[Any], Any], samples: Any) -> Any:
    try:
        return describe(make(samples))
    except Exception as exc:
        return type(exc), str(exc)


def describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, tuple(value.shape), value.layout, value.tolist() if value.numel() else []
    if isinstance(value, dict):
        return type(value), {key: describe(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [describe(part) for part in value]
    return type(value), value


def same_as_torchs(samples: Any, place: Any) -> None:
    expected = outcome(torchs, samples)
    with place():
        got = outcome(ours.default_collate, samples)
    assert repr(got) == repr(expected)  # as text, so that NaN equals itself


@pytest.fixture(params=PLACES, ids=lambda place: place.__name__)
def place(request: pytest.FixtureRequest) -> Any:
    return request.param


# -- kinds of samples


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [1, 2.5],
        [1, True],
        [1, None],
        [1, 2**63],
        [1, torch.tensor(4.5)],
        [1, np.bool_(True)],
        b"eight by",
        [1.5, None],
        [float("nan"), float("inf")],
        [1j, 2j],
        [None, None],
        [b"x", b"y"],
        [torch.ones(2), torch.ones(3)],
        [torch.ones(2), torch.ones(2, dtype=torch.float64)],
        [np.ones(2), np.ones(3)],
        [np.ones(2), np.ones(2, np.float32)],
        [np.array(["a"]), np.array(["b"])],
        [np.ones(2).astype(">f8")] * 2,
        [np.ones((2, 2))[::-1]] * 2,
        [(1, 2), (3,)],
        [(1, 2), None],
        [[1, 2], (3, 4)],
        [{"a": 1}, {"a": 2, "b": 3}],
        [{"a": 1}, {"b": 2}],
        [[], []],
        [Pair(1, torch.ones(2)), Pair(2, torch.zeros(2))],
        [Pair(1, 2), (3, 4)],
        [defaultdict(int, a=1), defaultdict(int, a=2)],
        [OrderedDict(b=1, a=2), OrderedDict(a=3, b=4)],
        [torch.ones(0, 3), torch.ones(0, 3)],
        [torch.ones(4)[::2], torch.zeros(4)[::2]],
        [torch.ones(2).as_subclass(Tagged), torch.zeros(2).as_subclass(Tagged)],
        [torch.eye(2).to_sparse(), torch.eye(2).to_sparse()],
        [torch.ones(2, device="meta"), torch.ones(2, device="meta")],
        [{"nested": [{"deep": (torch.ones(1), 2)}]}, {"nested": [{"deep": (torch.zeros(1), 3)}]}],
    ],
    ids=lambda samples: repr(samples)[:50],
)
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy:UserWarning")
def test_every_kind_of_sample_is_collated_like_torch_does(samples: list[Any], place: Any) -> None:
    if any(isinstance(sample, torch.Tensor) and sample.is_meta for sample in samples):
        with place():
            assert ours.default_collate(samples).is_meta
        return
    if place in (in_a_slot, in_a_full_slot, in_a_message) and _mixes_types(samples):
        pytest.skip("torch's own workers use the first sample's type there; tests/parity compares them")
    same_as_torchs(samples, place)


def _mixes_types(samples: list[Any]) -> bool:
    return len({getattr(sample, "dtype", None) for sample in samples}) > 1


@pytest.mark.parametrize("place", [in_a_slot, in_a_full_slot, in_a_message])
def test_a_batch_for_another_process_is_contiguous_like_torchs(place: Any) -> None:
    sample = torch.arange(48.0).reshape(2, 3, 4, 2).to(memory_format=torch.channels_last)
    assert not torchs([sample, sample]).is_contiguous(), "without workers, it keeps the memory format"
    with place():
        batch = ours.default_collate([sample, sample])
    assert batch.is_contiguous()
    assert batch.tolist() == [sample.tolist()] * 2


@pytest.mark.parametrize("place", [in_a_slot, in_a_full_slot, in_a_message])
def test_a_batch_for_another_process_has_the_type_of_the_first_sample(place: Any) -> None:
    with place():
        mixed = ours.default_collate([torch.ones(2), torch.ones(2, dtype=torch.float64)])
        assert torch.equal(mixed, torch.ones(2, 2))
        assert mixed.dtype is torch.float32, "the type of the first sample"
        with pytest.raises(RuntimeError, match="automatic differentiation"):
            ours.default_collate([torch.ones(2), torch.ones(2, requires_grad=True)])


def test_gradients_flow_through_a_batch_in_local_buffers() -> None:
    sample = torch.ones(50_000, requires_grad=True)
    with in_local_buffers():
        batch = ours.default_collate([sample, sample])
    batch.sum().backward()
    assert sample.grad is not None
    assert sample.grad[0] == 2


# -- memory ---


@pytest.mark.parametrize(
    "samples",
    [
        [torch.ones(10), torch.zeros(10)],
        [np.ones(10), np.zeros(10)],
        [1, 2, 3],
        [torch.ones(2, dtype=torch.bfloat16)] * 2,
    ],
)
def test_a_batch_is_made_in_the_slot(samples: list[Any]) -> None:
    backing = np.zeros(1 << 16, np.uint8)
    writer = SlotWriter(backing, backing.__array_interface__["data"][0])
    memory.set_current(writer)
    try:
        batch = ours.default_collate(samples)
    finally:
        memory.set_current(None)
    assert writer.offset_of(batch.data_ptr(), batch.nbytes) == 0
    assert writer.used == batch.nbytes


# -- types that users registered


def test_a_users_registration_for_tensors_or_numbers_is_used(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def concatenate(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.cat(list(batch))

    def total(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return sum(batch)

    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, concatenate)
    monkeypatch.setitem(torch_collate.default_collate_fn_map, int, total)
    same_as_torchs([(torch.ones(2), 3), (torch.ones(3), 4)], place)
    ours.install_collate()
    assert torch_collate.default_collate_fn_map[torch.Tensor] is concatenate


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int16", "bool"])
def test_read_only_arrays_are_stacked_without_a_warning(dtype: str) -> None:
    """Warnings are errors here; torch warns about such arrays, although a batch is a copy of them."""
    arrays = [np.arange(6).reshape(2, 3).astype(dtype) for _ in range(3)]
    expected = torchs(arrays)
    for array in arrays:
        array.flags.writeable = False
    found = ours.default_collate(arrays)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    before = arrays[0].copy()
    found[...] = 1
    assert (arrays[0] == before).all(), "a batch has its own memory"


@pytest.mark.parametrize("numbers", [[1, 2], [1.5, 2.5]])
def test_numbers_are_created_on_the_default_device(numbers: list[float]) -> None:
    with torch.device("meta"):
        assert ours.default_collate(numbers).device == torchs(numbers).device == torch.device("meta")


@pytest.mark.parametrize("dtype", [*map(str, AS_NUMPY.values()), "uint16", "uint32"])
def test_numpy_scalars_are_collated_like_torch_does(dtype: str, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [np.dtype(dtype).type(number) for number in (0, 1, 100, 3)]
    expected = torchs(samples)
    with place():
        found = ours.default_collate(samples)
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)
    mixed = [np.float32(1.5), np.float64(2.5), np.int64(3)]
    assert ours.default_collate(mixed).dtype is torchs(mixed).dtype
    if np.dtype(dtype) in AS_NUMPY.values():
        monkeypatch.setattr(torch_collate, "default_collate", None)  # torch takes ten times as long
        assert torch.equal(ours.default_collate(samples), expected)
