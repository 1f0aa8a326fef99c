"""Iterable datasets: which worker gets which sample, the warnings, and resumption."""

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import get_worker_info

from feedline import DataLoader, Loader
from feedline.errors import BadState, DataWarning
from feedline.types import EngineName
from tests.order import datasets
from tests.order.facts import flat, interrupted, values
from tests.sampling import examples

# Each sample once


@settings(max_examples=examples(25), deadline=None)
@given(
    n=st.integers(0, 25),
    batch_size=st.sampled_from([1, 2, 4, 30, None]),
    drop_last=st.booleans(),
    workers=st.sampled_from([0, 1, 2, 4]),
)
def test_a_shared_stream_is_cut_like_one_without_workers(
    n: int, batch_size: int | None, drop_last: bool, workers: int
) -> None:
    drop_last = drop_last and batch_size is not None
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    expected = values(DataLoader(datasets.Stream(n), **options))
    shared = DataLoader(
        datasets.Stream(n), shard=True, num_workers=workers, engine="thread" if workers else None, **options
    )
    assert values(shared) == expected


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_persistent_workers_are_replaced_when_their_number_is_reassigned(engine: EngineName) -> None:
    def loader(workers: int) -> Any:
        stream = datasets.SplitStream(24)
        return DataLoader(stream, 2, num_workers=workers, persistent_workers=True, engine=engine)

    begun, resumed = loader(2), loader(3)
    assert sorted(flat(begun)) == list(range(24))
    begun.num_workers = 3
    taken = flat(itertools.islice(begun, 4))
    resumed.load_state_dict(begun.state_dict())
    assert sorted(taken + flat(resumed)) == list(range(24))
    assert flat(begun) == flat(loader(3)), "with three workers, like any other loader"
    begun.close()
    resumed.close()


@pytest.mark.parametrize(
    ("options", "change", "ranks"),
    [
        ({"workers": 0}, {"batch_size": 4}, 1),
        ({"workers": 2, "engine": "thread"}, {"batch_size": None}, 2),
        ({"workers": 2, "persistent": True, "engine": "thread"}, {"batch_size": 4}, 2),
        ({"workers": 2, "persistent": True, "engine": "process"}, {"batch_size": 4, "drop_last": True}, 1),
    ],
)
def test_a_reassigned_batch_size_applies_from_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], change: dict[str, Any], ranks: int
) -> None:
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": ranks}.items():
        monkeypatch.setenv(name, str(value))
    loader = Loader(datasets.Stream(22), 2, **options)
    values(loader)
    for name, value in change.items():
        setattr(loader, name, value)
    with Loader(datasets.Stream(22), **{"batch_size": 2, **change}) as other:
        expected = values(other)
        iterator = iter(loader)
        assert values([next(iterator)]) == expected[:1]
        other.load_state_dict(loader.state_dict())
        assert values(iterator) == values(other) == expected[1:]
    loader.close()


# The warning


def warned(loader: Any, *, epochs: int = 1) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for _ in loader:
                pass
    return sum(issubclass(warning.category, DataWarning) for warning in caught)


@pytest.mark.parametrize(("engine", "workers"), [("thread", 3), ("process", 2)])
def test_a_dataset_that_does_not_split_itself_warns_once(engine: EngineName, workers: int) -> None:
    loader = DataLoader(datasets.Stream(6), batch_size=2, num_workers=workers, engine=engine)
    with pytest.warns(DataWarning, match=r"Each of the workers .* shard=True") as record:
        assert len(flat(loader)) == 6 * workers
    assert sum(issubclass(warning.category, DataWarning) for warning in record) == 1


class Asking(datasets.Stream):
    """Calls `get_worker_info` and ignores the result."""

    def __iter__(self) -> Iterator[Any]:
        get_worker_info()
        return iter(range(self.n))


QUIET: dict[str, Callable[[], Any]] = {
    "a dataset that splits itself": lambda: DataLoader(datasets.SplitStream(8), batch_size=2, num_workers=2),
    "a dataset that asks in __iter__": lambda: DataLoader(Asking(6), batch_size=2, num_workers=2),
    "one worker": lambda: DataLoader(datasets.Stream(6), batch_size=2, num_workers=1),
    "an init function": lambda: DataLoader(
        datasets.Stream(6), batch_size=2, num_workers=2, worker_init_fn=datasets.do_nothing
    ),
    "random streams": lambda: DataLoader(datasets.RandomStream(6), batch_size=2, num_workers=2),
    "a shared stream": lambda: DataLoader(datasets.Stream(6), batch_size=2, num_workers=2, shard=True),
}


@pytest.mark.parametrize("name", QUIET)
def test_no_warning_without_a_reason(name: str) -> None:
    assert warned(QUIET[name]()) == 0


