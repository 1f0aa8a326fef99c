"""States saved at the start of an epoch, for persistent workers that keep the state of the previous epoch."""

import copy
import itertools
from typing import Any

import pytest
import torch.utils.data as torch_data

from feedline import DataLoader
from tests.order import datasets
from tests.order.facts import values


def streaming(**options: Any) -> Any:
    return DataLoader(datasets.StatefulStream(12), batch_size=2, collate_fn=datasets.first_fields, **options)


@pytest.mark.parametrize(("workers", "every", "taken"), [(0, 1, None), (2, 3, 1)])
def test_the_state_of_a_generator_that_has_not_started_has_no_place(
    workers: int, every: int, taken: int | None
) -> None:
    """The state of its dataset belongs to the previous epoch, which ended or was abandoned."""
    options = {"num_workers": workers, "persistent_workers": workers > 0, "snapshot_every_n_steps": every}
    loader = streaming(**options)
    values(itertools.islice(iter(loader), taken))
    iterator = iter(loader)
    states = [copy.deepcopy(loader.state_dict())]
    came = []
    for batch in iterator:
        came.append(batch)
        states.append(copy.deepcopy(loader.state_dict()))
    for place, state in enumerate(states[:4]):
        other = streaming(**options)
        other.load_state_dict(state)
        assert list(other) == came[place:], place
        other.close()
    loader.close()


class Counting(torch_data.Dataset[int]):
    """Counts its samples over all epochs."""

    count = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index >= 6:
            raise IndexError(index)
        self.count += 1
        return 100 * index + self.count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize("taken", [None, 2])
def test_workers_go_back_to_the_last_delivered_batch_when_an_epoch_is_left(taken: int | None) -> None:
    """They had made more batches by then: how many depends on timing."""
    loader, other = (DataLoader(Counting(), batch_size=1, num_workers=2, persistent_workers=True) for _ in range(2))
    values(itertools.islice(iter(loader), taken))
    iterator = iter(loader)
    other.load_state_dict(copy.deepcopy(loader.state_dict()))
    first = (taken or 6) // 2 + 1
    assert values(other) == values(iterator) == [[100 * index + first + index // 2] for index in range(6)]
    loader.close()
    other.close()
