"""The plan of streams that are read as they are."""

from __future__ import annotations

from itertools import islice

import pytest

from feedline.order.streams import StreamPlan
from feedline.randomness.keys import mix
from feedline.types import Draw, Share


@pytest.mark.parametrize("count", [1, 32, None])
def test_the_same_is_asked_for_over_and_over(count: int | None) -> None:
    assert list(islice(StreamPlan(count, 9), 3)) == [count] * 3


def test_it_draws_as_the_first_of_several_workers_would() -> None:
    plan = StreamPlan(4, 9)
    assert plan.draw(0) == plan.draw(5) == plan.draw_of(0) == Draw(mix(9, 0))


def test_no_two_streams_of_workers_and_ranks_have_keys_in_common() -> None:
    plans = [StreamPlan(4, 9, Share(rank, 1000)) for rank in range(1000)]
    draws = [plan.draw_of(worker) for plan in plans for worker in range(10)]
    keys = {mix(draw.key, draw.first + place) for draw in draws for place in (0, 1, 10**9, 10**12)}
    assert len(keys) == 40_000


def test_how_far_it_is_is_known_to_who_reads_it() -> None:
    assert StreamPlan(4, 9).state(3) == {"unit": "stream batches", "rank": [0, 1]}
    assert StreamPlan(4, 9, Share(1, 3)).state(3) == {"unit": "stream batches", "rank": [1, 3]}