class LeavingOut(datasets.Stream):
    """Leaves out some of the later samples, in every worker others."""

    def __iter__(self) -> Iterator[Any]:
        drawn = random.Random()
        return (number for number in range(self.n) if number < 3 or drawn.random() < 0.5)


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_shared_stream_that_differs_only_after_its_first_samples_warns(engine: EngineName) -> None:
    loader = DataLoader(LeavingOut(2000), batch_size=4, shard=True, num_workers=3, engine=engine)
    with pytest.warns(DataWarning, match="does not yield the same samples in every worker"):
        list(loader)


# Resuming, by torchdata's rule


def numbers(batches: Any) -> list[Any]:
    """Return the batches without the origins of their samples."""
    return [batch[0] if batch and isinstance(batch[0], list) else batch for batch in values(batches)]


STREAMS: dict[str, Callable[[], Any]] = {
    "stateful dataset": lambda: datasets.StatefulStream(23),
    "stateful iterator": lambda: datasets.StatefulSplitStream(23),
    "stateful dataset that starts again": lambda: datasets.RestartingSplitStream(23),
    "stateless": lambda: datasets.SplitStream(23),
    "uneven": lambda: datasets.UnevenStream((7, 2, 11)),
}


@pytest.mark.parametrize(
    ("name", "every", "workers", "engine"),
    [
        ("stateful dataset", 3, 2, "thread"),
        ("stateful iterator", 0, 0, "inline"),
        ("stateful dataset that starts again", None, 0, "inline"),
        ("stateless", 1, 0, "inline"),
        ("uneven", 1, 3, "thread"),
        ("stateful iterator", 2, 3, "process"),
    ],
)
def test_streams_resume_from_every_step(name: str, every: int | None, workers: int, engine: EngineName) -> None:
    def loader() -> Any:
        stream = STREAMS[name]()
        return DataLoader(stream, 3, num_workers=workers, snapshot_every_n_steps=every, engine=engine)

    whole = numbers(loader())
    for stop in range(len(whole) + 1) if engine == "inline" else (1, 4, 7):
        taken, resumed = interrupted(loader, stop)
        assert numbers(taken) + numbers(resumed) == whole, f"after {stop} batches"
        assert numbers(resumed) == whole, "the next epoch is whole"


@pytest.mark.parametrize(
    ("workers", "engine", "shard", "every"),
    [(0, None, None, 5), (1, "thread", None, 5), (1, "process", None, 1), (0, None, True, 1), (2, "thread", True, 5)],
)
def test_nothing_is_left_after_a_short_last_batch(
    workers: int, engine: EngineName | None, shard: bool | None, every: int
) -> None:
    def loader() -> Any:
        return DataLoader(
            datasets.RestartingStream(7),
            3,
            num_workers=workers,
            persistent_workers=workers > 0,
            engine=engine,
            shard=shard,
            snapshot_every_n_steps=every,
        )

    taken, resumed = interrupted(loader, 3)
    assert flat(taken) == list(range(7))
    for begins in (False, True):  # also from a state that was loaded and not used
        again = loader()
        if begins:
            iter(resumed)
        again.load_state_dict(resumed.state_dict())
        resumed = again
    assert [flat(resumed) for _ in range(3)] == [[], list(range(7)), list(range(7))]
    if workers:
        resumed.close()


def test_from_less_frequent_states_a_stream_is_read_up_to_the_saved_position() -> None:
    def loader() -> Any:
        return DataLoader(datasets.StatefulSplitStream(40), batch_size=2, num_workers=2, snapshot_every_n_steps=3)

    taken, resumed = interrupted(loader, 9)  # five from the first worker, four from the second
    rest = values(resumed)
    assert {origin for batch in rest for origin in batch[1]} == {6}, "restored after three batches, then read further"
    assert numbers(taken) + numbers(rest) == numbers(loader())


@pytest.mark.parametrize(("name", "later"), [("stateful iterator", 0), ("stateless", 1), ("stateful iterator", 3)])
def test_per_worker_streams_cannot_resume_with_another_number_of_workers(name: str, later: int) -> None:
    def loader(workers: int = 2) -> Any:
        return DataLoader(STREAMS[name](), batch_size=3, num_workers=workers)

    _, resumed = interrupted(loader, 3, lambda: loader(later))
    with pytest.raises(BadState, match=r"with 2 .*workers"):
        iter(resumed)


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
def test_one_worker_and_none_are_the_same_stream(before: int, after: int) -> None:
    def loader(workers: int) -> Any:
        return DataLoader(datasets.Stream(20), batch_size=3, num_workers=workers)

    _, resumed = interrupted(lambda: loader(before), 3, lambda: loader(after))
    assert values(resumed) == values(loader(0))[3:]


