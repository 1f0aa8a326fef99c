"""What single operators do, through the public API."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.abc.source import ShardedSource
from feedline.errors import BadOption, SourceError
from feedline.faults import Retry
from feedline.pipes import MapPipe, ShardedPipe, StreamPipe, pipe
from tests.pipes.streams import Plain


class Remapped(list[int]):
    """A user's dataset with other samples in each epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the samples."""


def double(x: int) -> int:
    return 2 * x


def is_odd(x: int) -> bool:
    return x % 2 == 1


def noisy(x: int) -> tuple[int, float, float, float]:
    return x, random.random(), float(np.random.random()), float(feedline.rng().random())


def test_map_style_pipes_are_ordinary_datasets() -> None:
    made = pipe(range(10)).map(double).slice(1, None, 2).zip(pipe(range(5)).shuffle()).batch(2, collate_fn=list)
    assert isinstance(made, MapPipe)
    assert len(made) == 3
    assert [pair[0] for pair in made[0] + made[1] + made[-1]] == [2, 6, 10, 14, 18]
    assert made[-1] == made[2]
    with pytest.raises(IndexError, match="index 3 is out of range"):
        made[3]
    with pytest.raises(TypeError, match="numbered"):
        made["a"]


def test_no_operator_copies_the_source() -> None:
    class Huge:
        def __len__(self) -> int:
            return 10**15

        def __getitem__(self, index: int) -> int:
            return index

    made = pipe(Huge()).shuffle(seed=1).map(double).repeat(3).window_shuffle(100).batch(4).skip(10**14)
    assert made[10**13].shape == (4,)
    mixed = pipe(Huge()).mix(Huge(), weights=[3, 1])
    assert mixed[10**14] < 10**15


def test_each_epoch_and_repetition_is_shuffled_differently() -> None:
    made = pipe(range(50)).shuffle(seed=1).repeat(2)
    assert isinstance(made, MapPipe)
    first = list(made)
    assert sorted(first[:50]) == sorted(first[50:]) == list(range(50))
    assert first[:50] != first[50:]
    made.set_epoch(1)
    assert list(made) != first
    assert list(pipe(range(50)).shuffle(seed=2)) != list(pipe(range(50)).shuffle(seed=1))
    stream = pipe(range(50)).shuffle(seed=1).repeat().filter(lambda _: True)
    assert list(stream.take(100)) == first
    nested = pipe(range(50)).shuffle(seed=1).repeat(2).repeat(2)
    again = pipe(range(50)).shuffle(seed=1).filter(lambda _: True).repeat(2).repeat(2)
    assert list(nested) == list(again) == list(stream.take(200))
    assert len({tuple(list(nested)[low : low + 50]) for low in range(0, 200, 50)}) == 4


@pytest.mark.parametrize(
    "indices", [[0, 5000, 1, 3], [5000, 7, 5001, 5003], [9, 8, 7], range(4090, 4103), [8191, 8192]]
)
def test_a_shuffle_returns_the_same_samples_for_indices_in_any_order(indices: list[int]) -> None:
    made = pipe(range(10_000)).shuffle(seed=1)
    order = list(made.filter(lambda _: True))
    assert isinstance(made, MapPipe)
    assert made.__getitems__(list(indices)) == [order[index] for index in indices]


