"""Iterable datasets: which worker gets which sample, the warnings, and resumption."""

import itertools
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from feedline import DataLoader, Loader
from feedline.errors import BadState, DataWarning
from feedline.types import EngineName
from tests.order import datasets
from tests.order.facts import flat, through_json, values
from tests.sampling import examples

pytestmark = pytest.mark.sample(12)

# Each sample once


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("batch_size", [3, None])
def test_a_shared_stream_is_delivered_once_and_in_order(workers: int, batch_size: int | None) -> None:
    loader = DataLoader(datasets.Stream(17), batch_size=batch_size, num_workers=workers, shard=True)
    for _ in range(2):
        assert flat(loader) == list(range(17))


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


def test_persistent_workers_split_every_epoch() -> None:
    loader = DataLoader(datasets.Stream(11), batch_size=2, num_workers=2, shard=True, persistent_workers=True)
    for _ in range(3):
        assert flat(loader) == list(range(11))
    next(iter(loader))
    assert flat(loader) == list(range(11)), "also after an abandoned epoch"
    loader.close()


@pytest.mark.parametrize("dataset", [datasets.Stream(0), datasets.Stream(1)])
def test_more_workers_than_samples_deliver_each_sample_once(dataset: datasets.Stream) -> None:
    assert flat(DataLoader(dataset, batch_size=2, num_workers=3, shard=True)) == list(range(dataset.n))


def test_the_loader_without_torch_splits_streams_by_default() -> None:
    dataset = datasets.Stream(9)
    assert flat(Loader(dataset, 2, workers=2)) == list(range(9))
    assert Counter(flat(Loader(dataset, 2, workers=2, shard=False))) == Counter(dict.fromkeys(range(9), 2))


def test_an_error_in_the_middle_of_a_stream_is_raised_in_its_place() -> None:
    class Torn(datasets.Stream):
        def __iter__(self) -> Iterator[Any]:
            yield from range(5)
            raise OSError("the line is down")

    for workers in (0, 2):
        batches = iter(DataLoader(Torn(0), batch_size=2, num_workers=workers, shard=True))
        assert values([next(batches), next(batches)]) == [[0, 1], [2, 3]]
        with pytest.raises(OSError, match="the line is down"):
            next(batches)


# torch's rule: a stream for each worker


@pytest.mark.parametrize("lengths", [(5, 1, 3), (0, 4, 0), (0, 0, 0), (7, 0, 2)])
@pytest.mark.parametrize("engine", ["thread", "process"])
def test_per_worker_streams_of_different_lengths_are_as_in_torch(lengths: tuple[int, ...], engine: EngineName) -> None:
    def batches(kind: Any, **options: Any) -> list[Any]:
        return values(kind(datasets.UnevenStream(lengths), batch_size=2, num_workers=3, **options))

    assert batches(DataLoader, engine=engine) == batches(torch.utils.data.DataLoader)


# The warning


def warned(loader: Any, *, epochs: int = 1) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for _ in loader:
                pass
    return sum(issubclass(warning.category, DataWarning) for warning in caught)


@pytest.mark.parametrize("engine", ["thread", "process"])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_dataset_that_does_not_split_itself_warns_once(engine: EngineName, workers: int) -> None:
    loader = DataLoader(datasets.Stream(6), batch_size=2, num_workers=workers, engine=engine)
    with pytest.warns(DataWarning, match=r"Each of the workers .* shard=True") as record:
        assert len(flat(loader)) == 6 * workers
    assert sum(issubclass(warning.category, DataWarning) for warning in record) == 1


class Asking(datasets.Stream):
    """Calls `get_worker_info` in one of several places and ignores the result."""

    def __init__(self, n: int, where: str) -> None:
        super().__init__(n)
        self.where = where

    def __iter__(self) -> Iterator[Any]:
        if self.where == "iter":
            get_worker_info()
            return iter(range(self.n))
        return self._generate()

    def _generate(self) -> Iterator[int]:
        if self.where == "generator":
            get_worker_info()
        yield from range(self.n)


