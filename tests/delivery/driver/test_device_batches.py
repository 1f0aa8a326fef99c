"""Batches that are prepared ahead of time: order, state, errors and closing, with a target that needs no device."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from feedline import DataLoader
from feedline.abc.deferred import Target
from feedline.errors import WorkerError
from feedline.loader.torch_config import TorchConfig
from feedline.randomness.scope import rng
from feedline.types import EngineName


class Wrapping(Target):
    """Puts each batch into a tuple and records calls."""

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads
        self.begun: list[Any] = []
        self.most_ahead = 0
        self.delivered = 0
        self.closed = 0
        self.lock = threading.Lock()

    def begin(self, batch: Any) -> Any:
        with self.lock:
            self.begun.append(batch)
            self.most_ahead = max(self.most_ahead, len(self.begun) - self.delivered)
        return ("begun", batch)

    def deliver(self, begun: Any) -> Any:
        kind, batch = begun
        assert kind == "begun"
        self.delivered += 1
        return batch

    def close(self) -> None:
        self.closed += 1


@dataclass(frozen=True, kw_only=True)
class FedConfig(TorchConfig):
    given: Target | None = field(default=None, compare=False)

    # Any: a `Fed` and its options.
    @classmethod
    def of(cls, loader: Any, options: Any) -> FedConfig:
        config: Any = super().of(loader, options)  # Any: `of` makes a config of this class
        fed: FedConfig = replace(config, given=loader.target)
        return fed

    def target(self) -> Target | None:
        return self.given


class Fed(DataLoader[Any]):
    """A loader whose batches go through a target of this file."""

    _feedline_config = FedConfig
    target: Wrapping | None = None


def fed(dataset: Any, target: Wrapping, **options: Any) -> Fed:
    loader = Fed(dataset, **options)
    loader.target = target
    return loader


class Numbers(Dataset[int]):
    def __init__(self, length: int = 40, bad: int | None = None) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise KeyError(index)
        return index


@pytest.mark.parametrize(
    ("engine", "workers", "threads"), [("inline", 0, 0), ("thread", 2, 3), ("process", 2, 0), ("process", 2, 1)]
)
def test_every_batch_comes_once_and_in_order(engine: EngineName, workers: int, threads: int) -> None:
    target = Wrapping(threads)
    loader = fed(Numbers(), target, batch_size=4, num_workers=workers, engine=engine, shuffle=True, seed=3)
    plain = DataLoader(Numbers(), batch_size=4, shuffle=True, seed=3)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in plain]
    assert target.most_ahead <= (target.ahead + 2 if workers else 1)


@pytest.mark.parametrize(
    ("engine", "workers", "sampler", "threads"),
    [("inline", 0, "torch", 0), ("thread", 2, "feedline", 2), ("thread", 2, "torch", 0), ("process", 2, "feedline", 0)],
)
def test_the_state_covers_only_batches_that_the_training_loop_has(
    engine: EngineName, workers: int, sampler: str, threads: int
) -> None:
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "engine": engine}
    if sampler == "feedline":
        options |= {"shuffle": True, "seed": 5}
    else:
        options["sampler"] = torch.utils.data.RandomSampler(range(40), generator=torch.Generator().manual_seed(1))
    for step in (0, 1, 5, 13):
        loader = fed(Numbers(), Wrapping(threads), **options)
        batches = iter(loader)
        for _ in range(step):
            next(batches)
        state = loader.state_dict()
        rest = [batch.tolist() for batch in batches]
        assert loader.state_dict()["ended"]
        if sampler == "torch":
            options["sampler"] = torch.utils.data.RandomSampler(range(40), generator=torch.Generator().manual_seed(1))
        other = DataLoader(Numbers(), **options)
        other.load_state_dict(state)
        again = [batch.tolist() for batch in other]
        if sampler == "feedline":
            assert again == rest
        else:
            assert len(again) == len(rest)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(30))


@pytest.mark.parametrize(("engine", "workers", "threads"), [("inline", 0, 0), ("thread", 2, 2), ("process", 2, 0)])
def test_an_error_is_raised_in_its_turn_and_iteration_continues(engine: EngineName, workers: int, threads: int) -> None:
    loader = fed(Numbers(20, bad=9), Wrapping(threads), batch_size=4, num_workers=workers, engine=engine)
    batches, seen = iter(loader), []
    while True:
        try:
            seen.append(next(batches).tolist())
        except KeyError as exc:
            seen.append(exc.args[0])
        except StopIteration:
            break
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], 9, [12, 13, 14, 15], [16, 17, 18, 19]]
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize(("where", "threads"), [("begin", 2), ("deliver", 0), ("begin", 0)])
def test_an_error_of_the_target_is_raised_once_in_place_of_its_batch(
    where: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Wrapping(threads)
    act = getattr(target, where)

    def fails(value: Any) -> Any:
        if (value if where == "begin" else value[1])[0] == 8:
            raise ValueError("the target does not like it")
        return act(value)

    monkeypatch.setattr(target, where, fails)
    batches = iter(fed(Numbers(20), target, batch_size=4, num_workers=2, engine="thread"))
    assert [next(batches)[0].item() for _ in range(2)] == [0, 4]
    with pytest.raises(ValueError, match="does not like it"):
        next(batches)
    assert [batch[0].item() for batch in batches] == [12, 16]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_copy_leaves_the_device_alone() -> None:
    target = Wrapping(2)
    batches = iter(fed(Numbers(4000), target, batch_size=4, num_workers=1))
    next(batches)
    child = os.fork()
    if not child:
        batches.close()
        del batches
        gc.collect()
        os._exit(target.closed)
    assert os.waitpid(child, 0)[1] == 0
    batches.close()
    assert target.closed == 1


def test_persistent_workers_serve_several_epochs() -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1}
    loader = fed(Numbers(), Wrapping(2), num_workers=2, persistent_workers=True, **options)
    plain = DataLoader(Numbers(), batch_size=4, shuffle=True, seed=1)
    batches = iter(loader)
    next(batches)  # an epoch that is left early
    next(iter(plain))
    pids = batches.worker_pids
    for _ in range(3):
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in plain]
    assert iter(loader).worker_pids == pids
    loader.close()


class Stuck(Numbers):
    """Samples from `first` on never come."""

    def __init__(self, first: int = 4) -> None:
        super().__init__()
        self.first = first

    def __getitem__(self, index: int) -> int:
        if index >= self.first:
            threading.Event().wait()
        return index


@pytest.mark.parametrize("threads", [0, 1])
def test_another_thread_may_close_while_one_waits_for_a_batch(threads: int) -> None:
    loader = fed(Stuck(), Wrapping(threads), batch_size=4, num_workers=1)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    began, seen = threading.Event(), []

    def wait() -> None:
        began.set()
        seen.append(next(batches, "ended"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    began.wait()
    loader.close()
    waiting.join(60)
    assert seen == ["ended"]


# -- what a state covers ---


class Faulty(Numbers):
    """One sample in seven fails."""

    def __getitem__(self, index: int) -> int:
        if index % 7 == 3:
            raise ValueError(index)
        return index


@pytest.mark.parametrize("threads", [0, 2])
def test_faults_of_batches_prepared_ahead_are_not_in_the_state(threads: int) -> None:
    def make() -> Fed:
        return fed(Faulty(), Wrapping(threads), batch_size=4, num_workers=2, engine="thread", on_error="skip")

    loader = make()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    faults = state["faults"]
    assert (faults["seen"], faults["lost"], [fault["index"] for fault in faults["entries"]]) == (12, 2, [3, 10])
    assert [fault["index"] for fault in faults["quarantined"]] == [3, 10]
    other = make()
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in batches]
    assert other.state_dict()["faults"]["seen"] == 40
    assert [fault.index for fault in other.faults] == [3, 10, 17, 24, 31, 38]


class CustomSampler:
    """A custom sampler that records the threads that iterate it."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.threads: set[threading.Thread] = set()

    def __iter__(self) -> Any:
        for index in range(self.length):
            self.threads.add(threading.current_thread())
            yield index

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize(("threads", "persistent"), [(0, True), (3, False)])
def test_a_custom_sampler_is_iterated_in_the_training_loops_thread(threads: int, persistent: bool) -> None:
    sampler, target = CustomSampler(400), Wrapping(threads)
    options: dict[str, Any] = {"num_workers": 2, "engine": "thread", "persistent_workers": persistent}
    loader = fed(Numbers(400), target, batch_size=4, sampler=sampler, **options)
    for _ in range(2):
        batches, seen = iter(loader), []
        for batch in batches:
            seen += batch.tolist()
            state = loader.state_dict()
            assert state["ended"] or state["order"]["consumed"] == len(seen) // 4
        assert seen == list(range(400))
    assert sampler.threads == {threading.main_thread()}
    loader.close()


