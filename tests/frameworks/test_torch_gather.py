"""A vectorised batch equals the collated single samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from feedline import DataLoader
from feedline.abc.worker_spec import WorkerSpec
from feedline.datasets import ArrayDataset
from feedline.frameworks.torch import TorchFramework
from feedline.frameworks.torch_gather import gather_for
from feedline.randomness.scope import Scope
from feedline.types import DatasetKind
from feedline.workers.fetch import fetcher_for
from tests.memory.tasks import slot, task_in
from tests.parity.observation import describe, outcome
from tests.sampling import examples


def fetch(dataset: Any) -> Callable[[Any], Any]:
    spec = WorkerSpec(dataset, DatasetKind.MAP, default_collate, TorchFramework(), worker_count=0, base_seed=0)
    return fetcher_for(dataset, spec, Scope())


def one_by_one(dataset: Any) -> Callable[[Any], Any]:
    """Do what torch's own fetcher does."""

    def make(indices: Any) -> Any:
        if getattr(dataset, "__getitems__", None):
            return default_collate(dataset.__getitems__(indices))
        return default_collate([dataset[index] for index in indices])

    return make


def tensor_of(count: int, *rows: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 100, (count, *rows), generator=generator).to(dtype)


def pairs(count: int, seed: int = 0) -> TensorDataset:
    return TensorDataset(tensor_of(count, 3, seed=seed), tensor_of(count, dtype=torch.int64, seed=seed))


DATASETS: dict[str, Callable[[], Any]] = {
    "pairs": lambda: pairs(12),
    "bfloat16": lambda: TensorDataset(tensor_of(12, 3, dtype=torch.bfloat16)),
    "large rows": lambda: TensorDataset(tensor_of(12, 9000)),
    "transposed": lambda: TensorDataset(tensor_of(3, 12).t()),
    "negative bit": lambda: TensorDataset((tensor_of(12, dtype=torch.complex64) * 1j).conj().imag),
    "a tensor": lambda: tensor_of(12, 3),
    "an array": lambda: tensor_of(12, 3).numpy(),
    "foreign bytes": lambda: tensor_of(12, 3).numpy().astype(">f4"),
    "strings": lambda: np.array([["a", "b"]] * 12),
    "subset": lambda: Subset(pairs(20), [*range(3, 15)]),
    "subset with repeats": lambda: Subset(pairs(20), [7, 7, 0, -1, 19, -20, 3, 3, 3, 1, 2, 4]),
    "subset with wrong indices": lambda: Subset(pairs(5), [0, 1, 2, 3, 4, 5, -5, -6, 7, 1, 1, 1]),
    "subset of subset": lambda: Subset(Subset(pairs(30), list(range(0, 30, 2))), list(range(14, 2, -1))),
    "concatenated": lambda: ConcatDataset([pairs(4), pairs(5, 1), pairs(3, 2)]),
    "concatenated subsets": lambda: ConcatDataset(
        [Subset(pairs(9), [8, 1, -1]), pairs(5, 1), Subset(pairs(4), [0] * 4)]
    ),
    "subset of concatenated": lambda: Subset(ConcatDataset([pairs(4), pairs(5, 1)]), [*range(9), -1, -9, 0]),
    "concatenated with other types": lambda: ConcatDataset(
        [TensorDataset(tensor_of(6, 2)), TensorDataset(tensor_of(6, 2, dtype=torch.float64))]
    ),
    "concatenated tensors and samples": lambda: ConcatDataset(
        [tensor_of(6, 2), TensorDataset(tensor_of(6, 2))]  # type: ignore[list-item]
    ),
    "concatenated lists": lambda: ConcatDataset([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12]]),  # type: ignore[list-item]
    "columns by name": lambda: ArrayDataset({"x": tensor_of(12, 3), "y": np.arange(12)}),
    "one column": lambda: ArrayDataset(np.arange(24.0).reshape(12, 2)),
    "columns of names": lambda: ArrayDataset({"x": tensor_of(12, 3), "name": np.array(list("abcdefghijkl"))}),
}


@pytest.mark.parametrize("name", DATASETS)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(indices=st.lists(st.integers(-14, 14), max_size=6))
def test_any_indices_give_the_same_batch_as_single_samples(name: str, indices: list[int]) -> None:
    dataset = DATASETS[name]()
    assert outcome(lambda: fetch(dataset)(indices)) == outcome(lambda: one_by_one(dataset)(indices))