QUIET: dict[str, Callable[[], Any]] = {
    "a dataset that splits itself": lambda: DataLoader(datasets.SplitStream(8), batch_size=2, num_workers=2),
    "a dataset that asks in __iter__": lambda: DataLoader(Asking(6, "iter"), batch_size=2, num_workers=2),
    "a dataset that asks in its generator": lambda: DataLoader(Asking(6, "generator"), batch_size=2, num_workers=2),
    "one worker": lambda: DataLoader(datasets.Stream(6), batch_size=2, num_workers=1),
    "no worker": lambda: DataLoader(datasets.Stream(6), batch_size=2),
    "an init function": lambda: DataLoader(
        datasets.Stream(6), batch_size=2, num_workers=2, worker_init_fn=datasets.do_nothing
    ),
    "random streams": lambda: DataLoader(datasets.RandomStream(6), batch_size=2, num_workers=2),
    "random streams with a seed": lambda: DataLoader(datasets.RandomStream(6), batch_size=2, num_workers=2, seed=1),
    "a shared stream": lambda: DataLoader(datasets.Stream(6), batch_size=2, num_workers=2, shard=True),
    "an empty stream": lambda: DataLoader(datasets.Stream(0), batch_size=2, num_workers=2),
    "a map-style dataset": lambda: DataLoader(datasets.Sized(6), batch_size=2, num_workers=2),
    "samples without a pickle": lambda: DataLoader(
        Lambdas(), batch_size=2, num_workers=2, collate_fn=count, engine="thread"
    ),
}


class Lambdas(IterableDataset[Any]):
    """Yields objects that cannot be pickled and therefore not be compared."""

    def __iter__(self) -> Iterator[Any]:
        return iter([lambda: 1, lambda: 2])


def count(samples: list[Any]) -> int:
    return len(samples)


@pytest.mark.parametrize("name", QUIET)
def test_no_warning_without_a_reason(name: str) -> None:
    assert warned(QUIET[name]()) == 0


def test_a_dataset_that_splits_itself_warns_in_no_epoch() -> None:
    loader = DataLoader(datasets.SplitStream(8), batch_size=2, num_workers=2, persistent_workers=True)
    assert warned(loader, epochs=3) == 0
    loader.close()


def test_the_warning_comes_without_order_too() -> None:
    assert warned(DataLoader(datasets.Stream(6), batch_size=2, num_workers=2, in_order=False)) == 1


def test_the_warning_points_to_the_callers_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in DataLoader(datasets.Stream(6), batch_size=2, num_workers=2):
            pass
    assert [warning.filename for warning in caught if issubclass(warning.category, DataWarning)] == [__file__]


# Resuming, by torchdata's rule


def numbers(batches: Any) -> list[Any]:
    """Return the batches without the origins of their samples."""
    return [batch[0] if batch and isinstance(batch[0], list) else batch for batch in values(batches)]


STREAMS: dict[str, Callable[[], Any]] = {
    "stateful dataset": lambda: datasets.StatefulStream(23),
    "stateful iterator": lambda: datasets.StatefulSplitStream(23),
    "stateless": lambda: datasets.SplitStream(23),
    "uneven": lambda: datasets.UnevenStream((7, 2, 11)),
}


@pytest.mark.parametrize("every", [1, 3, 0, None])
@pytest.mark.parametrize("name", STREAMS)
def test_streams_resume_from_every_step_without_workers(name: str, every: int | None) -> None:
    check_stream(STREAMS[name], 0, every, stops=range(0, 9))


@pytest.mark.parametrize("every", [1, 3, 0])
@pytest.mark.parametrize("name", STREAMS)
def test_streams_on_threads_resume(name: str, every: int) -> None:
    check_stream(STREAMS[name], 3, every, stops=range(0, 10), engine="thread")


