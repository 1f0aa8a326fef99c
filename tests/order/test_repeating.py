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

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

from feedline import DataLoader, samplers
from tests.order import datasets
from tests.order.facts import through_json, values

# torchdata calls it for every new loader.
pytestmark = [pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"), pytest.mark.sample(10)]


class Generators:
    """A state that consists of the global random generators."""

    def draw(self) -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    def state_dict(self) -> dict[str, Any]:
        return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])


class NoisyMap(Generators, torch_data.Dataset[list[float]]):
    """Samples with noise."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> list[float]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return [index, *self.draw()]


class NoisyIterator(Generators, Iterator[Any]):
    """Samples with noise; the place is part of the state."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers
        self._place = 0

    def __next__(self) -> list[float]:
        if self._place >= len(self._numbers):
            raise StopIteration
        self._place += 1
        return [self._numbers[self._place - 1], *self.draw()]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._place = state["place"]


class NoisyStream(torch_data.IterableDataset[Any]):
    """Each worker has its own part; the last one has none."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        info = torch_data.get_worker_info()
        number, count = (0, 1) if info is None else (info.id, max(1, info.num_workers - 1))
        return NoisyIterator([] if number == count else list(range(number, self.size, count)))


def as_is(batch: Any) -> Any:
    return batch


STYLES: dict[str, Callable[[], Any]] = {"map": lambda: NoisyMap(23), "iterable": lambda: NoisyStream(23)}

TaskNotes = list[tuple[str, Any, list[Any]]]


def two_epochs(loader: Any, stops: tuple[int, ...]) -> TaskNotes:
    """Run two epochs; return states of many moments, each with the rest of its epoch."""
    saved: TaskNotes = []
    state: Any = ("before", copy.deepcopy(loader.state_dict()))
    for epoch in range(2):
        taken, iterator, came = [state], iter(loader), []
        taken.append((f"opened {epoch}", copy.deepcopy(loader.state_dict())))
        places = [0, 0]
        for batch in iterator:
            came.append(batch)
            if len(came) in stops:
                taken.append((f"{epoch} after {len(came)}", copy.deepcopy(loader.state_dict())))
                places.append(len(came))
        saved += [(name, state, came[place:]) for (name, state), place in zip(taken, places, strict=True)]
        state = (f"end {epoch}", copy.deepcopy(loader.state_dict()))
    return saved


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "every", "workers", "persistent"),
    [
        ("map", 1, 0, False),
        pytest.param("map", 1, 3, False, marks=pytest.mark.slow),
        ("map", 10, 3, True),
        ("iterable", 1, 0, False),
        ("iterable", 10, 3, False),
        pytest.param("iterable", 1, 3, True, marks=pytest.mark.slow),
        pytest.param("iterable", 3, 3, True, marks=pytest.mark.slow),
        ("iterable", 10, 3, True),
    ],
)
def test_loading_a_state_repeats_the_epoch(style: str, every: int, workers: int, persistent: bool) -> None:
    def make() -> Any:
        return DataLoader(
            STYLES[style](),
            batch_size=2,
            collate_fn=as_is,
            num_workers=workers,
            persistent_workers=persistent,
            snapshot_every_n_steps=every,
        )

    loader = make()
    saved = two_epochs(loader, stops=(4,))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for name, state, following in saved:
        if name == "before" and style == "iterable" and not workers:
            continue  # there is no iterator yet, and the dataset itself has no state
        other = make()
        other.load_state_dict(copy.deepcopy(state))
        assert list(other) == following, name
        other.close()
    name, state, following = saved[1]
    loader.load_state_dict(state)
    assert list(loader) == following, "also in the same loader, whose workers may have moved on"
    loader.close()


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


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [None, 0, 1, 3])
@pytest.mark.parametrize("program_seed", [0, 5])
@pytest.mark.parametrize("sampled", [False, True])
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
