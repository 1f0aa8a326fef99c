"""Ranks with shards of different sizes end together; otherwise the collective of a step would hang."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import feedline
from feedline import DataLoader, Loader
from feedline.datasets import TarDataset
from feedline.errors import BadOption
from feedline.system.ranks import Tail
from tests.datasets.formats.tar.writing import write_shards
from tests.rank_processes import run_ranks

SIZES = (40, 3, 17, 2, 31, 9, 22, 1)
COUNT = sum(SIZES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder, SIZES)
    return folder


# Any, throughout: batches and states.
def make(folder: Path, shard: Any, workers: int = 0, **options: Any) -> Any:
    dataset = TarDataset(str(folder / "shard-*.tar"), "cls").stream(**options)
    engine: Any = "thread" if workers else "inline"
    return Loader(dataset, 4, workers=workers, engine=engine, shard=shard)


def steps_of(loader: Any) -> list[list[int]]:
    """Run an epoch like a training loop, with a collective of all ranks in every step."""
    found = []
    for batch in loader:
        present = torch.ones(1)
        dist.all_reduce(present)  # hangs, so the test fails, if a rank has no batch left
        assert present.item() == dist.get_world_size()
        found.append(np.asarray(batch).tolist())
    return found


def two_epochs(rank: int, world_size: int, folder: Path, shard: str, workers: int) -> Any:
    loader = make(folder, shard, workers)
    epochs = [steps_of(loader), steps_of(loader)]
    own = [np.asarray(batch).tolist() for batch in make(folder, None, workers)]
    state = loader.state_dict()
    loader.close()
    return epochs, own, state


@pytest.mark.parametrize(("world_size", "workers"), [(2, 2), pytest.param(4, 0, marks=pytest.mark.slow)])
def test_drop_ends_all_ranks_with_the_shortest(folder: Path, world_size: int, workers: int) -> None:
    reports = run_ranks(world_size, folder, two_epochs, "drop", workers)
    least = min(len(own) for _, own, _ in reports)
    assert max(len(own) for _, own, _ in reports) > least, "shards are uneven"
    for epochs, own, state in reports:
        assert epochs == [own[:least], own[:least]]
        assert state["ended"]
        assert state["epoch"] == 1


@pytest.mark.parametrize(("world_size", "workers"), [(2, 0), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_pad_makes_finished_ranks_repeat_their_first_batch(folder: Path, world_size: int, workers: int) -> None:
    reports = run_ranks(world_size, folder, two_epochs, "pad", workers)
    most = max(len(own) for _, own, _ in reports)
    for epochs, own, _ in reports:
        assert epochs == [own + own[:1] * (most - len(own))] * 2


def too_few_samples(rank: int, world_size: int, folder: Path, shard: Tail) -> Any:
    dataset = TarDataset(str(folder / "shard-003.tar"), "cls").stream()  # two samples: one for each of two ranks
    return steps_of(Loader(dataset, 4, shard=shard))


@pytest.mark.parametrize("shard", ["drop", "pad"])
def test_a_rank_without_any_batch_repeats_one_of_another_or_all_end(folder: Path, shard: str) -> None:
    """With two samples for three ranks, the third repeats a batch of another rank, or all ranks end at once."""
    reports = run_ranks(3, folder, too_few_samples, shard)
    assert reports == ([[], [], []] if shard == "drop" else [[[60]], [[61]], [[60]]])


def resume(rank: int, world_size: int, folder: Path, shard: str, state: Any, steps: int | None) -> Any:
    loader = make(folder, shard, shuffle=True, buffer=7)
    if state is not None:
        loader.load_state_dict(state)
    found = steps_of(itertools.islice(loader, steps))
    states: list[Any] = [None] * world_size
    dist.all_gather_object(states, loader.state_dict())
    return found, feedline.merge_states(states)


def stop_while_padding(rank: int, world_size: int, folder: Path, workers: int) -> Any:
    """Stop while one rank repeats batches, and resume from its own state and from the merged one."""
    whole = steps_of(make(folder, "pad", workers))
    own = len(list(make(folder, None, workers)))
    counts: list[Any] = [None] * world_size
    dist.all_gather_object(counts, own)
    loader = make(folder, "pad", workers)
    steps = min(counts) + 2
    assert steps_of(itertools.islice(loader, steps)) == whole[:steps]
    state = loader.state_dict()
    loader.close()
    assert not state["ended"]
    states: list[Any] = [None] * world_size
    dist.all_gather_object(states, state)
    found = []
    for saved in (state, feedline.merge_states(states)):
        resumed = make(folder, "pad", workers)
        resumed.load_state_dict(saved)
        found.append((steps_of(resumed), resumed.state_dict()["epoch"]))
        resumed.close()
    return own, whole[steps:], found


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_from_a_state_saved_while_a_rank_repeats_batches(folder: Path, workers: int) -> None:
    reports = run_ranks(2, folder, stop_while_padding, workers)
    for own, rest, found in reports:
        has_own = own == max(other for other, _, _ in reports)
        for steps, epoch in found:
            assert len(steps) == len(rest)
            assert epoch == 0
            assert not has_own or steps == rest


def lose_a_peer(rank: int, world_size: int, folder: Path, shard: str, workers: int, device: str | None) -> Any:
    """Save a state after an exchange has failed, as it does when another rank has died, and resume from it."""

    def loader(shard: Any) -> Any:
        dataset = TarDataset(str(folder / "shard-*.tar"), "cls").stream()
        options: Any = {"num_workers": workers, "engine": "thread"} if workers else {}
        return DataLoader(dataset, 4, shard=shard, device=device, **options)

    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    whole = [batch.tolist() for batch in loader(None)]
    begun = loader(shard)
    batches = iter(begun)
    seen = [next(batches).tolist(), next(batches).tolist()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", fail)
        with contextlib.suppress(RuntimeError):
            seen += (batch.tolist() for batch in batches)
    resumed = loader(None)
    resumed.load_state_dict(begun.state_dict())
    return whole, seen + [batch.tolist() for batch in resumed]


@pytest.mark.parametrize(
    ("shard", "workers", "device"),
    [
        ("drop", 2, None),
        ("pad", 0, "cpu"),
        pytest.param("pad", 0, None, marks=pytest.mark.slow),
        pytest.param("drop", 2, "cpu", marks=pytest.mark.slow),
    ],
)
def test_a_batch_of_a_failed_exchange_is_not_lost(folder: Path, shard: str, workers: int, device: str | None) -> None:
    for whole, seen in run_ranks(2, folder, lose_a_peer, shard, workers, device):
        assert seen == whole


def test_a_single_rank_needs_no_process_group(folder: Path) -> None:
    for shard in ("drop", "pad"):
        assert sorted(number for batch in make(folder, shard) for number in batch) == list(range(COUNT))


def test_ranks_need_a_process_group(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadOption, match=r"shard='drop' lets 2 ranks end together.*init_process_group"):
        iter(make(folder, "drop"))


def test_exact_is_rejected_for_streams_that_split_themselves(folder: Path) -> None:
    with pytest.raises(BadOption, match=r"ShardStream.*'drop'.*'pad'"):
        make(folder, "exact")
