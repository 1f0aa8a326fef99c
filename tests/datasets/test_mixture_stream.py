"""Mixtures with an iterable dataset: deterministic, and resumed at any sample."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets.mix import mix
from feedline.datasets.mixture_stream import MixtureStream
from feedline.errors import BadOption, BadState


class Stream:
    """Yields (name, 0), (name, 1), ..., and counts what was read."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.read = 0
        self.epoch = -1

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for number in range(self.count):
            self.read += 1
            yield self.name, number

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class StatefulStream(Stream):
    """Saves and restores itself, as torchdata defines it."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(name, count)
        self.place = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        while self.place < self.count:
            self.read += 1
            self.place += 1
            yield self.name, self.place - 1
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Walker:
    """An iterator with a state."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.place = 0

    def __iter__(self) -> Walker:
        return self

    def __next__(self) -> tuple[str, int]:
        if self.place >= self.stream.count:
            raise StopIteration
        self.place += 1
        self.stream.read += 1
        return self.stream.name, self.place - 1

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class WalkedStream(Stream):
    def __iter__(self) -> Iterator[tuple[str, int]]:
        return Walker(self)


STREAMS = [Stream, StatefulStream, WalkedStream]


def stream_mixture(*datasets: Any, **options: Any) -> MixtureStream:
    mixture = mix(datasets, **options)
    assert isinstance(mixture, MixtureStream)
    return mixture


def test_proportions_and_order() -> None:
    mixture = stream_mixture(Stream("a", 1000), Stream("b", 1000), weights=[3, 1])
    samples = list(islice(mixture, 100))
    for length in range(1, 100):
        assert abs(sum(name == "b" for name, _ in samples[:length]) - length / 4) < 1
    for name in "ab":
        own = [number for found, number in samples if found == name]
        assert own == list(range(len(own)))


def test_it_ends_with_the_first_dataset_that_has_ended() -> None:
    mixture = stream_mixture(Stream("a", 10), Stream("b", 1000))
    iterator = iter(mixture)
    samples = list(iterator)
    counts = Counter(name for name, _ in samples)
    assert counts["a"] == 10
    assert counts["b"] in (9, 10, 11)
    assert next(iterator, None) is None
    assert list(mixture) == samples


def test_repeated_until_size() -> None:
    mixture = stream_mixture(Stream("a", 3), ["m0", "m1", "m2", "m3"], size=20, repeat=True)
    samples = list(mixture)
    assert len(samples) == 20
    assert [sample for sample in samples if type(sample) is tuple] == [("a", number % 3) for number in range(10)]
    others = [sample for sample in samples if type(sample) is str]
    assert sorted(others[:4]) == sorted(others[4:8]) == ["m0", "m1", "m2", "m3"]


def test_a_map_style_dataset_in_it_comes_once_in_random_order() -> None:
    mixture = stream_mixture(Stream("a", 1000), list(range(20)))
    numbers = [sample for sample in mixture if type(sample) is int]
    assert sorted(numbers) == list(range(20))
    assert numbers != sorted(numbers)
    mixture.set_epoch(1)
    assert [sample for sample in mixture if type(sample) is int] != numbers


def test_a_dataset_that_yields_nothing_cannot_be_repeated() -> None:
    assert list(stream_mixture(Stream("a", 0))) == []
    with pytest.raises(BadOption, match=r"datasets\[0\] yields nothing"):
        next(iter(stream_mixture(Stream("a", 0), repeat=True)))


@settings(max_examples=40)
@given(
    kinds=st.lists(st.sampled_from(STREAMS), min_size=1, max_size=3),
    with_map=st.booleans(),
    repeat=st.booleans(),
    epoch=st.integers(0, 3),
    taken=st.integers(0, 60),
    through_pickle=st.booleans(),
)
def test_a_state_continues_anywhere(
    kinds: list[type[Stream]], with_map: bool, repeat: bool, epoch: int, taken: int, through_pickle: bool
) -> None:
    def make() -> MixtureStream:
        datasets: list[Any] = [kind(str(number), 7 + 5 * number) for number, kind in enumerate(kinds)]
        return stream_mixture(*datasets, *([list("uvwxyz")] if with_map else []), repeat=repeat, size=60, seed=5)

    whole = make()
    whole.set_epoch(epoch)
    expected = list(whole)
    begun = make()
    begun.set_epoch(epoch)
    iterator = iter(begun)
    before = list(islice(iterator, taken))
    state = copy.deepcopy(begun.state_dict())
    resumed = make()
    if through_pickle:
        state = pickle.loads(pickle.dumps(state))
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    after = list(resumed)
    assert before + after == expected
    assert before + list(iterator) == expected
    assert resumed.epoch == epoch


