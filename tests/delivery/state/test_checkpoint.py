"""The position of one iteration, and what its state consists of."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from feedline.delivery.state.checkpoint import Checkpoint
from feedline.order.foreign import ForeignOrder
from feedline.order.order import Entry, Order, SampleOrder, SpanOrder, StreamOrder
from feedline.samplers import SequentialSampler
from feedline.system.ranks import Share
from feedline.types import Key, Position, StreamSharding

SAMPLES = SampleOrder(SequentialSampler(range(100)), 4, drop_last=False)
SPANS = SpanOrder(StreamSharding(4, Share(0, 2, "exact")))
STREAMS = StreamOrder(4)


def begin(order: Order = SAMPLES, *, workers: int = 0, consumed: int = 0, **options: Any) -> Checkpoint:
    entry = Entry(Key(11, 5), 77, {"consumed": consumed} if consumed else {})
    return Checkpoint(
        order=order,
        entry=entry,
        draw_seed=22,
        worker_count=workers,
        batch_size=4,
        **options,
    )


def deliver(checkpoint: Checkpoint, *ordinals: int) -> None:
    for ordinal in ordinals:
        checkpoint.entry.progress.note(ordinal)


# -- the order ---


def test_early_batches_are_stored_relative_to_the_position() -> None:
    checkpoint = begin(consumed=40)
    deliver(checkpoint, 0, 3, 5)
    snapshot = checkpoint.snapshot()
    assert snapshot.order["consumed"] == 44
    assert snapshot.early == (2, 4)
    assert snapshot.order["stride"] == [4, 0, 1], "with another batch size the numbers would be meaningless"
    deliver(checkpoint, 1, 2, 4)
    assert checkpoint.snapshot().early == ()
    assert "stride" not in checkpoint.snapshot().order


# -- datasets with a state, map-style ---


def test_without_workers_the_state_of_the_dataset_is_read_directly() -> None:
    state = {"n": [1]}
    snapshot = begin(live=lambda: Position(state)).snapshot()
    assert snapshot.streams == (Position({"n": [1]}),)
    state["n"].append(2)
    assert snapshot.streams == (Position({"n": [1]}),), "the snapshot does not change with the dataset"


def test_a_snapshot_has_the_last_state_of_every_worker() -> None:
    checkpoint = begin(workers=3)
    checkpoint.entry.progress.positions[2] = Position({"n": 4})
    checkpoint.entry.progress.positions[0] = Position({"n": 6})
    checkpoint.entry.progress.positions[0] = Position({"n": 8})
    assert checkpoint.snapshot().streams == (Position({"n": 8}), Position(), Position({"n": 4}))


@pytest.mark.parametrize(("begun_with", "delivered", "turn"), [(0, 0, 0), (0, 4, 1), (2, 0, 2), (2, 2, 1)])
def test_the_turn_rotates_over_the_workers(begun_with: int, delivered: int, turn: int) -> None:
    checkpoint = begin(workers=3)
    checkpoint.entry.progress.turn = begun_with
    deliver(checkpoint, *range(delivered))
    assert checkpoint.snapshot().turn == turn


@pytest.mark.parametrize("keeps", [True, False])
def test_the_state_of_the_dataset_outlives_an_epoch_if_its_worker_does(keeps: bool) -> None:
    checkpoint = begin(workers=2, keeps_dataset=keeps)
    checkpoint.entry.progress.positions[1] = Position({"n": 4})
    checkpoint.entry.progress.ended = True
    snapshot = checkpoint.snapshot()
    assert snapshot.streams == ((Position(), Position({"n": 4}, is_before=True)) if keeps else ())
    assert snapshot.order == SAMPLES.expected(), "what a loader must match, in any case"


def test_an_iterator_outlives_an_epoch_if_it_is_the_dataset() -> None:
    checkpoint = begin(STREAMS, live=partial(Position, iterator={"place": 9}, is_one=True))
    checkpoint.entry.progress.ended = True
    assert checkpoint.snapshot().streams == (Position({"place": 9}, is_before=True),)


@pytest.mark.parametrize("keeps", [True, False])
def test_the_last_state_of_a_separate_iterator_is_kept(keeps: bool) -> None:
    """It may hold its worker's random generators. The iterators of feedline's own sources do not."""
    checkpoint = begin(STREAMS, live=partial(Position, iterator={"place": 9}), keeps_last=keeps)
    checkpoint.entry.progress.ended = True
    assert checkpoint.snapshot().streams == ((Position(iterator={"place": 9}, is_before=True),) if keeps else ())


# -- a stream per worker ---


def test_a_snapshot_of_the_streams_of_workers() -> None:
    checkpoint = begin(STREAMS, workers=2)
    positions = Position({"d": 1}, {"i": 2}, place=16, read=20, batches=5), Position(read=12, batches=3, ended=True)
    checkpoint.entry.progress.positions.update(enumerate(positions))
    checkpoint.entry.progress.turn = 1
    snapshot = checkpoint.snapshot()
    assert (snapshot.turn, snapshot.streams) == (1, positions)
    json.dumps(snapshot.as_dict())


# -- a shared stream ---


def spans(positions: dict[int, Position], delivered: int) -> tuple[int, tuple[Position, ...]]:
    """Return the consumed samples and the streams of a state. A step is eight samples."""
    checkpoint = begin(SPANS, workers=2)
    deliver(checkpoint, *range(delivered))
    checkpoint.entry.progress.positions.update(positions)
    snapshot = checkpoint.snapshot()
    return snapshot.order["consumed"], snapshot.streams


def test_the_latest_stream_state_that_is_not_beyond_the_position_is_used() -> None:
    early, late = (Position(None, {"place": place}, place=place) for place in (10, 18))
    assert spans({0: early, 1: late}, 3) == (24, (late,))
    assert spans({0: early, 1: late}, 2) == (16, (early,))
    assert spans({0: early, 1: late}, 1) == (8, ()), "the stream is read again"


def test_near_the_end_the_workers_count_overrides_the_plan() -> None:
    assert spans({0: Position(read=14)}, 2) == (14, ())
    assert spans({0: Position(read=14), 1: Position(read=15)}, 2) == (15, ())
    assert spans({0: Position(read=99)}, 2) == (16, ()), "the count of a later batch that came early"


def test_the_state_of_a_stateful_sampler_is_saved_at_the_end_of_an_epoch() -> None:
    class Counting:
        epochs = 0

        def __iter__(self) -> Any:
            self.epochs += 1
            return iter([[0], [1]])

        def state_dict(self) -> dict[str, int]:
            return {"epochs": self.epochs}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.epochs = state["epochs"]

    order = ForeignOrder(Counting())
    checkpoint = begin(order)
    assert checkpoint.plan is not None
    for number, _ in enumerate(checkpoint.plan):
        deliver(checkpoint, number)
    checkpoint.entry.progress.ended = True
    snapshot = checkpoint.snapshot()
    assert snapshot.ended
    assert snapshot.order["finish"]
    order.check(json.loads(json.dumps(snapshot.order)))