@pytest.mark.parametrize("place", range(1, 60, 10))
def test_a_signal_leaves_no_lock_taken_and_no_batch_missing_from_the_state(place: int) -> None:
    """The signal comes at any line of this module or of the Python modules it uses."""
    loader = fed(Numbers(400), Wrapping(2), batch_size=4, num_workers=1, engine="thread")
    batches, seen, places = iter(loader), [], 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal places
        if frame.f_code.co_filename.endswith(("device_batches.py", "threading.py", "contextlib.py")):
            places += 1
            if places == place:
                raise KeyboardInterrupt
        return None

    for _ in range(2):
        seen += next(batches).tolist()
    sys.settrace(trace)
    try:
        for batch in batches:
            seen += batch.tolist()
    except KeyboardInterrupt:
        sys.settrace(None)
        state = loader.state_dict()
        with contextlib.suppress(WorkerError):  # interrupted in the middle; the error says how to continue
            next(batches)
        loader.load_state_dict(state)
        for batch in loader:
            seen += batch.tolist()
    finally:
        sys.settrace(None)
    assert seen == list(range(400))
    assert places >= place
    loader.close()


@pytest.mark.parametrize(("workers", "threads"), [(0, 0), (2, 2)])
def test_waiting_for_the_target_counts_as_waiting_for_the_device(workers: int, threads: int) -> None:
    engine: EngineName = "thread" if workers else "inline"
    loader = fed(Numbers(), Wrapping(threads), batch_size=2, num_workers=workers, engine=engine)
    assert len(list(loader)) == 20
    epoch = loader.stats().epoch
    assert (epoch.batches, epoch.samples) == (20, 40)
    assert epoch.stages["device"].count == 20
    assert epoch.waits["device"] > 0
    assert epoch.body.count == 19


