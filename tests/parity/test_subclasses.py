"""Subclasses that override methods torch's loader calls on itself, and programs that read its iterators' counters."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler

from feedline.errors import BadOption
from feedline.frameworks.speechbrain import keep_loaders
from feedline.loader.rebuilding import TorchRebuilding
from tests.parity import datasets
from tests.parity.sides import Parity, Side, same

pytestmark = pytest.mark.workers(1)


class Squared:
    """Wraps an iterator of batches, like those of torch-geometric."""

    def __init__(self, batches: Any) -> None:  # Any: an iterator of either loader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches) ** 2

    def __len__(self) -> int:
        return len(self._batches)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._batches._reset(loader, first_iter)


def subclass(side: Side, **members: Any) -> Side:
    """Return the same side with a subclass of its loader."""
    kind = types.new_class("Own", (side.kind,), exec_body=lambda namespace: namespace.update(members))
    return Side(kind, side.workers, side.options)


def squaring(side: Side) -> Side:
    return subclass(side, _get_iterator=lambda self: Squared(side.kind._get_iterator(self)))


# _get_iterator


@same
def test_an_iterator_may_wrap_the_loaders_own(side: Side) -> object:
    loader = squaring(side).loader(datasets.Squares(7), batch_size=2, shuffle=True)
    return type(iter(loader)).__name__, len(iter(loader)), list(loader), list(loader)


def test_a_wrapped_iteration_is_saved_and_resumed(parity: Parity) -> None:
    side = squaring(parity.feedline)
    loader = side.loader(datasets.Squares(7), batch_size=2, shuffle=True, seed=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    other = side.loader(datasets.Squares(7), batch_size=2, shuffle=True, seed=1)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest


# _index_sampler and _auto_collation


@same
def test_an_overridden_index_sampler_is_used(side: Side) -> object:
    own = subclass(side, _index_sampler=property(lambda self: BatchSampler([5, 3, 1, 0], 3, False)))
    loader = own.loader(datasets.Squares(7), batch_size=2, shuffle=True)
    return len(loader), list(loader), list(loader)


@same
def test_automatic_collation_can_be_overridden(side: Side) -> object:
    loader = subclass(side, _auto_collation=property(lambda self: False)).loader(datasets.Squares(5), batch_size=2)
    return len(loader), list(loader)


def test_rejects_an_index_sampler_for_a_stream(inline_parity: Parity) -> None:
    own = subclass(inline_parity.feedline, _index_sampler=property(lambda self: [[0, 0, 0], [0]]))
    loader = own.loader(datasets.Sharded(17), batch_size=2)
    with pytest.raises(BadOption, match=r"Own overrides _index_sampler.*__iter__"):
        iter(loader)


# _num_yielded


@pytest.mark.parametrize(
    "make",
    [
        lambda side: side.loader(datasets.Squares(7), batch_size=2, shuffle=True),
        lambda side: side.loader(datasets.Sharded(17), batch_size=2),
    ],
    ids=["map", "stream"],
)
@same
def test_an_iterator_counts_its_batches(side: Side, make: Callable[[Side], Any]) -> object:
    batches = iter(make(side))
    counts = [batches._num_yielded]
    for _ in batches:
        counts.append(batches._num_yielded)
    return counts, batches._num_yielded


@pytest.mark.parametrize("dataset", [datasets.Squares(9), datasets.Sharded(18)], ids=["map", "stream"])
def test_a_resumed_iterator_counts_all_batches_of_its_epoch(parity: Parity, dataset: Any) -> None:
    loader = parity.feedline.loader(dataset, batch_size=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = len(list(batches))
    loader.load_state_dict(state)
    batches = iter(loader)
    assert batches._num_yielded == 1
    assert len(list(batches)) == rest
    assert batches._num_yielded == 1 + rest


# Loaders that skip a number of batches, like SpeechBrain's


@pytest.mark.parametrize(
    ("options", "skipped"),
    [({}, 0), ({"shuffle": True, "seed": 1}, 3), ({"sampler": [5, 2, 6, 1, 0, 3, 4]}, 4)],
    ids=str,
)
def test_batches_skipped_by_a_checkpoint_are_not_made(parity: Parity, options: Any, skipped: int) -> None:
    side = subclass(parity.feedline)
    keep_loaders(TorchRebuilding(side.kind))  # done for all loaders once SpeechBrain is imported
    whole = [batch.tolist() for batch in side.loader(datasets.Squares(7), batch_size=2, **options)]
    loader = side.loader(datasets.Squares(7), batch_size=2, **options)
    loader._speechbrain_recovery_skip_to = skipped
    batches = iter(loader)
    assert batches._num_yielded == skipped
    assert [batch.tolist() for batch in batches] == whole[skipped:]
    assert len(list(loader)) == 4, "it applies to one epoch"
