from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, SequentialSampler

from feedline import DataLoader


class Squares(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index**2


class Endless:
    """A map-style dataset without a length."""

    def __getitem__(self, index: int) -> int:
        return index


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ({"num_workers": "4"}, "num_workers='4' has type str"),
        ({"timeout": "5"}, "timeout='5'"),
        ({"sampler": SequentialSampler}, "sampler=SequentialSampler(...)"),
        ({"dataset": Squares}, "dataset=Squares(...)"),
        ({"dataset": Path("/data/train")}, "is a path, not a dataset"),
        ({"dataset": Endless(), "shuffle": True}, "class Endless has no __len__"),
        ({"dataset": Counting(), "shuffle": True}, "To shuffle, do so in its __iter__"),
        ({"dataset": [], "shuffle": True}, "The dataset has no samples"),
        ({"batch_size": 0}, ""),  # torch's message suffices
    ],
    ids=str,
)
def test_errors_of_torch_that_do_not_say_what_to_write_get_a_note(arguments: dict[str, Any], note: str) -> None:
    failures = []
    for kind in (DataLoader, torch.utils.data.DataLoader):
        with pytest.raises((TypeError, ValueError)) as caught:
            list(kind(**{"dataset": range(10), **arguments}))
        failures.append(caught.value)
    ours, torchs = failures
    assert (type(ours), str(ours)) == (type(torchs), str(torchs))
    notes = "".join(getattr(ours, "__notes__", []))
    assert note in notes
    assert bool(note) == bool(notes)


def test_errors_of_the_dataset_get_no_note() -> None:
    class Failing(Squares):
        def __len__(self) -> int:
            raise ValueError("of the user's own")

    with pytest.raises(ValueError, match="of the user's own") as caught:
        DataLoader(Failing(), shuffle=True)
    assert not getattr(caught.value, "__notes__", [])
