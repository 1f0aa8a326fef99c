"""A state saved anywhere resumes exactly: in another loader, on another engine, with another number of workers."""

import copy
import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulTorchRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from feedline import DataLoader, samplers
from feedline.types import EngineName
from tests.order import datasets
from tests.order.facts import flat, slow_except, through_json, values
from tests.sampling import examples

# Some of these tests compare an order that repeats itself.
pytestmark = pytest.mark.filterwarnings("ignore:This epoch has the same order:feedline.errors.DataWarning")

ENDLESS_CUT = 9
"""Number of batches taken from an endless order."""


@dataclass(frozen=True)
class Shape:
    """The size of a dataset and of its batches."""

    n: int
    batch_size: int | None
    drop_last: bool

    @property
    def cut(self) -> dict[str, Any]:
        """Return the arguments of a loader that cuts batches itself."""
        return {"batch_size": self.batch_size, "drop_last": self.drop_last and self.batch_size is not None}


@dataclass(frozen=True)
class Kind:
    """A kind of order: makes a loader's arguments, each time with new samplers."""

    make: Callable[[Shape], dict[str, Any]]
    least: int = 1
    """Samples that it needs at least."""
    is_plain: bool = True
    """True if its state is nothing but numbers and strings."""
    goes_on: bool = True
    """True if a new loader knows what the epoch after the resumed one is."""
    endless: bool = False
    keeps_generator: bool = False
    """True if its state holds that of a generator of torch, which is five kilobytes."""