def test_loaders_set_the_epoch_of_a_pipe() -> None:
    loader = feedline.Loader(pipe(range(30)).shuffle().filter(lambda _: True), 30)
    first, second = ([x for batch in loader for x in batch.tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second


def test_columns_are_read_at_once_through_index_operators() -> None:
    class Squares(feedline.abc.ColumnSource):
        calls = 0

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            raise AssertionError("samples are not read one by one")

        def read_columns(self, indices: Any) -> Any:
            Squares.calls += 1
            return indices**2

    made = pipe(Squares()).shuffle(seed=3).slice(0, 40).repeat(2)
    batches = [batch.tolist() for batch in feedline.Loader(made, 16)]
    assert Squares.calls == 5
    found = [x for batch in batches for x in batch]
    assert len({*found[:40]}) == len({*found[40:]}) == 40
    assert {*found} <= {x * x for x in range(100)}


def test_skipping_reads_only_the_streams_that_are_needed() -> None:
    opened: list[int] = []

    class Shard:
        def __init__(self, number: int) -> None:
            self.number = number

        def __iter__(self) -> Iterator[int]:
            for place in range(5):
                opened.append(self.number)
                yield self.number * 100 + place

    shards = [pipe(Shard(number)).repeat() for number in range(4)]
    iterator: Any = iter(shards[0].interleave(*shards[1:]))
    assert iterator.skip(2) == 2
    assert iterator.take(1) == [200]
    assert {*opened} == {2}
    assert iterator.skip(7) == 7
    assert iterator.take(2) == [202, 302]
    assert {*opened} == {2, 3}


def test_an_empty_stream_is_not_repeated_forever() -> None:
    with pytest.raises(SourceError, match="even when it is repeated"):
        list(pipe(range(3)).filter(lambda _: False).repeat())
    with pytest.raises(BadOption, match="no samples"):
        pipe([]).repeat()


def test_a_stream_is_shuffled_within_windows_only() -> None:
    with pytest.raises(BadOption, match="window_shuffle"):
        pipe(Plain(range(3))).shuffle()
    found = list(pipe(Plain(range(10))).window_shuffle(4, seed=1))
    assert found != list(range(10))
    assert [sorted(found[low : low + 4]) for low in (0, 4, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert found == list(pipe(range(10)).window_shuffle(4, seed=1))


class Shards(ShardedSource):
    number, count = 0, 1

    def set_worker(self, number: int, count: int) -> None:
        self.number, self.count = number, count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.number, 24, self.count)


def test_a_pipe_over_shards_splits_itself() -> None:
    made = pipe(Shards()).map(double)
    assert isinstance(made, ShardedPipe)
    with feedline.Loader(made, 3, workers=2, persistent=True) as loader:
        whole = [batch.tolist() for batch in loader]
        assert sorted(x for batch in whole for x in batch) == list(range(0, 48, 2))
        loader.set_epoch(0)
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(3)] == whole[:3]
        state = loader.state_dict()
    with feedline.Loader(made, 3, workers=2) as again:
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == whole[3:]


@pytest.mark.parametrize("workers", [0, 3])
def test_the_parts_of_a_stream_that_splits_itself_count_in_turn(workers: int) -> None:
    def samples(made: Any) -> list[Any]:
        loader = feedline.Loader(made, 2, workers=workers, engine="thread" if workers else "inline", collate_fn=list)
        return sorted(sample for batch in loader for sample in batch)

    shards = pipe(Shards())
    assert samples(shards.take(10)) == list(range(10))
    assert samples(shards.skip(3)) == list(range(3, 24))
    assert samples(shards.slice(2, 20, 4)) == list(range(2, 20, 4))
    assert samples(shards.enumerate(5)) == [(number + 5, number) for number in range(24)]
    assert samples(shards.zip(range(24), Plain(range(24)))) == [(number, number, number) for number in range(24)]
    others = range(100, 124), pipe(Plain(range(24))).map(lambda x: x + 200)
    assert samples(shards.interleave(*others)) == [first + number for first in (0, 100, 200) for number in range(24)]


def test_each_sample_draws_its_own_random_numbers() -> None:
    made = pipe(range(20)).map(noisy).filter(lambda _: True).map(lambda one: (*one, noisy(0)))

    def loader(workers: int) -> Any:
        return feedline.Loader(made, 3, workers=workers, seed=5, collate_fn=list)

    whole = list(loader(0))
    with loader(2) as other:
        assert list(itertools.islice(other, 3)) == whole[:3]
        state = other.state_dict()
    with loader(1) as last:
        last.load_state_dict(state)
        assert list(last) == whole[3:]
    numbers = [number for batch in whole for one in batch for number in (*one[1:4], *one[4][1:])]
    assert len({*numbers}) == len(numbers)


def drawn(x: int) -> float:
    return float(feedline.rng().random())


@pytest.mark.parametrize(
    "made",
    [
        pipe([0] * 4).filter(lambda _: True).map(drawn).repeat(3),
        pipe([0] * 4).map(drawn).repeat(3),
        pipe([0] * 4).map(drawn).repeat().take(12),
        pipe([0] * 4).map(drawn).interleave(pipe([0] * 4).map(drawn), pipe(Plain(range(4))).map(drawn)),
        pipe([0] * 4).map(drawn).concat(pipe([0] * 4).map(drawn), pipe([0] * 4).map(drawn)),
        pipe([0] * 4).map(drawn).concat(pipe(Plain(range(4))).map(drawn), pipe([0] * 4).map(drawn)),
        pipe([0] * 6).map(drawn).zip(pipe([0] * 6).map(drawn)).flat_map(list),
        pipe([0] * 6).map(drawn).mix(pipe([0] * 6).map(drawn)),
    ],
)
def test_no_two_samples_draw_the_same_numbers(made: Any) -> None:
    found = [float(x) for x in next(iter(feedline.Loader(made, 12, seed=1, collate_fn=list)))]
    assert len(found) == 12
    assert len({*found}) == 12


def sometimes(x: int) -> int:
    if x == 6:
        raise ValueError("six is broken")
    return x


def notes(exc: BaseException) -> str:
    return "\n".join(getattr(exc, "__notes__", ()))


@pytest.mark.parametrize(
    "made",
    [
        pipe(range(9)).map(double).map(sometimes),
        pipe(Plain(range(9))).map(double).map(sometimes),
        pipe(range(9)).map(double).map(sometimes, num_threads=3),
        pipe(range(9)).map(double).filter(sometimes),
        pipe(range(9)).map(double).flat_map(lambda x: [sometimes(x)]),
    ],
)
def test_an_error_names_operator_position_and_sample(made: Any) -> None:
    with pytest.raises(ValueError, match="six is broken") as caught:
        list(made)
    assert "for sample 3 of its source: 6" in notes(caught.value)
    assert "Raised by" in notes(caught.value)


class FailsOnce:
    def __init__(self) -> None:
        self.failed: set[int] = set()

    def __call__(self, x: int) -> int:
        if x % 3 == 0 and x not in self.failed:
            self.failed.add(x)
            raise OSError("try again")
        return x


@pytest.mark.parametrize("source", [range(12), Plain(range(12))])
def test_a_sample_that_fails_once_is_retried(source: Any) -> None:
    made = pipe(source).map(FailsOnce()).filter(lambda _: True).map(FailsOnce()).batch(2, collate_fn=list).unbatch()
    loader = feedline.Loader(made, 4, on_error=Retry(3, wait_s=0))
    assert [x for batch in loader for x in batch.tolist()] == list(range(12))


class Own(torch.utils.data.IterableDataset[int]):
    """Splits itself among the workers, as in tutorials."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(24) if info is None else range(info.id, 24, info.num_workers))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (pipe(range(20)).map(double).filter(lambda x: x % 3), [2 * x for x in range(20) if 2 * x % 3]),
        (pipe(range(20)).map(double), list(range(0, 40, 2))),
        (pipe(Own()), list(range(24))),
    ],
)
def test_in_torchs_own_loader(dataset: Any, expected: list[int]) -> None:
    loader: Any = torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=2)
    assert sorted(x for batch in loader for x in batch.tolist()) == expected


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_dataset_that_splits_itself_yields_everything_in_a_pipe(engine: Any) -> None:
    loader = feedline.DataLoader(pipe(Own()), 3, num_workers=2, engine=engine)
    assert [x for batch in loader for x in batch.tolist()] == list(range(24))


def test_ranks_make_only_their_own_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def heavy(x: int) -> int:
        calls.append(x)
        return x

    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        made = pipe(range(60)).filter(lambda _: True).map(heavy)
        loader = feedline.Loader(made, 5, workers=2, engine="thread", shard="drop")
        found.append([x for batch in loader for x in batch.tolist()])
    assert sorted(found[0] + found[1]) == sorted(calls) == list(range(60))


def test_pipes_can_be_pickled_and_printed() -> None:
    made = pipe(range(12)).shuffle().map(double).filter(is_odd).concat(pipe(range(3)).mix(range(9))).window_shuffle(4)
    assert isinstance(made, StreamPipe)
    assert list(pickle.loads(pickle.dumps(made))) == list(made)
    assert repr(made) == (
        "pipe(range).shuffle(seed=0).map(double).filter(is_odd)"
        ".concat(pipe(range).mix(pipe(range), weights=[1, 1], seed=0)).window_shuffle(4, seed=0)"
    )
    assert "range: 12 samples" in made.show()


def test_bad_arguments_are_rejected() -> None:
    base: Any = pipe(range(3))
    bad_calls: list[Callable[[], Any]] = [
        lambda: base.map(3),
        lambda: base.filter("x"),
        lambda: base.batch(0),
        lambda: base.take(-1),
        lambda: base.slice(0, 2, 0),
        lambda: base.repeat(0),
        lambda: base.window_shuffle(0),
        lambda: base.map(double, num_threads=-1),
        lambda: base.filter(is_odd).cache(memory="1MB"),
        lambda: base.shuffle().cache(memory="1MB"),
        lambda: pipe(Remapped([1, 2])).map(double).cache(memory="1MB"),
        lambda: pipe("file.txt"),
        lambda: pipe(3),
    ]
    for call in bad_calls:
        with pytest.raises(BadOption):
            call()
    with pytest.raises(BadOption, match="int"):
        list(base.flat_map(lambda x: x))
    for batch in ("text", {"x": [1, 2], "y": [1]}, ([1, 2], [1])):
        with pytest.raises(BadOption, match="unbatch"):
            list(pipe([batch]).unbatch())
