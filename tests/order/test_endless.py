"""An order that starts again when it ends, each time as another epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.abc.sampler import IndexArray, Sampler
from feedline.order.endless import EndlessSampler
from feedline.samplers import RandomSampler
from feedline.system.ranks import Share
from feedline.types import Key
from tests.sampling import examples

KEY = Key(3, 5)
counts, worlds = st.integers(1, 12), st.integers(1, 4)


def pass_of(sampler: Sampler, number: int) -> list[int]:
    """Return the order of one epoch, counted from the first."""
    order: list[int] = sampler.at(np.arange(len(sampler)), Key(KEY.seed, KEY.epoch + number)).tolist()
    return order


@settings(max_examples=examples(40))
@given(counts, st.integers(0, 100), st.integers(0, 40))
def test_an_endless_order_is_a_chain_of_epochs(count: int, first: int, length: int) -> None:
    sampler = RandomSampler(range(count), seed=3)
    endless = EndlessSampler(sampler, Share())
    chain = [index for number in range(150 // count + 2) for index in pass_of(sampler, number)]
    assert endless.at(np.arange(first, first + length), KEY).tolist() == chain[first : first + length]
    with pytest.raises(TypeError, match="never ends"):
        len(endless)


class CountsCalls(Sampler):
    """Counts calls to `at`."""

    def __init__(self) -> None:
        self.calls = 0

    def size(self) -> int:
        return 1000

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        self.calls += 1
        assert len(places)
        return places


def test_a_distant_place_costs_no_more_than_the_first() -> None:
    sampler = CountsCalls()
    endless = EndlessSampler(sampler, Share())
    endless.at(np.arange(10), KEY)
    endless.at(np.arange(10**12 + 995, 10**12 + 1005), KEY)
    assert sampler.calls == 3, "once for each pass that is read"
