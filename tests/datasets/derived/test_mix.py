"""`mix`: which class it returns, and what cannot be mixed. The mixtures have their own test files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset

import feedline
from feedline.datasets import ArrayDataset, mix
from feedline.datasets.derived.mixture import Mixture
from feedline.datasets.derived.mixture_stream import MixtureStream
from feedline.errors import BadOption
from tests.names import named


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class TorchStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Endless:
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it would eat all memory")


class Unreadable:
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        raise AssertionError("a sample is no weight")


def test_the_mixture_is_map_style_if_all_datasets_are() -> None:
    mixture = mix(([1, 2], np.arange(5), ArrayDataset(np.arange(3))), (1, 2, 3), size=np.int64(12), seed=4)  # type: ignore[arg-type]
    assert isinstance(mixture, Mixture)
    assert (len(mixture), mixture.seed, mixture.weights) == (12, 4, [1, 2, 3])
    assert isinstance(mix(iter([[1], [2]])), Mixture)
    assert isinstance(mix({"a": [1], "b": [2]}.values(), iter([1.0, 2.0])), Mixture)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [Stream(), TorchStream()])
def test_the_mixture_is_a_stream_if_one_dataset_is(stream: Any) -> None:
    mixture = mix([[1, 2], stream], size=4, seed=2, repeat=True)
    assert isinstance(mixture, MixtureStream)
    assert (mixture.size, mixture.seed, mixture.repeat) == (4, 2, True)
    assert len(list(mixture)) == 4


def test_mixtures_of_mixtures() -> None:
    inner = mix([["a"] * 10, ["b"] * 10])
    mixture = mix([inner, ["c"] * 100], [1, 1], size=80)
    assert isinstance(mixture, Mixture)
    samples = list(mixture)
    assert {letter: samples.count(letter) for letter in "abc"} == {"a": 20, "b": 20, "c": 40}
    mixture.set_epoch(3)
    assert isinstance(inner, Mixture)
    assert inner.epoch == 3
    nested = mix([mix([Stream()]), ["c"] * 100])
    assert len(list(nested)) in (9, 10, 11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datasets": []}, "datasets is empty"),
        ({"datasets": [[1], 3]}, r"datasets\[1\]=3 is not a dataset"),
        ({"datasets": [[1], iter([2])]}, r"datasets\[1\] is a list_iterator"),
        ({"datasets": [[1], []]}, r"datasets\[1\] is empty"),
        (
            {"datasets": ArrayDataset(np.arange(3)), "weights": Stream()},
            r"datasets is a ArrayDataset.*one list.*mix\(\[",
        ),
        ({"datasets": Endless(), "weights": Endless()}, "datasets is a Endless, not a list"),
        ({"datasets": TorchStream()}, "datasets is a TorchStream, not a list"),
        ({"datasets": np.arange(3)}, "datasets is a ndarray, not a list"),
        ({"datasets": "ab"}, "datasets is a str, not a list"),
        ({"datasets": 3}, "datasets is a int, not a list"),
        ({"datasets": {"a": [1], "b": [2]}}, r"a dict with the keys 'a', 'b'.*mix\(list\(datasets\.values\(\)\)\)"),
        ({"datasets": [[1], "b.lmdb"]}, r"datasets\[1\]='b.lmdb' is a str.*feedline inspect"),
        ({"weights": Endless()}, "weights is a Endless, not a list of numbers.*one list"),
        ({"weights": Unreadable()}, "9 weights for 2 datasets.*put it into the list"),
        ({"weights": [1]}, "1 weights for 2 datasets"),
        ({"weights": [1, float("nan")]}, r"weights\[1\]=nan"),
        ({"weights": [1, -1]}, r"weights\[1\]=-1"),
        ({"weights": [0, 0]}, "all 0"),
        ({"size": 0}, "size=0 is not an integer of at least 1"),
        ({"size": 1.5}, "size=1.5"),
        ({"size": True}, "size=True"),
        ({"repeat": True}, "repeat=True is for iterable datasets.*Pass size="),
        ({"repeat": 1}, "repeat=1 is not True or False"),
    ],
    ids=named,
)
def test_what_cannot_be_mixed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        mix(**{"datasets": [[1], [2]], **arguments})


def test_a_seed_is_an_integer() -> None:
    with pytest.raises(BadOption, match="seed='a' is not an integer"):
        mix([[1]], seed="a")  # type: ignore[arg-type]


def test_it_is_public() -> None:
    assert feedline.datasets.mix is mix