@pytest.mark.parametrize("kind", STREAMS)
def test_what_has_a_state_is_not_read_again(kind: type[Stream]) -> None:
    begun = stream_mixture(kind("a", 100), kind("b", 100))
    list(islice(begun, 50))
    stream = kind("a", 100)
    resumed = stream_mixture(stream, kind("b", 100))
    resumed.load_state_dict(begun.state_dict())
    assert stream.read == 0
    list(islice(resumed, 10))
    assert stream.read == pytest.approx(30 if kind is Stream else 5, abs=1)


def test_only_the_next_iteration_is_resumed() -> None:
    mixture = stream_mixture(Stream("a", 5), Stream("b", 5))
    expected = list(mixture)
    assert list(mixture) == expected
    iterator = iter(mixture)
    next(iterator)
    mixture.load_state_dict(mixture.state_dict())
    assert list(mixture) == expected[1:]
    assert list(mixture) == expected


def test_a_state_before_the_first_sample_and_after_the_last() -> None:
    mixture = stream_mixture(Stream("a", 5), Stream("b", 5))
    start = mixture.state_dict()
    expected = list(mixture)
    end = mixture.state_dict()
    mixture.load_state_dict(start)
    assert list(mixture) == expected
    mixture.load_state_dict(end)
    assert list(mixture) == []


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "not the state of a mixture"),
        ({"taken": 3}, "not the state of a mixture"),
        (
            {"epoch": 0, "taken": 3, "ended": False, "datasets": [None]},
            "of a mixture of 1 datasets, but this one has 2",
        ),
    ],
)
def test_states_that_do_not_fit(state: Any, message: str) -> None:
    with pytest.raises(BadState, match=message):
        stream_mixture(Stream("a", 5), Stream("b", 5)).load_state_dict(state)


def test_weights_and_epoch() -> None:
    parts = [Stream("a", 100), Stream("b", 100)]
    mixture = stream_mixture(*parts)
    first = list(islice(mixture, 30))
    mixture.set_epoch(4)
    assert [part.epoch for part in parts] == [4, 4]
    assert list(islice(mixture, 30)) != first
    mixture.set_weights([0, 1])
    assert {name for name, _ in islice(mixture, 30)} == {"b"}
    with pytest.raises(BadOption, match="all 0"):
        mixture.set_weights([0, 0])
    with pytest.raises(BadOption, match=r"datasets\[1\] is empty"):
        stream_mixture(Stream("a", 5), [])


def test_pickle_and_repr() -> None:
    mixture = stream_mixture(Stream("a", 5), [1, 2, 3], weights=[1, 2], size=6, repeat=True, seed=3)
    expected = list(mixture)
    next(iter(mixture))
    twin = pickle.loads(pickle.dumps(mixture))
    assert list(twin) == expected
    assert repr(mixture) == "MixtureStream(6 samples of 2 datasets, weights=[1, 2], seed=3, repeat=True)"
    assert repr(stream_mixture(Stream("a", 5))) == "MixtureStream(1 datasets, weights=[1], seed=0)"


def test_torch_knows_it_for_an_iterable_dataset() -> None:
    assert isinstance(stream_mixture(Stream("a", 5)), torch.utils.data.IterableDataset)


class Numbers:
    def __init__(self, start: int) -> None:
        self.start = start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.start + 20))


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, feedline.DataLoader])
def test_in_torch_s_loaders(kind: Any) -> None:
    mixture = stream_mixture(Numbers(0), Numbers(100), np.arange(200, 220))
    expected = [int(sample) for sample in mixture]
    assert len(expected) > 50
    assert [int(value) for batch in kind(mixture, batch_size=4) for value in batch] == expected


def test_in_our_loader(engine: str) -> None:
    mixture = stream_mixture(Numbers(0), Numbers(100))
    expected = list(mixture)
    loader = feedline.Loader(mixture, 4, workers=0 if engine == "inline" else 1, engine=engine)
    assert [int(value) for batch in loader for value in batch] == expected
    loader.close()


def test_without_torch() -> None:
    script = """
import sys
from feedline.datasets import mix
class Numbers:
    def __iter__(self):
        return iter(range(5))
assert len(list(mix([Numbers(), [1, 2, 3]], size=6))) == 6
assert len(list(mix([[1], [1, 2, 3]]))) == 4
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
