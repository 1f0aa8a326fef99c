from __future__ import annotations

import pytest

from feedline.tune.measured import room_now, steady_growth


def test_growth_counts_if_it_is_steady() -> None:
    mib = float(1 << 20)
    steady = [(number * 16, int(number * mib)) for number in range(40)]
    assert steady_growth(steady) == pytest.approx(mib * 1000 / 16)
    step = [(number * 16, int(mib * (0 if number < 20 else 40))) for number in range(40)]
    assert steady_growth(step) == 0
    assert steady_growth(steady[:5]) == 0
    assert steady_growth([]) == 0


def test_the_room() -> None:
    room = room_now()
    assert room.cores >= 1
    assert room.memory_bytes is None or room.memory_bytes > 0
