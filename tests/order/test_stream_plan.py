"""The plans of streams: read as they are, or split by the loader."""

from __future__ import annotations

from itertools import islice

from feedline.order.streams import SpanPlan, StreamPlan
from feedline.randomness.keys import mix
from feedline.system.ranks import Share
from feedline.types import Span, StreamSharding

SPLIT = StreamSharding(4, Share(1, 3))


def test_no_two_streams_of_workers_and_ranks_have_keys_in_common() -> None:
    plans = [StreamPlan(4, 9, Share(rank, 1000)) for rank in range(1000)]
    draws = [plan.draw_of(worker) for plan in plans for worker in range(10)]
    keys = {mix(draw.key, draw.first + place) for draw in draws for place in (0, 1, 10**9, 10**12)}
    assert len(keys) == 40_000


def test_steps_are_counted_from_where_the_stream_was_entered() -> None:
    assert list(islice(SpanPlan(SPLIT, consumed=50), 2)) == [Span(0, 50), Span(1, 50)]
