"""Which epoch comes next, also after loading a state."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest

from feedline import DataLoader, Loader
from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.delivery.state.epochs import Epochs, Start, VirtualPlace
from feedline.errors import BadState, StateWarning
from feedline.order.order import Entry, Order, SampleOrder
from feedline.randomness.keys import epoch_key
from feedline.samplers import RandomSampler
from feedline.types import Key


class Bench:
    """Epochs with an order, as in a loader."""

    def __init__(self, order: Order | None = None) -> None:
        self.sampler = RandomSampler(range(10), seed=3)
        self.order = order or SampleOrder(self.sampler, 2, drop_last=False)
        self.epochs = Epochs()
        self.drawn: list[int] = []

    def begin(self) -> tuple[Start, Checkpoint]:
        """Begin an iteration."""
        start = self.epochs.begin(self.order)
        order = {} if start.snapshot is None else start.snapshot.order
        entry = Entry(Key(3, start.epoch), epoch_key(3, start.epoch), order)
        checkpoint = Checkpoint(self.order, entry, draw_seed=3, worker_count=0, batch_size=2)
        self.epochs.begun(start, self.order, checkpoint)
        return start, checkpoint

    def run(self, batches: int | None = None) -> int:
        """Run an epoch or a part of it; return its number."""
        start, checkpoint = self.begin()
        assert checkpoint.plan is not None
        for number, _ in enumerate(checkpoint.plan):
            if number == batches:
                return start.epoch
            checkpoint.entry.progress.note(number)
        checkpoint.entry.progress.ended = True
        return start.epoch

    def state(self) -> dict[str, Any]:
        return self.epochs.state(self.order, self._first)

    def _first(self, order: Order, epoch: int) -> Snapshot:
        self.drawn.append(epoch)
        return Snapshot(epoch, seed=3, draw_seed=3, order=order.expected())

    def load(self, state: Any) -> None:
        self.epochs.load(Snapshot.from_dict(state), self.order)


def state_of(batches: int | None, epoch: int = 0) -> dict[str, Any]:
    """Return the state after some batches of an epoch; None for all of them."""
    bench = Bench()
    bench.epochs.set_epoch(epoch)
    bench.run(batches)
    return bench.state()


# -- resuming ---


def test_a_state_is_used_up_only_when_the_iteration_has_started() -> None:
    bench = Bench()
    state = state_of(2, epoch=5)
    bench.load(state)
    for _ in range(3):
        assert bench.epochs.begin(bench.order).snapshot is not None, "for example if workers could not be started"
        assert bench.state() == state
    bench.begin()
    assert bench.epochs.begin(bench.order).snapshot is None


def test_loading_a_wrong_state_changes_nothing() -> None:
    bench = Bench()
    bench.run(1)
    before = bench.state()
    for wrong in ({**before, "feedline": 99}, {**before, "order": {"unit": "batches"}}, "state"):
        with pytest.raises(BadState):
            bench.load(wrong)
        assert bench.state() == before


# -- set_epoch against a state ---


@pytest.mark.parametrize("whom", ["loader", "sampler"])
def test_a_loaded_state_overrides_set_epoch_with_a_warning(whom: str) -> None:
    bench = Bench()
    bench.load(state_of(2, epoch=5))
    (bench.epochs if whom == "loader" else bench.sampler).set_epoch(7)
    with pytest.warns(StateWarning, match=r"set_epoch\(7\).*resumes epoch 5"):
        assert bench.run() == 5
    assert bench.run() == 6


@pytest.mark.parametrize("whom", ["loader", "sampler"])
def test_set_epoch_with_the_epoch_of_the_state_does_not_warn(whom: str) -> None:
    bench = Bench()
    bench.load(state_of(2, epoch=5))
    (bench.epochs if whom == "loader" else bench.sampler).set_epoch(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bench.run() == 5


# -- before the first batch ---


def test_a_state_before_the_first_iteration_is_made_once() -> None:
    bench = Bench()
    state = bench.state()
    assert bench.state() == state
    assert bench.drawn == [0]
    start, _ = bench.begin()
    assert start.is_drawn
    assert start.snapshot is not None
    assert start.snapshot.as_dict() == state, "the iteration matches the saved state"


def test_a_state_made_for_another_epoch_is_not_used() -> None:
    bench = Bench()
    bench.state()
    bench.epochs.set_epoch(4)
    assert bench.state()["epoch"] == 4
    assert bench.drawn == [0, 4]
    bench.epochs.set_epoch(6)
    start, _ = bench.begin()
    assert (start.epoch, start.snapshot) == (6, None)


# -- virtual epochs ---


def test_the_virtual_place_is_part_of_the_state() -> None:
    bench = Bench()
    bench.run(1)
    bench.epochs.virtual = VirtualPlace(4, 2)
    assert bench.state()["virtual"] == [4, 2]
    other = Bench()
    assert other.epochs.loaded_virtual == (0, 0)
    other.load(bench.state())
    assert other.epochs.loaded_virtual == (4, 2)
    other.run()
    assert other.epochs.loaded_virtual == (0, 0)


# -- copies ---


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda epochs: pickle.loads(pickle.dumps(epochs))])
def test_a_copy_starts_at_epoch_zero(twin_of: Any) -> None:
    bench = Bench()
    bench.run(1)
    twin = twin_of(bench.epochs)
    assert twin.begin(bench.order).epoch == 0
    assert bench.epochs.begin(bench.order).epoch == 1


@pytest.mark.parametrize(
    "twin_of", [Epochs.copy, copy.copy, copy.deepcopy, lambda epochs: pickle.loads(pickle.dumps(epochs))]
)
def test_a_copy_keeps_a_loaded_state_and_set_epoch(twin_of: Any) -> None:
    bench = Bench()
    bench.load(state_of(2, epoch=5))
    start = twin_of(bench.epochs).begin(bench.order)
    assert start.epoch == 5
    assert start.snapshot is not None
    bench = Bench()
    bench.epochs.set_epoch(7)
    assert twin_of(bench.epochs).begin(bench.order).epoch == 7


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_the_warning_points_to_the_loop(kind: Any) -> None:
    loader = kind(list(range(8)), 2, shuffle=True, seed=3)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(7)
    with pytest.warns(StateWarning) as warned:
        list(loader)
    assert [warning.filename for warning in warned] == [__file__]
