"""The process engine for systems that cannot share an arena, selected by pretending that this one cannot."""

import itertools
from typing import Any

import pytest

from feedline.loader.resources import Resources
from feedline.workers import abilities
from tests.parity import datasets
from tests.parity.sides import Parity, Side, same_in_processes


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


def test_batches_of_forked_workers(process_parity: Parity) -> None:
    process_parity.same(lambda side: list(build(side, datasets.Records(11), batch_size=3)))


# Workers that inherit nothing


@pytest.mark.slow
@same_in_processes
def test_batches_of_spawned_workers(side: Side) -> object:
    options = {"multiprocessing_context": "spawn", "persistent_workers": True}
    loader = side.loader(datasets.Records(11), batch_size=3, shuffle=True, **options)
    return list(loader), list(itertools.islice(loader, 1)), list(loader)