class Drawing(Wrapping):
    """Adds random numbers to each batch, in begin and in deliver: targets call transforms in either."""

    def begin(self, batch: Any) -> Any:
        return super().begin((batch, rng().random()))

    def deliver(self, begun: Any) -> Any:
        batch, number = super().deliver(begun)
        return batch.tolist(), number, rng().random()


@pytest.mark.parametrize("stream", [False, True])
def test_targets_draw_the_same_numbers_on_every_engine_in_every_thread_and_after_every_step(stream: bool) -> None:
    def loader(workers: int = 0, threads: int = 0) -> Fed:
        options: dict[str, Any] = {"shard": True} if stream else {"shuffle": True}
        engine = "thread" if workers else "inline"
        dataset = Stream() if stream else Numbers(40)
        return fed(dataset, Drawing(threads), batch_size=8, seed=3, num_workers=workers, engine=engine, **options)

    whole = list(loader())
    assert len({number for _, number, _ in whole}) == len(whole)
    assert all(number == other for _, number, other in whole)
    for threads in (0, 2):
        assert list(loader(2, threads)) == whole
        for done in range(len(whole)):
            first = loader(2, threads)
            batches = iter(first)
            before = list(itertools.islice(batches, done))
            state = first.state_dict()
            del batches
            second = loader(2, threads)
            second.load_state_dict(state)
            assert before + list(second) == whole
