"""The simulated machine: bounds that hold for every cache, order and number of machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.tools.tune.traffic import Machine, Reading


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    share=st.floats(0, 1.2),
    machines=st.integers(1, 4),
    ranks=st.integers(1, 3),
    workers=st.integers(1, 3),
    sticky=st.booleans(),
)
def test_bounds_of_fetched_and_cached_bytes(
    sizes: list[int], share: float, machines: int, ranks: int, workers: int, sticky: bool
) -> None:
    total = sum(sizes)
    reading = Reading(sizes, int(total * share), machines, ranks, workers, sticky, seed=3)
    machine = Machine(reading)
    epochs = [machine.epoch() for _ in range(4)]
    for epoch in epochs:
        assert 0 <= epoch.fetched_bytes <= epoch.read_bytes <= total
        assert machine._held_bytes == sum(size for size, held in zip(sizes, machine._is_held, strict=True) if held)
        assert machine._held_bytes <= reading.cache_bytes
    assert epochs[0].fetched_bytes == epochs[0].read_bytes, "nothing is cached yet"
    if machines == 1:
        assert all(epoch.read_bytes == total for epoch in epochs)
        assert all(epoch.fetched_bytes >= total - reading.cache_bytes for epoch in epochs)
        assert share < 1 or not any(epoch.fetched_bytes for epoch in epochs[1:])


def test_machines_together_read_every_shard() -> None:
    reading = Reading([10] * 96, 0, machines=4, ranks=2, workers=3)
    assert Machine(reading).epoch().read_bytes == 240


def test_shards_that_stay_on_their_machine_are_fetched_once() -> None:
    plain, sticky = (
        Machine(Reading([10] * 960, 800, machines=16, ranks=2, workers=3, sticky=sticky)) for sticky in (False, True)
    )
    assert [sticky.epoch().fetched_bytes for _ in range(3)] == [600, 0, 0]
    assert min(plain.epoch().fetched_bytes for _ in range(3)) > 450


def test_training_waits_for_a_slow_network_and_not_for_a_fast_one() -> None:
    slow = Machine(Reading([100] * 50, bytes_per_s=10, used_per_s=20, ahead_bytes=200)).epoch()
    assert slow.seconds == pytest.approx(500, rel=0.05)
    assert slow.stalled_s == pytest.approx(250, rel=0.1)
    quick = Machine(Reading([100] * 50, bytes_per_s=40, used_per_s=20, ahead_bytes=200)).epoch()
    assert quick.stalled_s < 10
    cached = Machine(Reading([100] * 50, 5000, bytes_per_s=10, used_per_s=20, ahead_bytes=200))
    cached.epoch()
    assert cached.epoch().stalled_s == 0