@pytest.mark.parametrize(
    ("name", "every", "stop"),
    [("stateful dataset", 1, 3), ("stateful dataset", 3, 7), ("stateful iterator", 2, 5), ("stateless", 1, 8)],
)
def test_streams_in_processes_resume(name: str, every: int, stop: int) -> None:
    check_stream(STREAMS[name], 2, every, stops=(stop,))


def check_stream(make: Callable[[], Any], workers: int, every: int | None, stops: Any, **options: Any) -> None:
    def loader() -> Any:
        return DataLoader(make(), batch_size=3, num_workers=workers, snapshot_every_n_steps=every, **options)

    whole = numbers(loader())
    for stop in stops:
        if stop > len(whole):
            break
        begun = loader()
        iterator = iter(begun)
        taken = numbers(itertools.islice(iterator, stop))
        state = through_json(begun.state_dict())
        del iterator
        resumed = loader()
        resumed.load_state_dict(state)
        assert through_json(resumed.state_dict()) == state
        assert taken + numbers(resumed) == whole, f"after {stop} batches"
        assert numbers(resumed) == whole, "the next epoch is whole"


@pytest.mark.slow
def test_streams_can_resume_repeatedly() -> None:
    for workers, every in ((0, 1), (2, 2)):

        def loader(workers: int = workers, every: int = every) -> Any:
            return DataLoader(
                datasets.StatefulSplitStream(23), batch_size=2, num_workers=workers, snapshot_every_n_steps=every
            )

        whole = numbers(loader())
        seen: list[Any] = []
        state: dict[str, Any] = {}
        for stop in (2, 3, 1, 4):
            begun = loader()
            if state:
                begun.load_state_dict(state)
            seen += numbers(itertools.islice(begun, stop))
            state = through_json(begun.state_dict())
        last = loader()
        last.load_state_dict(state)
        assert seen + numbers(last) == whole


