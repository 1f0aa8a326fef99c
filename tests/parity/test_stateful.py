"""States: the same script with torchdata's StatefulDataLoader and feedline's loader, and the batches after resuming.

The content of a state is private to each library; the tests compare the batches after it was loaded.
"""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import BatchSampler as StatefulBatchSampler
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import feedline
from tests.order import datasets
from tests.order.facts import values

# torchdata calls it whenever a loader is made.
pytestmark = [pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

N = 14

Make = Callable[[], dict[str, Any]]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def sized(batch_size: int = 3, **options: Any) -> Make:
    return lambda: {
        "dataset": datasets.Sized(N),
        "batch_size": batch_size,
        **{name: make() for name, make in options.items()},
    }


def batched(sampler: Callable[[], Any]) -> Make:
    return lambda: {"dataset": datasets.Sized(N), "batch_sampler": sampler()}


MAP_STYLE: dict[str, Make] = {
    "in order": sized(),
    "a list": sized(sampler=lambda: [5, 3, 1, 4, 2, 0]),
    "a generator": sized(sampler=lambda: datasets.Backwards(N)),
    "a generator of batches": batched(lambda: datasets.Stairs(N)),
    "torch's subset": sized(sampler=lambda: torch_data.SubsetRandomSampler(range(N), generator=generator())),
    "torch's distributed": sized(2, sampler=lambda: torch_data.DistributedSampler(range(N), 2, 1)),  # type: ignore[arg-type]
    "a stateful dataset": lambda: {"dataset": datasets.StatefulMap(N), "batch_size": 3},
    "a stateful sampler": sized(2, sampler=lambda: datasets.StatefulSampler(N)),
    "a stateful sampler, dropping": sized(drop_last=lambda: True, sampler=lambda: datasets.StatefulSampler(N)),
    "a stateful iterator of a sampler": sized(sampler=lambda: datasets.StatefulIteratorSampler(N)),
    "a stateful batch sampler": batched(lambda: datasets.StatefulSampler(N, 3)),
    "torchdata's distributed": sized(2, sampler=lambda: StatefulDistributedSampler(range(N), 2, 1)),
    "torchdata's batches": batched(
        lambda: StatefulBatchSampler(StatefulRandomSampler(range(N), generator=generator()), 3, False)
    ),
}


def numbers(dataset: Any, *, batch_size: int | None, drop_last: bool = False) -> dict[str, Any]:
    """Leave out the position at which an iterator was restored, which is private to each library."""
    collate = datasets.first_field if batch_size is None else datasets.first_fields
    return {"dataset": dataset, "batch_size": batch_size, "drop_last": drop_last, "collate_fn": collate}


ITERABLE: dict[str, Make] = {
    "a stateful dataset": lambda: numbers(datasets.StatefulStream(N), batch_size=3),
    "a stateful iterator": lambda: numbers(datasets.StatefulSplitStream(N), batch_size=3),
    "a stateless dataset": lambda: {"dataset": datasets.SplitStream(N), "batch_size": 3},
    "streams of uneven length": lambda: {"dataset": datasets.UnevenStream((8, 3)), "batch_size": 2},
    "a stream that lasts": lambda: {"dataset": datasets.TurnstileStream(6), "batch_size": 2},
}


def taken(loader: Any, count: int) -> tuple[Any, list[Any]]:
    """Take batches, without checking whether there are more."""
    iterator = iter(loader)
    return iterator, values(itertools.islice(iterator, count))


def batch_count(kind: Any, make: Make, **options: Any) -> int:
    return len(values(kind(**make(), **options)))


def story(kind: Any, make: Make, stop: int | None, **options: Any) -> list[Any]:
    """Save a state after `stop` batches (None: after the end); return the batches before it and after resuming."""
    loader = kind(**make(), **options)
    if stop is None:
        before = values(loader)
        state = copy.deepcopy(loader.state_dict())
    else:
        iterator, before = taken(loader, stop)
        state = copy.deepcopy(loader.state_dict())
        del iterator
    resumed = kind(**make(), **options)
    resumed.load_state_dict(state)
    return [before, values(resumed), values(resumed)]


def same_story(make: Make, stop: int | None, **options: Any) -> None:
    ours = story(feedline.DataLoader, make, stop, **options)
    assert ours == story(StatefulDataLoader, make, stop, **options), f"after {stop} batches"


# Without workers: every step


@pytest.mark.filterwarnings("ignore::feedline.errors.DataWarning")  # of torch's own sampler, in two epochs
@pytest.mark.parametrize("name", MAP_STYLE)
def test_map_style_from_every_step(name: str) -> None:
    make = MAP_STYLE[name]
    for stop in (*range(batch_count(feedline.DataLoader, make) + 1), None):
        if (name, stop) != ("torchdata's distributed", None):  # see below: an epoch is lost
            same_story(make, stop)


@pytest.mark.parametrize("name", ITERABLE)
def test_iterable_from_every_step(name: str) -> None:
    make = ITERABLE[name]
    if name == "streams of uneven length":
        pytest.skip("without workers it is one stream like others")
    for stop in (*range(batch_count(feedline.DataLoader, make) + 1), None):
        if name != "a stateful dataset" or stop not in (5, None):  # see below: an epoch is lost
            same_story(make, stop)


# With two workers: torchdata takes a quarter of a second for each start, so only a few steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stop"),
    [("in order", 2), ("a stateful dataset", 3), ("a stateful dataset", None), ("a stateful batch sampler", 4)],
)
def test_map_style_with_workers(name: str, stop: int | None) -> None:
    same_story(MAP_STYLE[name], stop, num_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stop", "every"),
    [
        ("a stateful dataset", 3, 1),
        ("a stateful iterator", 0, 1),
        ("a stateful iterator", 4, 3),
        ("a stateless dataset", 3, 1),
        ("streams of uneven length", 5, 2),
    ],
)
def test_iterable_with_workers(name: str, stop: int | None, every: int) -> None:
    same_story(ITERABLE[name], stop, num_workers=2, snapshot_every_n_steps=every)


