from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.shares import Entry, ShardShare, read, resharded, shares_of, written
from feedline.errors import BadState

SIZE = 12
"""Samples per shard."""


def samples_of(share: ShardShare) -> list[tuple[int, int]]:
    """Return the samples that a reader takes from a share."""
    own = (number for number in range(share.ordinal, SIZE) if number % share.every == share.place)
    return [(share.turn, number) for number in own if number not in share.came]


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 30))
def test_every_sample_of_every_shard_belongs_to_one_part(shard_count: int, part_count: int, size: int) -> None:
    found: Counter[tuple[int, int]] = Counter()
    for number in range(part_count):
        own = shares_of(shard_count, (number, part_count))
        assert own, "no part is idle"
        for share in own:
            found.update((share.turn, sample) for sample in range(size) if sample % share.every == share.place)
    assert found == Counter((shard, sample) for shard in range(shard_count) for sample in range(size))


@given(st.integers(1, 60), st.integers(1, 20))
def test_shards_are_split_only_if_there_are_too_few_for_all_parts(shard_count: int, part_count: int) -> None:
    readers: Counter[int] = Counter()
    for number in range(part_count):
        own = shares_of(shard_count, (number, part_count))
        assert len({share.turn for share in own}) == len(own)
        readers.update(share.turn for share in own)
    left = shard_count % part_count
    assert sum(count > 1 for count in readers.values()) <= left
    assert sum(readers.values()) == shard_count - left + (part_count if left else 0)


@st.composite
def shares(draw: st.DrawFn, turn: int = 0) -> ShardShare:
    every = draw(st.integers(1, 4))
    place, ordinal = draw(st.integers(0, every - 1)), draw(st.integers(0, SIZE))
    own = [number for number in range(ordinal, SIZE) if number % every == place]
    came = draw(st.sets(st.sampled_from(own))) if own else set()
    return ShardShare(
        turn, place, every, Entry(512 * ordinal, 512 * ordinal, 512 * ordinal, ordinal), ordinal, frozenset(came)
    )


@given(shares(), st.integers(1, 5))
def test_the_parts_of_a_share_cover_it(share: ShardShare, count: int) -> None:
    found = [sample for place in range(count) for sample in samples_of(share.part(place, count))]
    assert sorted(found) == samples_of(share)


@given(shares(), st.lists(st.booleans(), max_size=SIZE))
def test_samples_that_were_delivered_are_left_out(share: ShardShare, came: list[bool]) -> None:
    before = samples_of(share)
    expected = [sample for number, sample in enumerate(before) if number >= len(came) or not came[number]]
    assert samples_of(share.without(came)) == expected


@given(st.data(), st.lists(st.sampled_from(["whole", "begun", "over"]), max_size=30), st.integers(1, 9))
def test_the_rest_is_split_and_serialised(data: st.DataObject, kinds: list[str], count: int) -> None:
    left = [
        ShardShare(turn) if kind == "whole" else data.draw(shares(turn))
        for turn, kind in enumerate(kinds)
        if kind != "over"
    ]
    found: list[Any] = []
    for begin in json.loads(json.dumps(resharded(left, count))):
        own = read(begin["units"], len(kinds))
        assert written(own) == begin["units"]
        assert not own or ([*own[0].entry], own[0].ordinal) == (begin["entry"], begin["ordinal"])
        assert [share.is_whole for share in own if share.every == 1] == sorted(
            share.is_whole for share in own if share.every == 1
        )
        found += [sample for share in own for sample in samples_of(share)]
    assert sorted(found) == sorted(sample for share in left for sample in samples_of(share))


@pytest.mark.parametrize(
    "lines", [1, [1], [[1]], [["a", 1, 1]], [[0, 0, 1, 0, 0, "x"]], [[0, 0, 0, 0, 0, "1"]], [[9, 1, 1]], [[-1, 1, 1]]]
)
def test_malformed_units_are_rejected(lines: Any) -> None:
    with pytest.raises(BadState, match="does not say which shards are left"):
        read(lines, 9)
