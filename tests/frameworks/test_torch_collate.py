"""The same results, types and errors as torch's default collate function, wherever the batch is made."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torchs
from torch.utils.data._utils import collate as torch_collate

from feedline.abc import memory
from feedline.frameworks import torch_collate as ours
from feedline.frameworks.torch_tensors import AS_NUMPY
from feedline.memory.arena import Arena
from feedline.memory.local_buffers import LocalBuffers
from tests.memory.tasks import message, slot, task_in
from tests.parity import datasets
from tests.parity.observation import outcome
from tests.parity.samples import SAMPLES, UNCOLLATABLE

# -- where a batch is made ---


PLACES: dict[str, Callable[[], memory.Memory]] = {
    "a slot": lambda: slot(1 << 20),
    "a full slot": lambda: slot(8),
    "a message": message,
    "local buffers": lambda: LocalBuffers(functools.partial(Arena, 2, shared=False, budget=1 << 20)),
}
FOR_ANOTHER_PROCESS = ["a slot", "a full slot", "a message"]


def same_as_torchs(samples: Any, places: Iterable[str] = PLACES) -> None:
    expected = outcome(lambda: torchs(samples))
    for place in places:
        with task_in(PLACES[place]()):
            assert outcome(lambda: ours.default_collate(samples)) == expected, place


# -- kinds of samples


MIXED: dict[str, Callable[[], list[Any]]] = {
    "no samples": list,
    "a number and a flag": lambda: [1, True],
    "a number and nothing": lambda: [1.5, None],
    "numbers, one of them large": lambda: [1, 2**63],
    "a number and a tensor": lambda: [1, torch.tensor(4.5)],
    "a number and a scalar": lambda: [1, np.bool_(True)],
    "one string of bytes": lambda: b"eight by",  # type: ignore[dict-item,return-value]
    "arrays of different shapes": lambda: [np.ones(2), np.ones(3)],
    "arrays of strings": lambda: [np.array(["a"]), np.array(["b"])],
    "foreign bytes": lambda: [np.ones(2).astype(">f8")] * 2,
    "reversed arrays": lambda: [np.ones((2, 2))[::-1]] * 2,
    "a tuple and nothing": lambda: [(1, 2), None],
    "a list and a tuple": lambda: [[1, 2], (3, 4)],
    "dicts with different keys": lambda: [{"a": 1}, {"b": 2}],
    "a named tuple and a tuple": lambda: [datasets.Point(1, 2), (3, 4)],
    "default dicts": lambda: [defaultdict(int, a=1), defaultdict(int, a=2)],
    "no rows": lambda: [torch.ones(0, 3)] * 2,
    "steps": lambda: [torch.ones(4)[::2]] * 2,
}
KINDS = {**SAMPLES, **MIXED, **{name: make for name, (make, _) in UNCOLLATABLE.items()}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy", "ignore:The PyTorch API of nested")
def test_every_kind_of_sample_is_collated_like_torch_does(kind: str) -> None:
    # Batches of torch's own workers are contiguous; tests/parity compares them.
    is_moved = kind in ("channels last", "expanded tensors")
    same_as_torchs(KINDS[kind](), ["local buffers"] if is_moved else PLACES)


@pytest.mark.slow
def test_tensors_without_memory_are_collated_like_torch_does() -> None:
    for place in PLACES.values():
        with task_in(place()):
            assert ours.default_collate([torch.ones(2, device="meta")] * 2).is_meta


@pytest.mark.parametrize("place", FOR_ANOTHER_PROCESS)
def test_a_batch_for_another_process_is_contiguous_and_has_the_type_of_the_first_sample(place: str) -> None:
    sample = torch.arange(48.0).reshape(2, 3, 4, 2).to(memory_format=torch.channels_last)
    assert not torchs([sample, sample]).is_contiguous(), "without workers, it keeps the memory format"
    with task_in(PLACES[place]()):
        batch = ours.default_collate([sample, sample])
        assert (batch.is_contiguous(), batch.tolist()) == (True, [sample.tolist()] * 2)
        mixed = ours.default_collate([torch.ones(2), torch.ones(2, dtype=torch.float64)])
        assert torch.equal(mixed, torch.ones(2, 2))
        assert mixed.dtype is torch.float32, "the type of the first sample"
        with pytest.raises(RuntimeError, match="automatic differentiation"):
            ours.default_collate([torch.ones(2), torch.ones(2, requires_grad=True)])


def test_gradients_flow_through_a_batch_in_local_buffers() -> None:
    sample = torch.ones(50_000, requires_grad=True)
    with task_in(PLACES["local buffers"]()):
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
    with task_in(slot()) as writer:
        batch = ours.default_collate(samples)
    assert writer.offset_of(batch.data_ptr(), batch.nbytes) == 0
    assert writer.used == batch.nbytes


# -- types that users registered


def test_a_users_registration_for_tensors_or_numbers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def concatenate(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.cat(list(batch))

    def total(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return sum(batch)

    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, concatenate)
    monkeypatch.setitem(torch_collate.default_collate_fn_map, int, total)
    same_as_torchs([(torch.ones(2), 3), (torch.ones(3), 4)])
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
def test_numpy_scalars_are_collated_like_torch_does(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [np.dtype(dtype).type(number) for number in (0, 1, 100, 3)]
    expected = torchs(samples)
    same_as_torchs(samples)
    mixed = [np.float32(1.5), np.float64(2.5), np.int64(3)]
    assert ours.default_collate(mixed).dtype is torchs(mixed).dtype
    if np.dtype(dtype) in AS_NUMPY.values():
        monkeypatch.setattr(torch_collate, "default_collate", None)  # torch takes ten times as long
        assert torch.equal(ours.default_collate(samples), expected)