@pytest.mark.parametrize(
    ("dataset", "workers"), [("stateful dataset", 0), ("stateful iterator", 0), ("stateful iterator", 2)]
)
def test_streams_with_a_state_are_not_read_again(dataset: str, workers: int) -> None:
    """Samples hold where their iterator was restored: at the batch, not at the beginning."""
    loader = DataLoader(STREAMS[dataset](), batch_size=3, num_workers=workers)
    list(itertools.islice(loader, 4))
    resumed = DataLoader(STREAMS[dataset](), batch_size=3, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    origins = {origin for batch in values(resumed) for origin in batch[1]}
    assert origins == ({12} if workers == 0 else {6})


def test_from_less_frequent_states_a_stream_is_read_up_to_the_saved_position() -> None:
    def loader() -> Any:
        return DataLoader(datasets.StatefulSplitStream(40), batch_size=2, num_workers=2, snapshot_every_n_steps=3)

    begun = loader()
    taken = numbers(itertools.islice(begun, 9))  # five from the first worker, four from the second
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    rest = values(resumed)
    assert {origin for batch in rest for origin in batch[1]} == {6}, "restored after three batches, then read further"
    assert taken + numbers(rest) == numbers(loader())


@pytest.mark.parametrize("later", [0, 1, 3])
@pytest.mark.parametrize("name", ["stateful iterator", "stateless"])
def test_per_worker_streams_cannot_resume_with_another_number_of_workers(name: str, later: int) -> None:
    loader = DataLoader(STREAMS[name](), batch_size=3, num_workers=2)
    list(itertools.islice(loader, 3))
    resumed = DataLoader(STREAMS[name](), batch_size=3, num_workers=later)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(BadState, match=r"with 2 .*workers"):
        iter(resumed)


def test_a_stream_without_workers_cannot_resume_with_two() -> None:
    loader = DataLoader(datasets.Stream(20), batch_size=3)
    list(itertools.islice(loader, 3))
    resumed = DataLoader(datasets.Stream(20), batch_size=3, num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(BadState, match=r"with 1 stream .* are 2 workers now. Use 1 worker,"):
        iter(resumed)


def test_one_worker_and_none_are_the_same_stream() -> None:
    whole = values(DataLoader(datasets.Stream(20), batch_size=3))
    for before, after in ((0, 1), (1, 0)):
        loader = DataLoader(datasets.Stream(20), batch_size=3, num_workers=before)
        list(itertools.islice(loader, 3))
        resumed = DataLoader(datasets.Stream(20), batch_size=3, num_workers=after)
        resumed.load_state_dict(loader.state_dict())
        assert values(resumed) == whole[3:]


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


def test_a_stream_whose_state_outlives_epochs_resumes() -> None:
    """The dataset is a queue: its epochs differ, and its state is more than a position in one of them."""

    def loader() -> Any:
        return DataLoader(datasets.TurnstileStream(6), batch_size=2)

    reference = loader()
    whole = [batch for _ in range(3) for batch in values(reference)]
    for stop in range(9):
        begun = loader()
        taken: list[Any] = []
        while len(taken) < stop:
            taken += values(itertools.islice(begun, min(3, stop - len(taken))))
        resumed = loader()
        resumed.load_state_dict(begun.state_dict())
        while len(taken) < 9:
            more = values(resumed)
            taken += more
        assert taken == whole, f"after {stop} batches"


def test_a_stream_whose_state_outlives_epochs_resumes_after_the_end() -> None:
    for workers in (0, 1):

        def loader(workers: int = workers) -> Any:
            return DataLoader(
                datasets.TurnstileStream(6), batch_size=2, num_workers=workers, persistent_workers=workers > 0
            )

        begun = loader()
        list(begun)
        state = begun.state_dict()
        second = values(begun)
        begun.close()
        resumed = loader()
        resumed.load_state_dict(state)
        assert values(resumed) == second == [[6, 7], [8, 9], [10, 11]]
        resumed.close()


def test_streams_of_persistent_workers_resume() -> None:
    loader = DataLoader(datasets.StatefulSplitStream(23), batch_size=3, num_workers=2, persistent_workers=True)
    whole = numbers(loader)
    list(itertools.islice(loader, 5))
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert numbers(loader) == whole[5:]
    assert numbers(loader) == whole
    loader.load_state_dict(state)
    assert numbers(loader) == whole[5:]
    loader.close()


@pytest.mark.slow
def test_a_stream_with_drop_last_resumes() -> None:
    def loader() -> Any:
        return DataLoader(datasets.UnevenStream((7, 4)), batch_size=3, num_workers=2, drop_last=True)

    whole = values(loader())
    assert whole == [[0, 1, 2], [100, 101, 102], [3, 4, 5]]
    for stop in range(1, 4):
        begun = loader()
        iterator = iter(begun)
        for _ in range(stop):
            next(iterator)
        resumed = loader()
        resumed.load_state_dict(begun.state_dict())
        assert values(resumed) == whole[stop:]
        del iterator


def test_single_samples_of_a_stream_resume() -> None:
    for workers in (0, 2):

        def loader(workers: int = workers) -> Any:
            return DataLoader(datasets.SplitStream(9), batch_size=None, num_workers=workers)

        whole = values(loader())
        begun = loader()
        taken = values(itertools.islice(begun, 4))
        resumed = loader()
        resumed.load_state_dict(begun.state_dict())
        assert taken + values(resumed) == whole


def test_streams_without_order_resume_without_losses() -> None:
    def loader() -> Any:
        return DataLoader(datasets.StatefulSplitStream(30), batch_size=2, num_workers=2, in_order=False)

    begun = loader()
    iterator = iter(begun)
    taken = numbers(itertools.islice(iterator, 5))
    state = begun.state_dict()
    del iterator
    resumed = loader()
    resumed.load_state_dict(state)
    assert sorted(index for batch in taken + numbers(resumed) for index in batch) == list(range(30))


# Resuming, where the loader splits


SHARED: dict[str, Callable[[], Any]] = {
    "stateless": lambda: datasets.Stream(23),
    "stateful iterator": lambda: datasets.StatefulIteratorStream(23),
    "stateful dataset": lambda: StatefulWhole(23),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_stream_resumes_from_every_step_with_any_number_of_workers(name: str) -> None:
    def loader(workers: int, engine: EngineName | None = None) -> Any:
        return DataLoader(SHARED[name](), batch_size=3, num_workers=workers, shard=True, engine=engine)

    whole = numbers(loader(0))
    combinations = [(0, 0), (0, 2), (2, 0), (2, 3), (3, 1)]
    for stop in range(9):
        before, after = combinations[stop % 5]
        engine: EngineName = "process" if stop == 3 else "thread"
        begun = loader(before, engine if before else None)
        iterator = iter(begun)
        taken = numbers(itertools.islice(iterator, stop))
        state = through_json(begun.state_dict())
        del iterator
        resumed = loader(after, engine if after else None)
        resumed.load_state_dict(state)
        assert taken + numbers(resumed) == whole, f"{before} workers, then {after}, after {stop} batches"
        assert numbers(resumed) == whole


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


def test_persistent_workers_of_a_shared_stream_load_a_state() -> None:
    loader = DataLoader(datasets.Stream(23), batch_size=3, num_workers=2, shard=True, persistent_workers=True)
    list(itertools.islice(loader, 3))
    state = loader.state_dict()
    assert flat(loader) == list(range(23))
    loader.load_state_dict(state)
    assert flat(loader) == list(range(9, 23))
    assert flat(loader) == list(range(23))
    loader.close()


def test_a_shared_stream_draws_the_same_after_a_resumption() -> None:
    def loader(workers: int) -> Any:
        return DataLoader(datasets.DrawingStream(23), batch_size=3, num_workers=workers, shard=True, seed=2)

    whole = [np.asarray(batch).tobytes() for batch in loader(0)]
    begun = loader(2)
    taken = [np.asarray(batch).tobytes() for batch in itertools.islice(begun, 4)]
    resumed = loader(3)
    resumed.load_state_dict(begun.state_dict())
    assert taken + [np.asarray(batch).tobytes() for batch in resumed] == whole


def test_per_worker_streams_draw_the_same_after_a_resumption() -> None:
    class Shuffled(datasets.SplitStream):
        """Augments samples; which sample is read does not depend on random numbers."""

        def __iter__(self) -> Iterator[Any]:
            for value in super().__iter__():
                yield value + random.random()

    def loader() -> Any:
        return DataLoader(Shuffled(20), batch_size=2, num_workers=2, seed=3)

    whole = values(loader())
    begun = loader()
    taken = values(itertools.islice(begun, 5))
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    assert taken + values(resumed) == whole


def test_a_shared_stream_resumes_with_another_batch_size() -> None:
    begun = DataLoader(datasets.Stream(20), batch_size=3, shard=True)
    list(itertools.islice(begun, 2))
    resumed = DataLoader(datasets.Stream(20), batch_size=5, shard=True, num_workers=2)
    resumed.load_state_dict(begun.state_dict())
    assert flat(resumed) == list(range(6, 20))


def test_states_of_shared_and_unshared_streams_are_not_interchangeable() -> None:
    shared = DataLoader(datasets.Stream(20), batch_size=3, shard=True)
    own = DataLoader(datasets.Stream(20), batch_size=3)
    for one, other in ((shared, own), (own, shared)):
        list(itertools.islice(one, 2))
        with pytest.raises(BadState, match="another order"):
            other.load_state_dict(one.state_dict())


def test_the_loader_without_torch_resumes_a_stream() -> None:
    whole = values(Loader(datasets.Stream(23), 3))
    for before, after in ((0, 2), (2, 0)):
        loader = Loader(datasets.Stream(23), 3, workers=before)
        taken = values(itertools.islice(loader, 3))
        resumed = Loader(datasets.Stream(23), 3, workers=after)
        resumed.load_state_dict(loader.state_dict())
        assert taken + values(resumed) == whole
