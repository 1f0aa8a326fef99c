"""A loader's config: one for several epochs, and another one as soon as an attribute is reassigned."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from typing import Any

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from feedline import DataLoader, Loader
from feedline.delivery.state import Snapshot
from feedline.loader.base import config_of, session_of

KINDS = [DataLoader, Loader]


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_share_a_config_until_an_attribute_is_reassigned(kind: Any) -> None:
    loader = kind(list(range(6)), 2)
    before = config_of(loader)
    assert [len(list(loader)) for _ in range(2)] == [3, 3]
    assert config_of(loader) is before
    loader.collate_fn = sum
    assert list(loader) == [1, 5, 9]
    assert config_of(loader) is not before
    assert before.collate is not sum, "a config does not change"


def test_a_batch_sampler_that_changes_is_read_in_every_epoch() -> None:
    batches = BatchSampler(SequentialSampler(range(6)), 2, drop_last=False)
    loader: Any = DataLoader(list(range(6)), batch_sampler=batches)
    assert len(list(loader)) == 3
    batches.batch_size = 3
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_does_not_keep_the_loader_alive(kind: Any) -> None:
    loader = kind(list(range(6)), 2)
    list(loader)
    config, gone = config_of(loader), weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()
    assert config.batch_size == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_is_sent_without_its_config(kind: Any) -> None:
    loader = kind(list(range(6)), 2)
    before = len(pickle.dumps(loader))
    list(loader)
    config_of(loader).__dict__["lock"] = threading.Lock()  # cannot be pickled
    assert len(pickle.dumps(loader)) < before + 100
    assert [batch.tolist() for batch in pickle.loads(pickle.dumps(loader))] == [[0, 1], [2, 3], [4, 5]]


def test_two_iterations_without_workers_share_no_scratch_space() -> None:
    loader = DataLoader(list(range(8)), 2)
    first, second = iter(loader), iter(loader)
    taken = [next(each).tolist() for _ in range(4) for each in (first, second)]
    assert taken == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]]
    resources = session_of(loader).resources
    spec = iter(loader).spec
    user, other = Snapshot(0), Snapshot(1)  # anything that can be referred to weakly
    runner = resources.take_runner(spec, user)
    for next_user, is_free in ((user, True), (other, False)):
        resources.keep_runner(spec, runner, user)
        assert (resources.take_runner(spec, next_user) is runner) is is_free
    resources.keep_runner(spec, runner, user)
    del user, next_user
    assert resources.take_runner(spec, other) is runner, "the iteration that used it is gone"