def generator(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cut(sampler: Callable[[int], Any]) -> Callable[[Shape], dict[str, Any]]:
    return lambda shape: {"sampler": sampler(shape.n), **shape.cut}


def own_batches(sampler: Callable[[Shape, int], Any]) -> Callable[[Shape], dict[str, Any]]:
    return lambda shape: {"batch_sampler": sampler(shape, shape.batch_size or 1)}


def weights(n: int) -> list[float]:
    return [float(1 + index % 3) for index in range(n)]


def labels(n: int) -> list[int]:
    return [index % 3 for index in range(n)]


def lengths(n: int) -> list[int]:
    return [1 + index * index % 17 for index in range(n)]


KINDS: dict[str, Kind] = {
    "in order": Kind(lambda shape: shape.cut, least=0),
    "shuffled by the loader's seed": Kind(lambda shape: {"shuffle": True, "seed": 3, **shape.cut}),
    "shuffled as torch does": Kind(lambda shape: {"shuffle": True, **shape.cut}, goes_on=False),
    "shuffled with a generator": Kind(
        lambda shape: {"shuffle": True, "generator": generator(), **shape.cut}, keeps_generator=True
    ),
    # feedline's samplers
    "sequential": Kind(cut(lambda n: samplers.SequentialSampler(range(n))), least=0),
    "random": Kind(cut(lambda n: samplers.RandomSampler(range(n), seed=3))),
    "random without a seed": Kind(cut(lambda n: samplers.RandomSampler(range(n))), goes_on=False),
    "random with a generator": Kind(
        cut(lambda n: samplers.RandomSampler(range(n), generator=generator())), goes_on=False
    ),
    "with replacement": Kind(cut(lambda n: samplers.RandomSampler(range(n), replacement=True, num_samples=17, seed=3))),
    "weighted": Kind(cut(lambda n: samplers.WeightedRandomSampler(weights(n), 2 * n + 1, seed=3))),
    "weighted without replacement": Kind(
        cut(lambda n: samplers.WeightedRandomSampler(weights(n), n, replacement=False, seed=3))
    ),
    "balanced": Kind(cut(lambda n: samplers.BalancedSampler(labels(n), seed=3))),
    "subset": Kind(cut(lambda n: samplers.SubsetRandomSampler(range(0, n, 2), seed=3))),
    "infinite": Kind(cut(lambda n: samplers.InfiniteSampler(range(n), seed=3)), endless=True),
    "distributed": Kind(cut(lambda n: samplers.DistributedSampler(range(n), 2, 1, seed=3))),
    "batches": Kind(
        own_batches(
            lambda shape, size: samplers.BatchSampler(
                samplers.RandomSampler(range(shape.n), seed=3), size, shape.drop_last
            )
        ),
    ),
    "stratified": Kind(
        own_batches(
            lambda shape, size: samplers.StratifiedBatchSampler(
                labels(shape.n), size, drop_last=shape.drop_last, seed=3
            )
        ),
    ),
    "by length": Kind(
        own_batches(
            lambda shape, size: samplers.LengthBucketBatchSampler(
                lengths(shape.n), size, drop_last=shape.drop_last, seed=3
            )
        ),
    ),
    "by tokens": Kind(
        own_batches(lambda shape, size: samplers.TokenBudgetBatchSampler(lengths(shape.n), 17 * size, seed=3)),
    ),
    "equal steps": Kind(
        own_batches(
            lambda shape, size: samplers.BalancedBatches(
                lengths(shape.n), size, window=2, rank=1, world_size=2, drop_last=shape.drop_last, seed=3
            )
        ),
    ),
    "equal steps by cost": Kind(
        own_batches(
            lambda shape, size: samplers.BalancedBatches(
                lengths(shape.n), max_cost=17 * size, window=2, rank=1, world_size=2, seed=3
            )
        ),
    ),
    # torch's
    "torch's random": Kind(cut(lambda n: torch_data.RandomSampler(range(n))), goes_on=False),
    "torch's random with a generator": Kind(
        cut(lambda n: torch_data.RandomSampler(range(n), generator=generator())), keeps_generator=True
    ),
    "torch's subset": Kind(
        cut(lambda n: torch_data.SubsetRandomSampler(range(n), generator=generator())), keeps_generator=True
    ),
    "torch's weighted": Kind(
        cut(lambda n: torch_data.WeightedRandomSampler(weights(n), n + 2, generator=generator())), keeps_generator=True
    ),
    "torch's batches": Kind(
        own_batches(
            lambda shape, size: torch_data.BatchSampler(
                torch_data.RandomSampler(range(shape.n), generator=generator()), size, shape.drop_last
            )
        ),
        keeps_generator=True,
    ),
    "torch's batches of feedline's indices": Kind(
        own_batches(
            lambda shape, size: torch_data.BatchSampler(
                samplers.RandomSampler(range(shape.n), seed=3), size, shape.drop_last
            )
        ),
    ),
    "torch's distributed": Kind(cut(lambda n: torch_data.DistributedSampler(range(n), 2, 1, seed=3))),  # type: ignore[arg-type]
    # custom ones
    "a list": Kind(cut(lambda n: [index // 2 for index in range(n)]), least=0),
    "a list of batches": Kind(
        own_batches(lambda shape, size: [list(range(start, shape.n, 3)) for start in range(min(3, shape.n))]),
        least=0,
    ),
    "a generator": Kind(cut(datasets.Backwards), least=0),
    "a generator of batches": Kind(own_batches(lambda shape, size: datasets.Stairs(shape.n)), least=0),
    # with their own state
    "a stateful sampler": Kind(cut(datasets.StatefulSampler), least=0),
    "a stateful iterator": Kind(cut(datasets.StatefulIteratorSampler), least=0),
    "a stateful batch sampler": Kind(own_batches(lambda shape, size: datasets.StatefulSampler(shape.n, size)), least=0),
    "torchdata's distributed": Kind(cut(lambda n: StatefulDistributedSampler(range(n), 2, 1, seed=3))),
    "torchdata's random": Kind(
        cut(lambda n: StatefulTorchRandomSampler(range(n), generator=generator())), is_plain=False
    ),
}

SIZES = [0, 1, 2, 5, 11]

shapes = st.builds(Shape, st.sampled_from(SIZES), st.sampled_from([1, 3, 4, 30, None]), st.booleans())


@dataclass
class Run:
    """One epoch, the state at each of its steps, and the epoch after it."""

    batches: list[Any]
    states: list[tuple[int, Any]]
    """Batches that had been delivered, and the state then."""
    ended: Any
    """The state after the end; None of an order without end."""
    following: list[Any] | None


def run_of(loader: Any, kind: Kind) -> Run:
    batches: list[Any] = []
    states = [(0, loader.state_dict())]
    iterator = iter(loader)
    states.append((0, loader.state_dict()))
    for batch in itertools.islice(iterator, ENDLESS_CUT) if kind.endless else iterator:
        batches += values([batch])
        states.append((len(batches), loader.state_dict()))
    if kind.endless:
        return Run(batches, states, None, None)
    return Run(batches, states, loader.state_dict(), values(loader))


def check(make: Callable[[], Any], run: Run, kind: Kind, done: int, state: Any) -> None:
    """Assert that a new loader continues from a state as the run did."""
    resumed = make()
    resumed.load_state_dict(through_json(state) if kind.is_plain else pickle.loads(pickle.dumps(state)))
    rest = ENDLESS_CUT - done
    assert values(itertools.islice(resumed, rest) if kind.endless else resumed) == run.batches[done:]
    if kind.goes_on and not kind.endless:
        assert values(resumed) == run.following


@pytest.mark.parametrize(
    "name",
    slow_except(
        KINDS,
        "in order",
        "shuffled by the loader's seed",
        "shuffled as torch does",
        "infinite",
        "by length",
        "equal steps",
        "torch's batches",
        "a generator of batches",
        "a stateful iterator",
        "torchdata's distributed",
    ),
)
@settings(max_examples=examples(8), deadline=None)
@given(shape=shapes)
def test_every_order_resumes_from_every_step(name: str, shape: Shape) -> None:
    kind = KINDS[name]
    if shape.n < kind.least:
        return

    def make() -> Any:
        return DataLoader(datasets.Sized(shape.n), **kind.make(shape))

    run = run_of(make(), kind)
    for done, state in run.states:
        check(make, run, kind, done, state)
    if run.ended is None:
        return
    resumed = make()
    resumed.load_state_dict(through_json(run.ended) if kind.is_plain else run.ended)
    if kind.goes_on:
        assert values(resumed) == run.following
    else:
        assert len(values(resumed)) == len(run.batches), "a state from the end starts a whole new epoch"


@pytest.mark.parametrize(
    "name",
    slow_except(
        KINDS,
        "shuffled with a generator",
        "stratified",
        "equal steps by cost",
        "a stateful sampler",
        "torchdata's random",
    ),
)
def test_every_order_resumes_with_workers(name: str) -> None:
    """From two workers, which run ahead of the training loop, to none, to threads or to the same number, in turns."""
    kind = KINDS[name]
    shape = Shape(23, 3, False)
    number = list(KINDS).index(name)
    ways: list[tuple[int, EngineName]] = [(0, "inline"), (3, "thread"), (2, "process")]
    workers, engine = ways[number % 3]

    def make() -> Any:
        return DataLoader(datasets.Sized(shape.n), num_workers=workers, engine=engine, **kind.make(shape))

    run = run_of(DataLoader(datasets.Sized(shape.n), num_workers=2, **kind.make(shape)), kind)
    check(make, run, kind, *run.states[number % len(run.states)])


@settings(max_examples=examples(30), deadline=None)
@given(
    name=st.sampled_from([name for name, kind in KINDS.items() if kind.goes_on and not kind.endless]),
    shape=shapes,
    stops=st.lists(st.integers(0, 9), min_size=2, max_size=5),
)
@example(name="a stateful sampler", shape=Shape(5, 30, False), stops=[0, 2])  # the first batch is also the last
@example(name="a stateful batch sampler", shape=Shape(5, 30, False), stops=[0, 2])
def test_any_number_of_resumptions_adds_up_to_the_epochs(name: str, shape: Shape, stops: list[int]) -> None:
    kind = KINDS[name]
    if shape.n < kind.least:
        return

    def make() -> Any:
        return DataLoader(datasets.Sized(shape.n), **kind.make(shape))

    whole = make()
    expected = [batch for _ in range(3) for batch in values(whole)]
    seen: list[Any] = []
    loader, ended = make(), 0
    for stop in stops:
        iterator = iter(loader)
        taken = values(itertools.islice(iterator, stop))
        seen += taken
        if len(taken) < stop:
            ended += 1
        state = through_json(loader.state_dict()) if kind.is_plain else copy.deepcopy(loader.state_dict())
        loader = make()
        loader.load_state_dict(state)
        if ended == 3:
            break
    while ended < 3:
        seen += values(loader)
        ended += 1
    assert seen == expected


# When a state is saved, and when it is loaded


def shuffled(**options: Any) -> DataLoader[Any]:
    return DataLoader(datasets.Sized(20), **{"batch_size": 3, "shuffle": True, "seed": 3, **options})


def whole_epochs(count: int = 3) -> list[list[Any]]:
    loader = shuffled()
    return [values(loader) for _ in range(count)]


def state_after(count: int, **options: Any) -> Any:
    loader = shuffled(**options)
    for _ in itertools.islice(loader, count):
        pass
    return loader.state_dict()


@pytest.mark.parametrize("options", [{}, {"sampler": "torch"}, {"sampler": "feedline"}])
def test_an_early_state_fixes_the_order_of_an_unseeded_loader(options: dict[str, Any]) -> None:
    def make() -> Any:
        kind = {"torch": torch_data.RandomSampler, "feedline": samplers.RandomSampler}.get(options.get("sampler", ""))
        chosen = {"shuffle": True} if kind is None else {"sampler": kind(range(20))}
        return DataLoader(datasets.Drawing(20), batch_size=4, **chosen)

    loader = make()
    state = loader.state_dict()
    order = [batch[:, 0].tolist() for batch in loader]
    other = make()
    other.load_state_dict(state)
    assert [batch[:, 0].tolist() for batch in other] == order


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_a_state_can_be_loaded_into_a_used_loader(options: dict[str, Any]) -> None:
    epochs = whole_epochs()
    loader = shuffled(**options)
    assert values(loader) == epochs[0]
    assert values(itertools.islice(loader, 2)) == epochs[1][:2]
    loader.load_state_dict(state_after(4))
    assert loader.state_dict() == state_after(4)
    assert [values(loader), values(loader)] == [epochs[0][4:], epochs[1]]
    loader.load_state_dict(state_after(1))
    assert values(loader) == epochs[0][1:]
    loader.close()


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_the_states_of_a_resumed_loader_are_those_of_one_that_never_stopped(options: dict[str, Any]) -> None:
    loader = shuffled(**options)
    loader.load_state_dict(state_after(3))
    assert loader.state_dict() == state_after(3), "loaded"
    iterator = iter(loader)
    assert loader.state_dict() == state_after(3), "started"
    for done in (4, 5, 6, 7):
        next(iterator)
        assert loader.state_dict() == state_after(done)
    assert next(iterator, None) is None
    ended = shuffled()
    list(ended)
    assert loader.state_dict() == ended.state_dict()


# Batches out of order


class SlowFirst(datasets.Sized):
    """The first sample waits for the others, so that batches overtake it for certain."""

    def __init__(self, n: int, others: Any) -> None:
        super().__init__(n)
        self.others = others

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            assert self.others.wait(100)
        return index


def test_a_batch_that_was_overtaken_is_not_lost() -> None:
    others = torch.multiprocessing.get_context("fork").Event()
    dataset = SlowFirst(20, others)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, in_order=False)
    iterator = iter(loader)
    taken = flat(itertools.islice(iterator, 3))
    state = loader.state_dict()
    assert 0 not in taken
    others.set()
    more: list[dict[str, Any]] = [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 1, "prefetch_factor": 1},  # its window does not reach the batches that came early
    ]
    for options in more:
        resumed = DataLoader(dataset, batch_size=2, **options)
        resumed.load_state_dict(state)
        assert sorted(flat(resumed) + taken) == list(range(20))
        second = DataLoader(dataset, batch_size=2)
        second.load_state_dict(state)
        first_batch = flat(itertools.islice(second, 1))
        third = DataLoader(dataset, batch_size=2)
        third.load_state_dict(second.state_dict())
        assert sorted(taken + first_batch + flat(third)) == list(range(20)), "a resumption of a resumption"
    del iterator


# Batches that fail


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_a_state_after_a_failed_batch_does_not_repeat_it(options: dict[str, Any]) -> None:
    """A training loop that catches the exception and continues is done with that batch."""

    def make() -> Any:
        return DataLoader(datasets.Failing(12, at=[4, 9]), batch_size=2, **options)

    loader = make()
    iterator = iter(loader)
    assert flat(itertools.islice(iterator, 2)) == [0, 1, 2, 3]
    with pytest.raises(LookupError):
        next(iterator)
    state = through_json(loader.state_dict())
    assert values([next(iterator)]) == [[6, 7]]
    del iterator
    resumed = make()
    resumed.load_state_dict(state)
    iterator = iter(resumed)
    assert values([next(iterator)]) == [[6, 7]]
    with pytest.raises(LookupError):
        next(iterator)
    assert flat(iterator) == [10, 11]


# What a state costs


class Counted:
    """So large that its order does not fit in memory."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    "name",
    slow_except(
        [name for name, kind in KINDS.items() if kind.is_plain],
        "shuffled as torch does",
        "weighted",
        "by tokens",
        "a stateful iterator",
    ),
)
def test_a_state_of_every_order_is_small(name: str) -> None:
    shape = Shape(3000, 4, False)
    loader = DataLoader(datasets.Sized(shape.n), **KINDS[name].make(shape))
    for _ in itertools.islice(loader, 40):
        pass
    state = loader.state_dict()
    packed = 4 * len(generator().get_state()) // 3
    # Without a seed, a state may also hold the generator of the next epoch.
    has_next = "torch_seeds_next" in state["order"]
    assert len(json.dumps(state)) < 1024 + packed * (KINDS[name].keeps_generator + has_next)


@pytest.mark.parametrize(
    "sampler",
    [
        samplers.RandomSampler,
        samplers.SequentialSampler,
        samplers.InfiniteSampler,
        lambda data: samplers.RandomSampler(data, replacement=True),
    ],
)
def test_an_order_of_a_billion_samples_is_resumed_near_its_end_at_once(sampler: Callable[[Any], Any]) -> None:
    """With that many ranks the first step is nearly the whole order; one rank alone makes the rest."""
    data: Any = Counted(10**9)

    def make(world_size: int, rank: int = 0) -> Any:
        share: Any = samplers.distribute(sampler(data), rank, world_size)
        return DataLoader(data, batch_size=1, sampler=share)

    crowd = make(10**9 - 100)
    next(iter(crowd))
    state = through_json(crowd.state_dict())
    alone = make(1)
    alone.load_state_dict(state)  # iterating up to there would exceed the timeout of the test
    rest = flat(itertools.islice(alone, 200))
    assert len(rest) == (200 if sampler is samplers.InfiniteSampler else 100)
    if sampler is samplers.SequentialSampler:
        assert rest == list(range(10**9 - 100, 10**9))
    pair = []
    for rank in range(2):
        one_of_two = make(2, rank)
        one_of_two.load_state_dict(state)
        pair.append(flat(itertools.islice(one_of_two, 50)))
    assert [index for both in zip(*pair, strict=True) for index in both] == rest[:100]


@pytest.mark.parametrize("make_sampler", [torch_data.RandomSampler, datasets.StatefulIteratorSampler])
def test_resuming_a_foreign_order_loads_no_sample(make_sampler: Callable[[Any], Any]) -> None:
    """It reads indices again, but no samples."""
    requested: list[int] = []

    class Noting(datasets.Sized):
        def __getitem__(self, index: int) -> Any:
            requested.append(index)
            return index

    def make() -> Any:
        source = 40 if make_sampler is datasets.StatefulIteratorSampler else range(40)
        return DataLoader(Noting(40), batch_size=4, sampler=make_sampler(source))

    loader = make()
    iterator: Iterator[Any] = iter(loader)
    for _ in range(9):
        next(iterator)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    requested.clear()
    assert len(flat(resumed)) == len(requested) == 4
