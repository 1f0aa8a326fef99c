"""A death after which there is no going on."""

from __future__ import annotations

import gc
import weakref

import pytest

from feedline.faults import Policy
from feedline.loader.account import Account
from feedline.loader.death import raise_death
from feedline.types import Notes, Result, ResultKind
from feedline.verdicts import Failure, Fault
from tests.loader.hand import Bench


class Gone(Exception):
    pass


def test_the_workers_end_and_what_is_known_of_samples_that_kill_is_kept() -> None:
    bench = Bench()
    account = Account(Policy())
    fault = Fault.of(Failure(7, Gone(), "worker", 1, 0), "skip", time=0.0)
    result = Result(ResultKind.DIED, 0, -1, Gone("worker 0"), notes=Notes(faults=[fault]))
    with pytest.raises(Gone, match="worker 0"):
        raise_death(result, bench.crew, account, 3)
    assert bench.crew.closed
    assert [(fault.index, fault.epoch) for fault in account.log] == [(7, 3)]


def test_it_is_not_kept_alive_by_its_traceback() -> None:
    """Whoever calls has the result in a variable, and the traceback refers to that frame."""
    bench = Bench()

    def wait() -> None:
        result = Result(ResultKind.DIED, 0, -1, Gone())
        gone.append(weakref.ref(result.payload))
        raise_death(result, bench.crew, None, 0)

    gone: list[weakref.ref[Gone]] = []
    gc.disable()
    try:
        with pytest.raises(Gone):
            wait()
        assert gone[0]() is None
    finally:
        gc.enable()