def test_a_stream_with_a_persistent_position_and_a_worker() -> None:
    same_story(ITERABLE["a stream that lasts"], 2, num_workers=1)


# Other uses of states


def the_epoch_of_torchdatas_sampler(kind: Any) -> Any:
    """The usual loop, interrupted in its second epoch."""

    def make() -> tuple[Any, Any]:
        sampler: Any = StatefulDistributedSampler(range(N), 2, 0)
        return sampler, kind(datasets.Sized(N), batch_size=2, sampler=sampler)

    sampler, loader = make()
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        _, batches = taken(loader, 2 if epoch else 10)
        seen.append(batches)
    state = copy.deepcopy(loader.state_dict())
    sampler, loader = make()
    loader.load_state_dict(state)
    for epoch in range(1, 3):
        sampler.set_epoch(epoch)
        seen.append(values(loader))
    return seen


@pytest.mark.filterwarnings("ignore::feedline.errors.StateWarning")  # torchdata accepts an empty state silently
def test_the_usual_loop_resumes_as_with_torchdata() -> None:
    expected = the_epoch_of_torchdatas_sampler(StatefulDataLoader)
    assert the_epoch_of_torchdatas_sampler(feedline.DataLoader) == expected


# Deliberate differences, and bugs of torchdata that feedline does not have


def test_a_short_last_batch_does_not_start_the_next_epoch() -> None:
    """Reading a short last batch ends the sampler, whose state is then that of its next epoch.

    torchdata delivers that epoch as if it were the rest of this one; feedline knows that a short batch is the last.
    """

    def rest(kind: Any) -> list[Any]:
        def make() -> dict[str, Any]:
            return {"dataset": datasets.Sized(N), "batch_size": 3, "sampler": datasets.StatefulSampler(N)}

        return story(kind, make, 5)[1]  # type: ignore[no-any-return]

    assert rest(feedline.DataLoader) == []
    assert len(rest(StatefulDataLoader)) == 5


def test_no_epoch_is_lost_after_the_end_of_torchdatas_sampler() -> None:
    """Its state after the end says that everything was yielded; torchdata's loader skips as many in the next epoch."""
    make = MAP_STYLE["torchdata's distributed"]
    whole, following, _ = story(feedline.DataLoader, make, None)
    assert following == whole
    assert story(StatefulDataLoader, make, None)[1] == []


def test_no_epoch_is_lost_after_the_end_of_a_stateful_dataset() -> None:
    """With torchdata, a dataset restored at its end is at its end in the next epoch, too."""
    make = ITERABLE["a stateful dataset"]
    whole, following, _ = story(feedline.DataLoader, make, None)
    assert following == whole
    assert story(StatefulDataLoader, make, None)[1] == []
    whole, rest, following = story(feedline.DataLoader, make, 5)
    assert (rest, following) == ([], whole)
    assert story(StatefulDataLoader, make, 5)[1:] == [[], []]
