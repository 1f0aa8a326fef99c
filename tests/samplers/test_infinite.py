"""Orders without end."""

from __future__ import annotations

from itertools import islice

import pytest

from feedline.samplers import InfiniteSampler


def test_every_pass_has_every_index_in_another_order() -> None:
    drawn = list(islice(InfiniteSampler(range(30), seed=1), 90))
    passes = [drawn[start : start + 30] for start in (0, 30, 60)]
    assert all(sorted(one) == list(range(30)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3


def test_one_sample_is_repeated() -> None:
    assert list(islice(InfiniteSampler("a"), 5)) == [0] * 5


def test_nothing_cannot_be_repeated() -> None:
    with pytest.raises(ValueError, match="empty"):
        InfiniteSampler([])
