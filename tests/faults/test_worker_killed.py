"""Workers that are killed, crash or leave: others take their places, nothing is lost, and who kills is found.

What is delivered is compared, to the bit, with what a loader without workers makes of the same seed. With restarts=0
a death is an error that says so, and nothing is left of the other workers.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import resource
import signal
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.engines import abilities
from feedline.errors import BadOption, WorkerDied, WorkerRestarted
from feedline.faults import Failure, Policy, Replace, Retry, Skip
from feedline.testing import Gate
from tests.faults.deaths import WAYS, Mortal, Once, die
from tests.faults.loaders import (
    Augmented,
    Bad,
    Deadly,
    Numbers,
    OneReader,
    StatefulStream,
    Stream,
    are_gone,
    batches_of,
    indices_of,
    kill_worker,
    make,
    one_of_both,
    outcomes_of,
    pids_of,
    plain,
    the_other_of_both,
)

pytestmark = pytest.mark.filterwarnings("ignore::feedline.errors.WorkerRestarted")


# -- restarts=0: a death is an error ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "kind", "in_order"),
    [
        *((way, "map", True) for way in WAYS),
        ("killed", "map", False),
        ("crashed", "stream", True),
        ("left", "stream", False),
        ("killed", "shared stream", True),
        ("exited", "shared stream", False),
    ],
)
def test_the_error_names_the_process_and_the_cause(way: str, kind: str, in_order: bool) -> None:
    dataset: Any = Deadly(64, {20}, way=way)
    if kind != "map":
        dataset = Stream(dataset, splits=False)
    loader = Loader(dataset, 4, workers=2, in_order=in_order, restarts=0, shard=kind != "stream")
    batches = iter(loader)
    pids = pids_of(batches)
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        list(batches)
    assert type(caught.value) is WorkerDied
    named = re.search(r"pid\(s\) (\d+)", str(caught.value))
    assert named is not None
    assert int(named[1]) in pids
    assert WAYS[way][1] in str(caught.value)
    assert are_gone(pids)
    with pytest.raises(WorkerDied):
        next(batches)


@one_of_both
def test_batches_from_before_stay_valid_and_the_loader_can_be_used_again(loader_kind: str) -> None:
    dataset = Deadly(64, {20})
    loader = make(loader_kind, dataset, workers=2, restarts=0)
    batches: list[Any] = []
    with pytest.raises(WorkerDied):
        batches.extend(loader)
    kept = [batch[:, 0].tolist() for batch in batches]
    dataset.fatal = frozenset()
    assert len(list(loader)) == 16
    assert kept == [[4 * place, 4 * place + 1, 4 * place + 2, 4 * place + 3] for place in range(len(kept))]


@pytest.mark.parametrize("restarts", [0, 8])
def test_deaths_use_up_no_memory(restarts: int) -> None:
    """Slots of batches that had arrived when a worker died come back, and those of its tasks."""
    loader = Loader(Deadly(64, {30}), 1, workers=2, in_order=False, prefetch=4, restarts=restarts, on_error="skip")
    for _ in range(2 if restarts else 5):
        if restarts:
            loader.faults.clear()
            assert len(list(loader)) == 63
        else:
            with pytest.raises(WorkerDied):
                list(loader)
    assert free_slots(loader) == loader._supply.arena().slot_count  # type: ignore[union-attr]  # it has one


# Any: the loader's memory is its own affair, and not public.
def free_slots(loader: Any) -> int:
    arena = loader._supply.arena()
    free = 0
    while arena.acquire() >= 0:
        free += 1
    return free


class Held(Numbers):
    """Waits at a gate before every sample."""

    def __init__(self, gate: Gate, count: int = 8) -> None:
        super().__init__(count)
        self.gate = gate

    def __getitem__(self, index: int) -> int:
        self.gate.pass_through()
        return index


@pytest.mark.parametrize("in_order", [True, False])
def test_a_worker_killed_from_outside_while_it_works(tmp_path: Path, in_order: bool) -> None:
    with Gate(tmp_path / "gate") as gate:
        batches = iter(Loader(Held(gate), 1, workers=2, in_order=in_order, restarts=0))
        gate.wait_until_reached(2)
        pids = pids_of(batches)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=rf"{pids[0]}.*worker 0 was killed by signal 9"):
            next(batches)
        assert are_gone(pids)


def test_a_persistent_worker_killed_between_epochs() -> None:
    loader = Loader(Numbers(64), 4, workers=2, persistent=True, restarts=0)
    batches = iter(loader)
    assert len(list(batches)) == 16
    pids = pids_of(batches)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerDied, match=str(pids[1])):
        list(loader)
    assert are_gone(pids)
    assert len(list(loader)) == 16, "with workers of its own"
    loader.close()


@the_other_of_both
@pytest.mark.parametrize("restarts", [0, 32])
def test_a_worker_that_dies_while_it_starts(loader_kind: str, restarts: int) -> None:
    loader = make(loader_kind, Numbers(10), 2, workers=2, worker_init=lambda _: os._exit(5), restarts=restarts)
    with pytest.raises(WorkerDied, match="exit code 5"):
        list(loader)
    assert loader.stats()["restarted_workers"] <= 4, "two further starts each, not all of the budget"


# -- another takes its place -----------------------------------------------------------------------------------------

COUNT = 45
"""Samples of most datasets here: a short last batch, for every batch size."""


@functools.cache
def clean(kind: str, batch_size: int | None = 4, count: int = COUNT, epochs: int = 1) -> Any:
    """What a loader without workers delivers of samples that all work."""
    loader = make(kind, Augmented(count), batch_size, seed=7, shuffle=True)
    return [batches_of(loader) for _ in range(epochs)]


@one_of_both
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_lost_whatever_way_it_dies(loader_kind: str, way: str, tmp_path: Path) -> None:
    dataset = Deadly(COUNT, {11, 30}, way=way, once=Once(tmp_path))
    loader = make(loader_kind, dataset, workers=2, seed=7, shuffle=True)
    with pytest.warns(WorkerRestarted, match=re.escape(WAYS[way][1])):
        batches = batches_of(loader)
    assert [batches] == clean(loader_kind)
    assert loader.stats()["restarted_workers"] == 2
    assert len(loader.faults) == 0, "no sample was to blame"


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 3), (7, 1), (None, 2)])
def test_nothing_is_lost_whatever_the_batches(batch_size: int | None, workers: int, tmp_path: Path) -> None:
    dataset = Deadly(COUNT, range(0, COUNT, 9), once=Once(tmp_path))
    loader = make("Loader", dataset, batch_size, workers=workers, seed=7, shuffle=True)
    assert [batches_of(loader)] == clean("Loader", batch_size)
    assert loader.stats()["restarted_workers"] == 5


@the_other_of_both
def test_the_warning_says_what_happened(loader_kind: str, tmp_path: Path) -> None:
    loader = make(loader_kind, Deadly(12, {6}, once=Once(tmp_path)), workers=1)
    batches = iter(loader)
    [pid] = pids_of(batches)
    with pytest.warns(WorkerRestarted) as caught:
        list(batches)
    [warning] = [one for one in caught if one.category is WorkerRestarted]
    text = str(warning.message)
    for part in (f"pid(s) {pid}", "worker 0", "SIGKILL", "batch 1", "4, 5, 6, 7", "restart 1 of 32"):
        assert part in text
    assert warning.filename == __file__, "it points to the training loop"


@pytest.mark.parametrize("shard", [False, True])
def test_the_warning_about_a_stream_names_no_samples_that_are_none(shard: bool, tmp_path: Path) -> None:
    """Its tasks say how many samples, or which step: neither is a sample."""
    stream = Stream(Deadly(12, {9}, once=Once(tmp_path)), splits=False)
    with pytest.warns(WorkerRestarted) as caught:
        list(Loader(stream, 4, workers=1, shard=shard))
    text = " ".join(str(one.message) for one in caught)
    assert "(samples" not in text
    assert "Span" not in text


@one_of_both
def test_warnings_that_are_errors_lose_nothing(loader_kind: str, tmp_path: Path) -> None:
    fatal = {0, 6, 17, 44}
    for kind in ("map", "stream", "shared stream", "persistent"):
        folder = tmp_path / kind
        folder.mkdir()
        dataset: Any = Deadly(COUNT, fatal, once=Once(folder))
        options: dict[str, Any] = {}
        if "stream" in kind:
            dataset = Stream(dataset, splits=False)
            options = {"shard": kind == "shared stream"}
        loader = make(loader_kind, dataset, workers=1, persistent=kind == "persistent", seed=7, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outcomes = outcomes_of(loader)
        raised = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        batches = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
        assert [type(exc) for exc in raised] == [WorkerRestarted] * 4
        assert [int(sample[0]) for batch in batches for sample in batch] == list(range(COUNT))
        loader.close()


@the_other_of_both
def test_workers_killed_from_outside_again_and_again(loader_kind: str) -> None:
    loader = make(loader_kind, Augmented(COUNT), 2, workers=2, seed=7, shuffle=True, restarts=100)
    batches: list[Any] = []
    iterator = iter(loader)
    for number, batch in enumerate(iterator):
        batches.append(plain(batch))
        if number % 3 == 0 and number < 20:
            kill_worker(iterator, number % 2)
    assert [batches] == clean(loader_kind, 2)


@one_of_both
def test_all_workers_killed_at_once(loader_kind: str) -> None:
    loader = make(loader_kind, Augmented(COUNT), workers=3, seed=7, shuffle=True)
    iterator = iter(loader)
    batches = [plain(next(iterator))]
    for pid in pids_of(iterator):
        os.kill(pid, signal.SIGKILL)
    batches += batches_of(iterator)
    assert [batches] == clean(loader_kind)


@the_other_of_both
def test_batches_that_the_loop_keeps_stay_what_they_are(loader_kind: str) -> None:
    """The slots of what it keeps are not given to the worker that comes next."""
    loader = make(loader_kind, Augmented(COUNT), 1, workers=2, prefetch=1, seed=7, shuffle=True, restarts=100)
    kept = []
    iterator = iter(loader)
    for number, batch in enumerate(iterator):
        kept.append(batch)
        if number in (3, 17, 18):
            kill_worker(iterator, number % 2)
    assert [[plain(batch) for batch in kept]] == clean(loader_kind, 1)


@one_of_both
def test_in_no_order(loader_kind: str, tmp_path: Path) -> None:
    dataset = Deadly(COUNT, {3, 11, 30}, once=Once(tmp_path))
    loader = make(loader_kind, dataset, workers=3, in_order=False, seed=7, shuffle=True)
    assert sorted(batches_of(loader)) == sorted(clean(loader_kind)[0])
    assert loader.stats()["restarted_workers"] == 3


@the_other_of_both
def test_persistent_workers_killed_in_and_between_epochs(loader_kind: str, tmp_path: Path) -> None:
    dataset = Deadly(COUNT, {11}, once=Once(tmp_path))
    loader = make(loader_kind, dataset, workers=2, persistent=True, seed=7, shuffle=True)
    expected = clean(loader_kind, epochs=4)
    for epoch in range(4):
        iterator = iter(loader)
        if epoch == 2:
            batches = [plain(next(iterator))]
            for pid in pids_of(iterator):
                os.kill(pid, signal.SIGKILL)
            batches += batches_of(iterator)
        else:
            batches = batches_of(iterator)
        assert batches == expected[epoch]
        kill_worker(iterator, epoch % 2)
    loader.close()


@one_of_both
def test_persistent_workers_killed_after_an_epoch_was_left(loader_kind: str, tmp_path: Path) -> None:
    """What they were at belongs to nobody any more: it is dropped, not made again."""
    with Gate(tmp_path / "gate") as gate:

        class HeldAtTen(Augmented):
            def __getitem__(self, index: int) -> Any:
                if index == 10 and once("held"):
                    gate.pass_through()
                return super().__getitem__(index)

        once = Once(tmp_path)
        loader = make(loader_kind, HeldAtTen(COUNT), workers=2, persistent=True, seed=7)
        iterator = iter(loader)
        next(iterator)
        gate.wait_until_reached()
        for pid in pids_of(iterator):
            os.kill(pid, signal.SIGKILL)
        loader.set_epoch(0)
        batches = batches_of(loader)
        assert batches == batches_of(make(loader_kind, Augmented(COUNT), seed=7))
        loader.close()


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(start_method: str, tmp_path: Path) -> None:
    expected = batches_of(Loader(Mortal(COUNT), 4, seed=7, shuffle=True))
    dataset = Mortal(COUNT, frozenset({11}), Once(tmp_path))
    loader = Loader(dataset, 4, workers=1, start_method=start_method, seed=7, shuffle=True)
    assert batches_of(loader) == expected
    assert loader.stats()["restarted_workers"] == 1


def test_batches_that_workers_share(tmp_path: Path) -> None:
    whole = batches_of(make("DataLoader", Augmented(64), 8, seed=7))
    for fatal in ({0}, {33}, {32, 37}, {24, 31, 56, 63}):
        folder = tmp_path / str(fatal)
        folder.mkdir()
        dataset = Deadly(64, fatal, once=Once(folder))
        loader = make("DataLoader", dataset, 8, workers=2, split=2, seed=7)
        assert batches_of(loader) == whole
        assert loader.stats()["restarted_workers"] == len(fatal)


def test_a_sample_that_kills_in_a_batch_that_workers_share() -> None:
    loader = make("DataLoader", Deadly(64, {37}), 8, workers=2, split=2)
    outcomes = outcomes_of(loader)
    assert isinstance(outcomes.pop(4), WorkerDied)
    assert [int(sample[0]) for batch in outcomes for sample in batch] == [*range(32), *range(40, 64)]
    assert indices_of(loader.faults) == [37]


class Told(Numbers):
    """Adds what it was told; dies over sample 20 once."""

    def __init__(self, once: Once, count: int = 40) -> None:
        super().__init__(count)
        self.once = once
        self.epoch = 0
        self.extra = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def add(self, extra: int) -> None:
        self.extra += extra

    def __getitem__(self, index: int) -> int:
        if index == 20 and self.epoch == 3 and self.once("killed"):
            die()
        return index + 1000 * self.epoch + self.extra


@the_other_of_both
@pytest.mark.parametrize("start_method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_new_worker_knows_what_the_others_were_told(
    loader_kind: str, persistent: bool, start_method: str, tmp_path: Path
) -> None:
    loader = make(loader_kind, Told(Once(tmp_path)), workers=2, persistent=persistent, start_method=start_method)
    assert batches_of(loader)[0] == [0, 1, 2, 3]
    loader.broadcast("add", 500)
    loader.set_epoch(3)
    assert list(itertools.chain(*batches_of(loader))) == [3500 + index for index in range(40)]
    assert loader.stats()["restarted_workers"] == 1
    loader.set_epoch(4)
    assert list(itertools.chain(*batches_of(loader))) == [4500 + index for index in range(40)]
    loader.close()


@one_of_both
def test_a_call_that_dies_with_its_worker_is_not_lost(loader_kind: str, tmp_path: Path) -> None:
    """The new worker's dataset has heard it; it must not hear it twice."""
    with Gate(tmp_path / "gate") as gate:

        class HeldTold(Told):
            def __getitem__(self, index: int) -> int:
                if index == 4 and self.once("held"):
                    gate.pass_through()
                return super().__getitem__(index)

        loader = make(loader_kind, HeldTold(Once(tmp_path)), 1, workers=1, prefetch=2, persistent=True)
        iterator = iter(loader)
        first = [plain(next(iterator))[0] for _ in range(4)]
        gate.wait_until_reached()
        loader.broadcast("add", 500)
        kill_worker(iterator, 0)
        rest = [batch[0] for batch in batches_of(iterator)]
        numbers = first + rest
        assert [number % 500 for number in numbers] == list(range(40))
        assert {number // 500 for number in numbers} == {0, 1}
        assert numbers[-1] == 539
        loader.close()


def test_two_loaders_at_once() -> None:
    """The new worker of one is a fork that has seen the sockets of the other."""
    kinds = ("Loader", "DataLoader")
    loaders = [make(kind, Augmented(COUNT), 3, workers=2, seed=7, restarts=100) for kind in kinds]
    iterators = [iter(loader) for loader in loaders]
    delivered: list[list[Any]] = [[], []]
    for step in range(COUNT // 3):
        for number, iterator in enumerate(iterators):
            delivered[number].append(plain(next(iterator)))
        if step % 3 == 0:
            kill_worker(iterators[step % 2], step // 3 % 2)
    for number, kind in enumerate(kinds):
        assert delivered[number] == batches_of(make(kind, Augmented(COUNT), 3, seed=7))
        assert list(iterators[number]) == []


@one_of_both
def test_an_iteration_that_is_left_right_after_a_death(loader_kind: str) -> None:
    for number in range(3):
        loader = make(loader_kind, Numbers(400), workers=2)
        iterator = iter(loader)
        next(iterator)
        pids = pids_of(iterator)
        os.kill(pids[number % 2], signal.SIGKILL)
        iterator.close()
        assert are_gone(pids)


@the_other_of_both
def test_the_system_without_an_arena(loader_kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine of other systems replaces workers, too."""
    monkeypatch.setattr(abilities, "can_share_arenas", lambda: False)
    dataset = Deadly(COUNT, {11, 30}, once=Once(tmp_path))
    loader = make(loader_kind, dataset, workers=2, seed=7, shuffle=True, start_method="fork")
    assert [batches_of(loader)] == clean(loader_kind)
    assert loader.stats()["restarted_workers"] == 2
    loader = make(loader_kind, Deadly(COUNT, {20}, bad={5}), 8, workers=2, seed=7, on_error="skip", start_method="fork")
    same = make(loader_kind, Augmented(COUNT, {5, 20}), 8, seed=7, on_error="skip")
    assert batches_of(loader) == batches_of(same)
    assert indices_of(loader.faults) == indices_of(same.faults)


# -- workers that do not get ready -----------------------------------------------------------------------------------


class Init:
    """Fails so many times in all."""

    def __init__(self, once: Once, times: int) -> None:
        self.once = once
        self.times = times

    def __call__(self, worker: int) -> None:
        if self.once.times("init") <= self.times:
            raise Bad(f"worker {worker} finds no disk")


@the_other_of_both
@pytest.mark.parametrize("engine", ["process", "thread"])
def test_an_init_that_works_at_the_second_start(loader_kind: str, engine: str, tmp_path: Path) -> None:
    init = Init(Once(tmp_path), 1)
    loader = make(loader_kind, Numbers(20), workers=2, engine=engine, worker_init=init)
    with pytest.warns(WorkerRestarted, match="finds no disk"):
        assert list(itertools.chain(*batches_of(loader))) == list(range(20))
    assert loader.stats()["restarted_workers"] == 1


@one_of_both
@pytest.mark.parametrize("engine", ["process", "thread"])
def test_an_init_that_never_works(loader_kind: str, engine: str, tmp_path: Path) -> None:
    loader = make(loader_kind, Numbers(20), workers=2, engine=engine, worker_init=Init(Once(tmp_path), 999))
    batches = iter(loader)
    with pytest.raises(Bad, match="finds no disk") as caught:
        list(batches)
    assert "worker" in "\n".join(caught.value.__notes__)
    with pytest.raises(Bad):
        next(batches)
    assert 3 <= loader._supply.counters.restarts + 1 <= 5
    with pytest.raises(Bad):
        list(loader)


@the_other_of_both
def test_an_init_that_fails_without_restarts(loader_kind: str, tmp_path: Path) -> None:
    loader = make(loader_kind, Numbers(20), workers=2, worker_init=Init(Once(tmp_path), 1), restarts=0)
    with pytest.raises(Bad, match="finds no disk"):
        list(loader)


# -- samples that always kill ----------------------------------------------------------------------------------------

FATAL = {
    "one": {20},
    "two in one batch": {20, 22},
    "the first": {0},
    "the last": {COUNT - 1},
    "neighbours": {19, 20, 21},
}
FATAL_POLICIES: dict[str, Any] = {"skip": "skip", "no refill": Skip(refill=False), "replace": "replace"}


@functools.cache
def without_deaths(kind: str, policy: str, case: str, batch_size: int | None) -> tuple[Any, ...]:
    """What comes of samples that raise instead of killing."""
    loader = make(kind, Augmented(COUNT, FATAL[case]), batch_size, seed=7, on_error=FATAL_POLICIES[policy])
    return batches_of(loader), batches_of(loader), sorted(indices_of(loader.faults))


QUICK = {
    (8, "skip", "two in one batch"),
    (8, "replace", "neighbours"),
    (1, "skip", "the last"),
    (33, "no refill", "the first"),
    (33, "skip", "neighbours"),
    (None, "skip", "two in one batch"),
    (None, "replace", "one"),
}
"""Of the sixty combinations below; the others are left to the slow tests."""


@pytest.mark.parametrize(
    ("batch_size", "policy", "case"),
    [
        pytest.param(*grid, marks=() if grid in QUICK else pytest.mark.slow)
        for grid in itertools.product([1, 8, 33, None], FATAL_POLICIES, FATAL)
    ],
)
def test_a_sample_that_kills_is_dealt_with_like_one_that_raises(policy: str, case: str, batch_size: int | None) -> None:
    kind = "Loader" if batch_size in (1, 33) else "DataLoader"
    loader = make(
        kind, Deadly(COUNT, FATAL[case]), batch_size, workers=2, seed=7, on_error=FATAL_POLICIES[policy], restarts=64
    )
    first = batches_of(loader)
    restarted = loader.stats()["restarted_workers"]
    second = batches_of(loader)
    assert (first, second, sorted(indices_of(loader.faults))) == without_deaths(kind, policy, case, batch_size)
    assert loader.stats()["restarted_workers"] == restarted, "it is not asked for again"
    assert {fault.stage for fault in loader.faults} == {"worker"}
    assert all(fault.error == "feedline.errors.WorkerDied" for fault in loader.faults)
    assert loader.faults.quarantined == FATAL[case]


@one_of_both
@pytest.mark.parametrize("batch_size", [1, 8, 33])
def test_a_sample_that_kills_is_named(loader_kind: str, batch_size: int) -> None:
    loader = make(loader_kind, Deadly(COUNT, {20, 44}), batch_size, workers=2, seed=7, restarts=64)
    outcomes = outcomes_of(loader)
    expected = batches_of(make(loader_kind, Augmented(COUNT), batch_size, seed=7))
    assert len(outcomes) == len(expected)
    for outcome, batch in zip(outcomes, expected, strict=True):
        fatal = {20, 44} & {int(sample[0]) for sample in batch}
        if not fatal:
            assert outcome == batch
            continue
        assert type(outcome) is WorkerDied
        assert f"Sample {min(fatal)} kills" in str(outcome)
        assert "SIGKILL" in str(outcome)
        assert re.search(r"pid\(s\) \d+", str(outcome))
    assert indices_of(loader.faults) == [20, 44]
    assert {(fault.action, fault.stage) for fault in loader.faults} == {("raise", "worker")}


@the_other_of_both
def test_policies_are_asked_about_samples_that_kill(loader_kind: str, tmp_path: Path) -> None:
    def decide(failure: Failure) -> Any:
        once.times(failure.stage)
        assert isinstance(failure.error, WorkerDied)
        return Replace(by=lambda index: 0) if failure.index == 6 else "skip"

    once = Once(tmp_path)
    loader = make(loader_kind, Deadly(16, {6, 9}), workers=2, on_error=decide, restarts=64)
    batches = [[int(sample[0]) for sample in batch] for batch in batches_of(loader)]
    assert batches == [[0, 1, 2, 3], [4, 5, 0, 7], [8, 12, 10, 11], [13, 14, 15]]
    assert once.count("worker") == 2
    by_class = make(
        loader_kind, Deadly(16, {6}), workers=2, on_error=Policy({WorkerDied: "skip", Exception: "raise"}), restarts=64
    )
    assert len(batches_of(by_class)) == 4


@one_of_both
@pytest.mark.parametrize("how", ["raises", "nonsense", "same sample", "no neighbour"])
def test_policies_that_fail_over_a_sample_that_kills(loader_kind: str, how: str) -> None:
    """The exception comes with the batch, and the loop goes on."""

    def decide(failure: Failure) -> Any:
        if how == "raises":
            raise ArithmeticError("in the policy")
        return "perhaps"

    policies: dict[str, Any] = {
        "raises": decide,
        "nonsense": decide,
        "same sample": Replace(by=lambda index: index),
        "no neighbour": "replace",
    }
    dataset: Any = Deadly(16, {6})
    options: dict[str, Any] = {}
    if how == "no neighbour":
        dataset, options = Named(16, {6}), {"sampler": [f"name {index}" for index in range(16)]}
    loader = make(loader_kind, dataset, workers=2, on_error=policies[how], restarts=64, **options)
    outcomes = outcomes_of(loader, most=10)
    assert isinstance(outcomes.pop(1), {"raises": ArithmeticError, "no neighbour": WorkerDied}.get(how, BadOption))
    assert [int(sample[0]) for batch in outcomes for sample in batch] == [0, 1, 2, 3, *range(8, 16)]


class Named(Deadly):
    """Its indices are names."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(int(index.split()[1]))


@the_other_of_both
def test_names_that_kill(loader_kind: str) -> None:
    sampler = [f"name {index}" for index in range(16)]
    loader = make(loader_kind, Named(16, {6}), sampler=sampler, workers=2, on_error="skip", restarts=64)
    assert len(list(itertools.chain(*batches_of(loader)))) == 15
    assert indices_of(loader.faults) == ["name 6"]


@one_of_both
def test_retries_of_a_sample_that_kills(loader_kind: str, tmp_path: Path) -> None:
    """Each further try costs workers; then what comes after it."""
    policy = Retry(1, then="skip", wait_s=0.001)
    loader = make(loader_kind, Deadly(16, {6}), workers=2, on_error=policy, restarts=64)
    assert len(list(itertools.chain(*batches_of(loader)))) == 15
    [fault] = loader.faults
    assert (fault.index, fault.action, fault.attempt) == (6, "skip", 2)


@the_other_of_both
def test_batches_of_a_batch_sampler_that_kill(loader_kind: str) -> None:
    batch_sampler = [[0, 1], [2, 3, 4], [5], [6, 7]]
    loader = make(loader_kind, Deadly(8, {3, 5}), batch_sampler=batch_sampler, workers=2, on_error="skip", restarts=64)
    assert [[int(sample[0]) for sample in batch] for batch in batches_of(loader)] == [[0, 1], [2, 4], [6, 7]]
    assert sorted(indices_of(loader.faults)) == [3, 5]
    assert not any(fault.refilled for fault in loader.faults)


@one_of_both
def test_samples_that_kill_and_samples_that_raise(loader_kind: str, tmp_path: Path) -> None:
    """In one batch, and among those that take their places; and a worker that dies while it holds the others."""
    bad, fatal = {1, 2, 20, 33}, {3, 21, 40, 41}
    expected = batches_of(make(loader_kind, Augmented(COUNT, bad | fatal), on_error="skip", seed=7))
    loader = make(loader_kind, Deadly(COUNT, fatal, bad=bad), workers=2, on_error="skip", seed=7, restarts=64)
    assert batches_of(loader) == expected
    assert sorted(indices_of(loader.faults)) == sorted(bad | fatal)
    # 40 to 44 take the places of what failed: the worker that keeps the samples of such a batch dies over them, once.
    expected = batches_of(make(loader_kind, Augmented(COUNT, bad), on_error="skip", seed=7))
    dataset = Deadly(COUNT, range(40, COUNT), bad=bad, once=Once(tmp_path))
    loader = make(loader_kind, dataset, workers=2, on_error="skip", seed=7, restarts=64)
    assert batches_of(loader) == expected
    assert sorted(indices_of(loader.faults)) == sorted(bad)


def test_too_much_together_is_no_sample_to_blame(tmp_path: Path) -> None:
    """A batch that kills twice although each of its samples can be made is made again, as a whole."""

    class Together(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            if 5 in indices and len(indices) > 1 and once.times("killed") <= 2:
                die()
            return [self[index] for index in indices]

    once = Once(tmp_path)
    loader = make("Loader", Together(16), workers=2)
    assert list(itertools.chain(*batches_of(loader))) == list(range(16))
    assert len(loader.faults) == 0


def test_the_usual_budget_finds_a_sample_in_a_batch_of_a_thousand() -> None:
    class DeadlyNumbers(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 777:
                die()
            return index

    loader = make("Loader", DeadlyNumbers(2048), 1024, workers=2, on_error="skip")
    assert sum(map(len, batches_of(loader))) == 2047
    assert indices_of(loader.faults) == [777]
    assert loader.stats()["restarted_workers"] <= 16


@one_of_both
def test_an_iteration_that_is_left_while_the_sample_is_looked_for(loader_kind: str) -> None:
    """Half of the search belongs to nobody; the next iteration begins its own."""
    loader = make(
        loader_kind,
        Deadly(100, {5}),
        workers=2,
        persistent=True,
        in_order=False,
        on_error="skip",
        restarts=64,
        seed=7,
    )
    for deaths in (1, 2, 3, 4):
        before = loader.stats()["restarted_workers"]
        for _ in loader:
            if loader.stats()["restarted_workers"] >= before + deaths:
                break
        loader.faults.clear()
    loader.set_epoch(0)
    assert sorted(int(sample[0]) for batch in batches_of(loader) for sample in batch) == [*range(5), *range(6, 100)]
    assert indices_of(loader.faults) == [5]
    loader.close()


class Interrupting(Numbers):
    """Sample 5 raises what no policy may catch."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise KeyboardInterrupt
        return index


@the_other_of_both
def test_what_is_no_exception_ends_its_worker(loader_kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    loader = make(loader_kind, Interrupting(12), workers=1, on_error="skip")
    assert sorted(itertools.chain(*batches_of(loader))) == [0, 1, 2, 3, 4, *range(6, 12)]
    [fault] = loader.faults
    assert (fault.index, fault.stage) == (5, "worker")
    assert "KeyboardInterrupt" in capfd.readouterr().err, "the worker says why it goes"


@one_of_both
def test_memory_that_is_not_there_is_an_exception_like_any_other(loader_kind: str) -> None:
    def limit(_: int) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)

    loader = make(loader_kind, Hungry(12), workers=2, worker_init=limit, on_error=Policy({MemoryError: "skip"}))
    assert sorted(itertools.chain(*batches_of(loader))) == [index for index in range(12) if index != 5]
    assert loader.stats()["restarted_workers"] == 0


class Hungry(Numbers):
    """Sample 5 wants a gigabyte."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            return len(np.ones(1 << 27))
        return index


# -- streams ---------------------------------------------------------------------------------------------------------

STREAMS: dict[str, type[Stream]] = {"stateless": Stream, "stateful iterator": StatefulStream, "own iterator": OneReader}


@pytest.mark.parametrize(
    ("kind", "workers", "batch_size"),
    [
        pytest.param(*grid, marks=() if grid[1:] == (2, 4) or grid == ("stateless", 1, None) else pytest.mark.slow)
        for grid in itertools.product(STREAMS, [1, 2], [4, None])
    ],
)
def test_each_sample_of_a_stream_comes_once(kind: str, workers: int, batch_size: int | None, tmp_path: Path) -> None:
    fatal = {0, 13, 14, 40, 44}
    expected = batches_of(make("DataLoader", STREAMS[kind](Augmented(COUNT)), batch_size, workers=workers, seed=7))
    stream = STREAMS[kind](Deadly(COUNT, fatal, once=Once(tmp_path)))
    loader = make("DataLoader", stream, batch_size, workers=workers, seed=7)
    assert batches_of(loader) == expected
    assert loader.stats()["restarted_workers"] == 5


@one_of_both
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_each_sample_of_a_shared_stream_comes_once(loader_kind: str, kind: str, workers: int, tmp_path: Path) -> None:
    stream = STREAMS[kind](Augmented(COUNT), splits=False)
    expected = batches_of(make(loader_kind, stream, shard=True, seed=7))
    # Every worker reads all samples: each death is that of the first that comes there.
    stream = STREAMS[kind](Deadly(COUNT, {0, 13, 40, 44}, once=Once(tmp_path)), splits=False)
    loader = make(loader_kind, stream, shard=True, workers=workers, seed=7)
    assert batches_of(loader) == expected
    assert loader.stats()["restarted_workers"] == 4


@pytest.mark.parametrize("every", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_states_that_are_told_seldom(every: int, tmp_path: Path) -> None:
    """What was read since the last state is read again, and left out."""
    expected = batches_of(make("DataLoader", StatefulStream(Augmented(COUNT)), 3, workers=2, seed=7))
    stream = StatefulStream(Deadly(COUNT, {3, 14, 30, 44}, once=Once(tmp_path)))
    loader = make("DataLoader", stream, 3, workers=2, seed=7, snapshot_every_n_steps=every)
    assert batches_of(loader) == expected


@pytest.mark.parametrize("kind", STREAMS)
def test_persistent_streams_killed_between_epochs(kind: str) -> None:
    options: dict[str, Any] = {"workers": 2, "persistent": True, "seed": 7}
    undisturbed = make("DataLoader", STREAMS[kind](Augmented(COUNT)), **options)
    expected = [batches_of(undisturbed) for _ in range(3)]
    undisturbed.close()
    loader = make("DataLoader", STREAMS[kind](Augmented(COUNT)), **options)
    for epoch in range(3):
        iterator = iter(loader)
        assert batches_of(iterator) == expected[epoch]
        for pid in pids_of(iterator):
            os.kill(pid, signal.SIGKILL)
    loader.close()


@the_other_of_both
def test_streams_killed_from_outside_while_samples_fail(loader_kind: str) -> None:
    bad = {2, 3, 20, 30, 31}
    for shard in (False, True):
        stream = Stream(Augmented(COUNT, bad), splits=False)
        loader = make(loader_kind, stream, 2, shard=shard, workers=1, on_error="skip", seed=7, restarts=100)
        iterator = iter(loader)
        batches = []
        for number, batch in enumerate(iterator):
            batches.append(plain(batch))
            if number % 4 == 1:
                kill_worker(iterator, 0)
        same = make(loader_kind, stream, 2, shard=shard, on_error="skip", seed=7)
        assert batches == batches_of(same)
        assert indices_of(loader.faults) == indices_of(same.faults)


@one_of_both
@pytest.mark.parametrize("shard", [False, True])
def test_a_stream_that_always_kills(loader_kind: str, shard: bool) -> None:
    stream = Stream(Deadly(COUNT, {20}), splits=False)
    loader = make(loader_kind, stream, shard=shard, workers=1, on_error="skip")
    batches = iter(loader)
    delivered: list[Any] = []
    with pytest.raises(WorkerDied, match="SIGKILL"):
        delivered.extend(batches)
    assert len(delivered) == 5
    with pytest.raises(WorkerDied):
        next(batches)
    assert loader.stats()["restarted_workers"] < 32, "it does not take the whole budget to see that"


class Counting(Numbers):
    """A map-style dataset with a state: how many samples it has made."""

    def __init__(self, count: int, once: Once | None = None) -> None:
        super().__init__(count)
        self.made = 0
        self.once = once

    def __getitem__(self, index: int) -> Any:
        if index in (9, 30) and self.once is not None and self.once(index):
            die()
        self.made += 1
        return np.array([index, self.made])

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


@pytest.mark.parametrize("workers", [1, 2])
@the_other_of_both
def test_a_dataset_with_a_state_goes_on(loader_kind: str, workers: int, tmp_path: Path) -> None:
    loader = make(loader_kind, Counting(COUNT, Once(tmp_path)), workers=workers)
    samples = list(itertools.chain(*batches_of(loader)))
    assert [index for index, _ in samples] == list(range(COUNT))
    counts = Counter(made for _, made in samples)  # each worker counts its own, without a gap and without repeating
    assert [counts[made] for made in range(1, max(counts) + 1)] == sorted(counts.values(), reverse=True)
    assert max(counts.values()) == workers
    assert loader.stats()["restarted_workers"] == 2


# -- the budget ------------------------------------------------------------------------------------------------------


@one_of_both
@pytest.mark.parametrize("kind", ["map", "stream", "shared stream"])
def test_the_budget_is_exceeded(loader_kind: str, kind: str, tmp_path: Path) -> None:
    dataset: Any = Deadly(COUNT, {5, 13, 21, 29}, once=Once(tmp_path))
    if kind != "map":
        dataset = Stream(dataset, splits=False)
    options = {} if kind == "map" else {"shard": kind == "shared stream"}
    loader = make(loader_kind, dataset, workers=1, restarts=2, **options)
    batches = iter(loader)
    delivered: list[Any] = []
    pids = set(pids_of(batches))

    def go_on() -> None:
        for batch in batches:
            delivered.extend(plain(batch))
            pids.update(pids_of(batches))

    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        go_on()
    assert type(caught.value) is WorkerDied
    named = re.search(r"pid\(s\) (\d+)", str(caught.value))
    assert named is not None
    assert int(named[1]) in pids
    assert are_gone(pids)
    assert [int(sample[0]) for sample in delivered] == list(range(20))
    assert loader.stats()["restarted_workers"] == 2
    with pytest.raises(WorkerDied):
        next(batches)
    assert sum(map(len, batches_of(loader))) == COUNT, "and the next epoch has a budget of its own"


@the_other_of_both
def test_every_epoch_has_the_whole_budget(loader_kind: str, tmp_path: Path) -> None:
    loader = make(loader_kind, Numbers(COUNT), workers=2, persistent=True, restarts=1)
    for _ in range(4):
        iterator = iter(loader)
        batches = [plain(next(iterator))]
        kill_worker(iterator, 0)
        batches += batches_of(iterator)
        assert list(itertools.chain(*batches)) == list(range(COUNT))
    loader.close()


@one_of_both
def test_every_worker_dies_at_once_again_and_again(loader_kind: str) -> None:
    """A machine without memory: it ends, with an error and without anybody left."""
    loader = make(loader_kind, Deadly(COUNT, range(COUNT)), workers=2, restarts=5)
    with pytest.raises(WorkerDied):
        list(loader)
    assert loader.stats()["restarted_workers"] == 5


@the_other_of_both
@pytest.mark.slow
def test_a_long_night(loader_kind: str) -> None:
    """Workers killed at any moment, for many epochs, with samples that fail and samples that kill among them."""
    bad, fatal = {3, 50, 51, 120}, {7, 90}
    expected = make(loader_kind, Augmented(160, bad | fatal), on_error="skip", seed=7, shuffle=True)
    dataset = Deadly(160, fatal, bad=bad)
    loader = make(
        loader_kind, dataset, workers=3, on_error="skip", seed=7, shuffle=True, restarts=10_000, persistent=True
    )
    random = np.random.default_rng(int(os.environ.get("SEED", "1")))
    for _ in range(25):
        iterator = iter(loader)
        batches = []
        for batch in iterator:
            batches.append(plain(batch))
            if random.random() < 0.2:
                kill_worker(iterator, int(random.integers(3)))
        assert batches == batches_of(expected)
    assert sorted(indices_of(loader.faults)) == sorted(bad | fatal)
    loader.close()
