"""Without a seed, an epoch can be repeated from a state, random numbers included.

That needs a dataset or an iterator whose own state holds the random generators of its worker, as in torchdata's
guide. The tests compare what one loader delivers after its state was saved with what a new one delivers after loading
it.
"""

import copy
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data

from feedline import DataLoader, samplers
from tests.order import datasets
from tests.order.facts import through_json, values


class Noisy(datasets.Sized):
    """Samples with noise; its state is that of the generators that it draws from."""

    def __getitem__(self, index: int) -> list[float]:
        return [index, random.random(), float(torch.rand(()))]

    def state_dict(self) -> dict[str, Any]:
        return {"python": random.getstate(), "torch": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("generators_as_they_were")
def test_a_dataset_with_generators_in_its_state_repeats_the_epoch(workers: int) -> None:
    def make() -> Any:
        return DataLoader(Noisy(23), 2, num_workers=workers, collate_fn=list)

    loader = make()
    list(loader)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = copy.deepcopy(loader.state_dict())
    rest = list(batches)
    other = make()
    for _ in range(2):
        other.load_state_dict(copy.deepcopy(state))
        random.seed(1)
        torch.manual_seed(1)
        assert list(other) == rest


# -- the generator of the next epoch ---


class DrawingSampler:
    """A custom sampler that draws from torch's default generator."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(9).tolist()

    def __len__(self) -> int:
        return 9


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffled": lambda: {"shuffle": True},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(4)},
    "torch's subset": lambda: {"sampler": torch_data.SubsetRandomSampler(range(9))},
    "torch's weighted": lambda: {"sampler": torch_data.WeightedRandomSampler([1.0] * 9, 9)},
    "with replacement": lambda: {"sampler": torch_data.RandomSampler(range(9), replacement=True)},
    "feedline's": lambda: {"sampler": samplers.RandomSampler(range(9))},
    "the user's own": lambda: {"sampler": DrawingSampler()},
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_state_from_the_end_continues_with_the_same_next_epochs(name: str) -> None:
    """As in another process, where torch's default generator has another state."""

    def make() -> Any:
        return DataLoader(datasets.Sized(9), batch_size=2, **ORDERS[name]())

    torch.manual_seed(0)
    loader = make()
    for _ in range(2):
        list(loader)
    state = through_json(loader.state_dict())
    third, fourth = values(loader), values(loader)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    resumed = make()
    resumed.load_state_dict(state)
    assert values(resumed) == third
    again = through_json(resumed.state_dict())
    assert values(resumed) == fourth
    another = make()
    another.load_state_dict(again)
    assert values(another) == fourth, "a state of a resumed loader"
    assert torch.equal(torch.get_rng_state(), before), "torch's default generator belongs to the program"


# -- loading ---


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_four_epochs_with_a_state_in_between_are_torchs(workers: int, persistent: bool) -> None:
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "persistent_workers": persistent}

    def make() -> Any:
        return DataLoader(datasets.Sized(9), shuffle=True, **options)

    torch.manual_seed(0)
    theirs: Any = torch_data.DataLoader(datasets.Sized(9), shuffle=True, **options)
    expected = [values(theirs) for _ in range(4)]
    drawn = torch.get_rng_state()
    torch.manual_seed(0)
    loader = make()
    found = [values(loader) for _ in range(2)]
    state = loader.state_dict()
    loader.close()
    resumed = make()
    resumed.load_state_dict(state)
    found += [values(resumed) for _ in range(2)]
    resumed.close()
    assert found == expected
    if not persistent:  # torch draws no new seed for persistent workers, but these are new
        assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(
    ("workers", "taken", "program_seed", "sampled"),
    [(0, None, 0, True), (0, 0, 5, False), (0, 1, 5, True), (0, 3, 0, False), (2, 1, 5, False)],
)
def test_later_epochs_follow_a_state_from_inside_an_epoch(
    workers: int, taken: int | None, program_seed: int, sampled: bool
) -> None:
    """Without `seed` and `generator`, whether or not the program has seeded torch alike."""

    def make() -> Any:
        sampler = torch_data.WeightedRandomSampler([1.0] * 12, 12) if sampled else None
        return DataLoader(range(12), 4, shuffle=not sampled, sampler=sampler, num_workers=workers)

    torch.manual_seed(0)
    loader, other = make(), make()
    iterator = iter(loader)
    if taken is None:  # before the second epoch
        list(iterator)
        state = through_json(loader.state_dict())
        iterator = iter(loader)
    else:
        list(itertools.islice(iterator, taken))
        state = through_json(loader.state_dict())
    following = [values(iterator), values(loader), values(loader)]
    torch.manual_seed(program_seed)
    other.load_state_dict(state)
    assert [values(other) for _ in range(3)] == following
