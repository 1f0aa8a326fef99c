"""The process engine for systems that cannot share an arena, selected by pretending that this one cannot."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from feedline.errors import WorkerTimeout
from feedline.loader.resources import Resources
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
    arenas, choose = [], Resources._engine

    def noting(resources: Resources, arena: Any) -> Any:
        engine: Any = choose(resources, arena)
        assert type(engine._transport).__name__ == "PipeTransport"
        arenas.append(arena)
        return engine

    monkeypatch.setattr(Resources, "_engine", noting)
    loader = build(process_parity.feedline, datasets.Squares(4))
    assert len(list(loader)) == 4
    assert arenas == [None]
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


def test_a_timeout_raises_worker_timeout(process_parity: Parity) -> None:
    loader = build(process_parity.feedline, datasets.Stuck(), batch_size=1, timeout=0.2)
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


@pytest.mark.slow
@pytest.mark.parametrize("code", [map_style, iterable])
def test_spawned_workers(process_parity: Parity, code: Callable[[Side], object]) -> None:
    process_parity.same(code)