def test_a_rejected_state_stays_an_error_until_another_is_loaded() -> None:
    """Iterating again must not silently start a new epoch; loading a matching state helps."""
    loader = DataLoader(datasets.Stream(20), batch_size=3)
    list(itertools.islice(loader, 3))
    resumed = DataLoader(datasets.SplitStream(20), batch_size=3, num_workers=2, engine="thread")
    resumed.load_state_dict(loader.state_dict())
    for _ in range(2):
        with pytest.raises(BadState):
            iter(resumed)
    resumed.load_state_dict(DataLoader(datasets.SplitStream(20), batch_size=3, num_workers=2).state_dict())
    assert sorted(flat(resumed)) == list(range(20))


# Resuming, where the loader splits


SHARED: dict[str, Callable[[], Any]] = {
    "stateless": lambda: datasets.Stream(23),
    "stateful iterator": lambda: datasets.StatefulIteratorStream(23),
    "stateful dataset": lambda: StatefulWhole(23),
    "stateful dataset that starts again": lambda: datasets.RestartingStream(23),
}


class StatefulWhole(datasets.StatefulStream):
    """Has a state, but does not split itself."""

    def __iter__(self) -> Iterator[Any]:
        if not self.resumed:
            self.at = self.origin = 0
        self.resumed = False
        while self.at < self.n:
            self.at += 1
            yield self.at - 1, self.origin


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("stateless", 2, 3),
        ("stateful iterator", 2, 0),
        ("stateful dataset", 0, 0),
        ("stateful dataset that starts again", 0, 2),
    ],
)
def test_a_shared_stream_resumes_from_every_step_with_any_number_of_workers(name: str, before: int, after: int) -> None:
    def loader(workers: int) -> Any:
        return DataLoader(SHARED[name](), 3, num_workers=workers, shard=True, engine="thread" if workers else None)

    whole = numbers(loader(0))
    for stop in (0, 1, 4, 7, 8):
        taken, resumed = interrupted(lambda: loader(before), stop, lambda: loader(after))
        assert numbers(taken) + numbers(resumed) == whole, f"after {stop} batches"
        assert numbers(resumed) == whole


class EpochCounter(datasets.Stream):
    """Counts its epochs when they begin, not in a generator, and has a state."""

    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return iter([100 * self.epoch + number for number in range(self.n)])

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


LASTING: dict[str, Callable[[int], Any]] = {
    "starts again": datasets.RestartingStream,
    "resumes once": StatefulWhole,
    "continues": datasets.TurnstileStream,
    "counts its epochs": EpochCounter,
}


@pytest.mark.parametrize(
    ("kind", "workers", "engine", "n", "drop_last"),
    [
        ("starts again", 3, "thread", 20, True),
        ("resumes once", 1, "thread", 18, False),
        ("continues", 8, "thread", 20, False),
        ("counts its epochs", 3, "process", 20, False),
    ],
)
def test_persistent_workers_of_a_shared_stream_begin_each_epoch_where_the_last_one_ended(
    kind: str, workers: int, engine: EngineName, n: int, drop_last: bool
) -> None:
    """Also those that did not read it to its end."""

    def loader(count: int) -> Any:
        options: dict[str, Any] = {"num_workers": count, "persistent_workers": True, "engine": engine} if count else {}
        return DataLoader(LASTING[kind](n), 3, shard=True, drop_last=drop_last, **options)

    inline, begun = loader(0), loader(workers)
    for _ in range(4):
        expected = numbers(inline)
        assert numbers(begun) == expected
    with begun, loader(2) as resumed:
        resumed.load_state_dict(begun.state_dict())
        assert numbers(resumed) == numbers(inline)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shared_stream_with_a_state_is_not_read_again(workers: int) -> None:
    def loader(count: int) -> Any:
        return DataLoader(datasets.StatefulIteratorStream(60), batch_size=3, num_workers=count, shard=True)

    begun = loader(workers)
    list(itertools.islice(begun, 12))
    resumed = loader(1)
    resumed.load_state_dict(begun.state_dict())
    rest = values(resumed)
    assert [index for batch in rest for index in batch[0]] == list(range(36, 60))
    assert min(origin for batch in rest for origin in batch[1]) >= 30, "restored near the saved position"


@pytest.mark.parametrize(("batch_size", "before", "after"), [(1, 0, 2), (2, 2, 0), (5, 0, 0)])
def test_a_shared_stream_resumes_with_another_batch_size(batch_size: int, before: int, after: int) -> None:
    def loader(batch_size: int, workers: int) -> Any:
        options: dict[str, Any] = {"num_workers": workers, "engine": "thread"} if workers else {}
        return DataLoader(datasets.Stream(13), batch_size, shard=True, **options)

    for stop in range(6):
        _, resumed = interrupted(lambda: loader(3, before), stop, lambda: loader(batch_size, after))
        assert flat(resumed) == list(range(3 * stop, 13))
