"""Counts."""

from __future__ import annotations

import pytest

from feedline.samplers.counts import is_count


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_what_is_no_count(value: object) -> None:
    assert not is_count(value)


def test_counts() -> None:
    assert is_count(1)
    assert is_count(2**70)
