"""Map-style datasets of every kind; the usual ones, with workers, are in `test_grid.py`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from torch.utils.data.datapipes.map import SequenceWrapper

from tests.parity import datasets
from tests.parity.sides import Parity, Side, same, same_inline

Make = Callable[[], Any]  # Any: torch accepts anything with `__getitem__` and `__len__`


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(float(np.prod(shape))).reshape(shape)


class Doubled(TensorDataset):
    """A subclass with its own `__getitem__`, which decides, not the tensors underneath."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * tensor[index] for tensor in self.tensors)


class ShiftedSubset(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[index]][0] + 100

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Transformed(Dataset[Any]):
    """A typical wrapper that applies a function."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.dataset[index])

    def __len__(self) -> int:
        return len(self.dataset)


class DuckTyped:
    """Not a `Dataset`, but behaves like one."""

    def __getitem__(self, index: int) -> int:
        return index * 10

    def __len__(self) -> int:
        return 7


def replaced_tensors() -> TensorDataset:
    dataset = TensorDataset(torch.arange(6))
    dataset.tensors = (torch.arange(6) + 50, torch.arange(12).reshape(6, 2))
    return dataset


KINDS: dict[str, Make] = {
    "empty inner dimension": lambda: TensorDataset(torch.zeros(7, 2, 0, 3)),
    "channels last": lambda: TensorDataset(numbered(7, 3, 2, 2).contiguous(memory_format=torch.channels_last)),
    "replaced tensors": replaced_tensors,
    "subclass of TensorDataset": lambda: Doubled(numbered(7, 2), numbered(7)),
    "words": lambda: datasets.Words(7),
    "list of numbers": lambda: [3, 1, 4, 1, 5, 9, 2],
    "list of tensors": lambda: [torch.full((2,), i) for i in range(7)],
    "list of tuples": lambda: [(torch.tensor(i), str(i)) for i in range(7)],
    "list of dicts": lambda: [{"a": i, "b": torch.ones(2) * i} for i in range(7)],
    "bytes": lambda: b"feedline",
    "range": lambda: range(3, 12),
    "dict with number keys": lambda: {i: torch.tensor(i * i) for i in range(7)},
    "tensor": lambda: numbered(7, 2),
    "array": lambda: np.arange(14).reshape(7, 2),
    "duck": DuckTyped,
    "no samples": lambda: datasets.Squares(0),
    "no rows": lambda: TensorDataset(torch.zeros(0, 3)),
    "subset of bulk": lambda: Subset(datasets.Bulk(9), [7, 5, 3, 1]),
    "subclass of Subset": lambda: ShiftedSubset(TensorDataset(numbered(9)), [7, 5, 3, 1]),
    "split of plain": lambda: random_split(datasets.Squares(9), [0.5, 0.5], torch.Generator().manual_seed(3))[1],
    "stack by name": lambda: StackDataset(image=datasets.Squares(6), label=[5, 4, 3, 2, 1, 0]),  # type: ignore[arg-type]
    "bulk switched off": lambda: datasets.BulkSwitchedOff(7),
    "transformed": lambda: Transformed(TensorDataset(numbered(7, 2)), lambda sample: sample[0] * 3),
    "sequence pipe": lambda: SequenceWrapper([5, 6, 7, 8, 9]),
    "mapped pipe": lambda: SequenceWrapper(range(7)).map(lambda value: value * 2),
}


@pytest.mark.parametrize("name", KINDS)
@same_inline
def test_every_kind_of_dataset(side: Side, name: str) -> object:
    shuffle = name not in ("no samples", "no rows")
    shuffled = side.loader(KINDS[name](), batch_size=2, shuffle=shuffle, drop_last=True)
    others = [list(side.loader(KINDS[name](), batch_size=size)) for size in (3, None)]
    return others, list(shuffled), list(shuffled)


# `__getitems__`


# Vectorised reading must not be visible


@same_inline
def test_tensors_changed_between_epochs_are_read_again(side: Side) -> object:
    tensor = numbered(5, 2)
    loader = side.loader(TensorDataset(tensor), batch_size=2)
    first = list(loader)
    tensor.add_(100)
    return first, list(loader)


@same
def test_a_batch_is_a_copy_of_the_dataset(side: Side) -> object:
    """Writing to a batch must not change the dataset, even if the batch is the whole dataset in order."""
    tensor = numbered(6, 2)
    for (batch,) in side.loader(TensorDataset(tensor), batch_size=6):
        batch.fill_(-1)
    return tensor


def test_an_index_out_of_range_raises_torchs_error(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(TensorDataset(numbered(4)), sampler=[0, 1, 4], batch_size=2))

    inline_parity.same_refusal(code)
