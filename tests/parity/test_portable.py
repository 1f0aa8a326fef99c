"""The process engine for systems that cannot share an arena, selected by pretending that this one cannot."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from feedline.delivery.driver.resources import Resources
from feedline.errors import WorkerDied, WorkerTimeout
from feedline.workers import abilities
from tests.parity import datasets
from tests.parity.sides import Parity, Side

pytestmark = pytest.mark.sample(8)


@pytest.fixture(autouse=True)
def _cannot_share_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "can_share_arenas", lambda: False)


def build(side: Side, *args: Any, **options: Any) -> Any:
    return side.loader(*args, **{"multiprocessing_context": "fork", **options})


def test_the_engine_is_the_portable_one(process_parity: Parity, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    choose = Resources._engine

    def noting(resources: Resources) -> Any:
        chosen.append(choose(resources))
        return chosen[-1]

    monkeypatch.setattr(Resources, "_engine", noting)
    loader = build(process_parity.feedline, datasets.Squares(4))
    assert len(list(loader)) == 4
    ((engine, arena),) = chosen
    assert type(engine).__name__ == "PortableEngine"
    assert arena is None
    stats = loader.stats()
    assert (stats["engine"], stats["batches"], stats["overflowed_batches"]) == ("process", 4, 0)


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"batch_size": None}, {"batch_size": 4, "shuffle": True}])
@pytest.mark.parametrize("dataset", [datasets.Records(11), datasets.Arrays(11), datasets.Bulk(11)])
def test_map_style_datasets(process_parity: Parity, dataset: Any, options: dict[str, Any]) -> None:
    process_parity.same(lambda side: list(build(side, dataset, **options)))


@pytest.mark.parametrize("dataset", [datasets.Sharded(11), datasets.Uneven([5, 0]), datasets.WorkerFieldsIterable()])
def test_iterable_datasets(process_parity: Parity, dataset: Any) -> None:
    process_parity.same(lambda side: list(build(side, dataset, batch_size=2)))


@pytest.mark.parametrize(
    "collate_fn",
    [
        datasets.as_list,
        datasets.pad,
        datasets.to_boxes,
        datasets.to_sparse,
        datasets.to_channels_last,
        datasets.to_empty,
    ],
)
def test_collate_functions(process_parity: Parity, collate_fn: Any) -> None:
    process_parity.same(lambda side: list(build(side, datasets.Squares(10), batch_size=4, collate_fn=collate_fn)))


def test_seeds_and_worker_info(process_parity: Parity) -> None:
    process_parity.same(lambda side: list(build(side, datasets.WorkerFieldsAndDraws(8), batch_size=2)))


@pytest.mark.parametrize("make", [datasets.value_error, datasets.key_error, datasets.unpicklable_error])
def test_exceptions_of_the_dataset(process_parity: Parity, make: Any) -> None:
    process_parity.same_failure(lambda side: list(build(side, datasets.Failing(make), batch_size=2)), "5")


def test_iteration_continues_after_a_failed_batch(process_parity: Parity) -> None:
    def code(side: Side) -> object:
        batches = iter(build(side, datasets.Failing(datasets.value_error), batch_size=2))
        seen: list[object] = []
        while True:
            try:
                seen.append(next(batches))
            except StopIteration:
                return seen
            except ValueError as exc:
                seen.append(type(exc).__name__)

    process_parity.same(code)


def test_leaving_early_and_iterating_again(process_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = build(side, datasets.Squares(10), batch_size=2)
        return list(itertools.islice(loader, 2)), list(loader)

    process_parity.same(code)


@pytest.mark.parametrize("dataset", [datasets.Squares(9), datasets.Sharded(9)])
def test_leaving_persistent_workers_early(process_parity: Parity, dataset: Any) -> None:
    def code(side: Side) -> object:
        loader = build(side, dataset, batch_size=2, persistent_workers=True)
        return list(loader), list(itertools.islice(loader, 1)), list(loader)

    process_parity.same(code)


def test_persistent_workers_keep_their_dataset(process_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = build(side, datasets.Counter(6), batch_size=2, persistent_workers=True)
        return list(loader), list(loader)

    process_parity.same(code)


@pytest.mark.slow
def test_two_loaders_at_once(process_parity: Parity) -> None:
    def code(side: Side) -> object:
        first = build(side, datasets.Squares(8), batch_size=2)
        second = build(side, datasets.Pairs(8), batch_size=2, persistent_workers=True)
        return list(zip(first, second, strict=True)), list(zip(second, first, strict=True))

    process_parity.same(code)


def test_a_killed_worker_raises_worker_died(process_parity: Parity, tmp_path: Any) -> None:
    loader = build(process_parity.feedline, datasets.Killed(tmp_path / "note"), batch_size=1, restarts=0)
    with pytest.raises(WorkerDied, match=r"pid\(s\) \d+\) exited unexpectedly.*SIGKILL"):
        list(loader)


def test_a_timeout_raises_worker_timeout(process_parity: Parity) -> None:
    loader = build(process_parity.feedline, datasets.StuckBriefly(2), batch_size=1, timeout=0.2)
    with pytest.raises(WorkerTimeout, match=r"timed out after 0\.2 seconds"):
        next(iter(loader))


# Workers that inherit nothing


def spawned(side: Side, *args: Any, **options: Any) -> Any:
    return side.loader(*args, multiprocessing_context="spawn", **options)


def map_style(side: Side) -> object:
    loader = spawned(side, datasets.Records(11), batch_size=3, shuffle=True, persistent_workers=True)
    return list(loader), list(itertools.islice(loader, 1)), list(loader)


def iterable(side: Side) -> object:
    return list(spawned(side, datasets.Sharded(11), batch_size=2))


def own_collate(side: Side) -> object:
    loader = spawned(side, datasets.Squares(10), batch_size=4, collate_fn=datasets.pad)
    return list(itertools.islice(loader, 1))


@pytest.mark.slow
@pytest.mark.parametrize("code", [map_style, iterable, own_collate])
def test_spawned_workers(process_parity: Parity, code: Callable[[Side], object]) -> None:
    process_parity.same(code)


@pytest.mark.slow
def test_an_exception_of_a_spawned_worker(process_parity: Parity) -> None:
    process_parity.same_failure(lambda side: list(spawned(side, datasets.Failing(datasets.two_arguments))), "5")


@pytest.mark.slow
def test_a_dataset_that_cannot_be_pickled(process_parity: Parity) -> None:
    process_parity.same_refusal(lambda side: list(spawned(side, datasets.Samples([lambda: 1]))))