VECTORISED = [
    "pairs",
    "bfloat16",
    "large rows",
    "a tensor",
    "an array",
    "subset",
    "subset with repeats",
    "subset of subset",
    "concatenated",
    "concatenated subsets",
    "subset of concatenated",
    "columns by name",
    "one column",
]


@pytest.mark.parametrize("name", VECTORISED)
def test_typical_datasets_are_vectorised(name: str) -> None:
    assert gather_for(DATASETS[name]()) is not None


class Doubled(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * tensor[index] for tensor in self.tensors)


class Shifted(Subset[Any]):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.dataset[index + 1] for index in indices]


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)

    def columns(self) -> Any:
        raise AssertionError("a method with this name does not make a columnar dataset")


@pytest.mark.parametrize(
    "dataset",
    [
        Doubled(tensor_of(12, 3)),
        Shifted(pairs(20), list(range(12))),
        Plain(),
        Subset(Plain(), [1, 2]),
        ConcatDataset([Plain(), pairs(3)]),
        TensorDataset(tensor_of(12, 3).requires_grad_()),
        TensorDataset(torch.nn.Parameter(tensor_of(12, 3))),
        TensorDataset(torch.empty(0, 3)),
        torch.tensor(3),
        [1, 2, 3],
        "text",
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_datasets_with_their_own_samples_are_not_vectorised(dataset: Any) -> None:
    assert gather_for(dataset) is None


def test_nothing_is_vectorised_if_users_registered_a_collate_function() -> None:
    framework = TorchFramework()
    assert framework.gather_for(pairs(3), default_collate) is not None
    assert framework.gather_for(pairs(3), list) is None
    table = torch.utils.data._utils.collate.default_collate_fn_map
    table[complex] = lambda batch, *, collate_fn_map: "mine"
    try:
        assert framework.gather_for(pairs(3), default_collate) is None
    finally:
        del table[complex]


# -- memory ---


def test_a_batch_is_a_copy() -> None:
    for rows in (3, 40_000):
        data = tensor_of(6, rows)
        batch = fetch(TensorDataset(data))([0, 1, 2, 3, 4, 5])[0]
        batch.fill_(-1)
        assert data.min() >= 0


@pytest.mark.parametrize("name", ["large rows", "pairs"])
@pytest.mark.parametrize("indices", [[0, 5, 5], [-1, -12, 0]])
def test_a_large_batch_is_written_directly_into_the_slot(name: str, indices: list[int]) -> None:
    dataset = DATASETS[name]()
    make = fetch(dataset)
    with task_in(slot(1 << 20)) as writer:
        batch = make(indices)
    assert describe(batch) == describe(one_by_one(dataset)(indices))
    inside = [writer.offset_of(part.data_ptr(), part.nbytes) is not None for part in batch]
    assert inside == ([True] if name == "large rows" else [False, False]), "small batches are cheaper to copy"


def tensors(first: int) -> TensorDataset:
    return TensorDataset(torch.arange(6) + first)


def assign(name: str, value: Any) -> Callable[[Any], None]:
    return lambda dataset: setattr(dataset, name, value)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "tensors": (lambda: tensors(0), assign("tensors", (torch.arange(6) * 2.5,))),
    "indices": (lambda: Subset(tensors(0), range(6)), assign("indices", range(5, -1, -1))),
    "what was selected has changed": (
        lambda: Subset(tensors(0), range(6)),
        lambda dataset: assign("tensors", (torch.arange(6) + 50,))(dataset.dataset),
    ),
    "a part": (
        lambda: ConcatDataset([tensors(0), tensors(6)]),
        lambda dataset: dataset.datasets.__setitem__(0, tensors(50)),
    ),
    "it has no columns any more": (lambda: Subset(tensors(0), range(6)), assign("dataset", [(9,)] * 6)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_without_workers_a_changed_dataset_shows_at_once(change: str) -> None:
    make, act = CHANGES[change]
    seen = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        dataset = make()
        loader: Any = kind(dataset, 2)
        batches = iter(loader)
        first = next(batches)[0].tolist()
        act(dataset)
        seen.append([first, *(batch[0].tolist() for batch in batches), *(batch[0].tolist() for batch in loader)])
    assert seen[0] == seen[1]
