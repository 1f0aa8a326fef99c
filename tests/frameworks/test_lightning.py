"""The parts of the adapter for Lightning that work without it. The others: tests/frameworks_real."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import feedline
from feedline.frameworks.lightning import _Adapter
from feedline.loader.rebuilding import TorchRebuilding

ADAPTER = _Adapter(TorchRebuilding(feedline.DataLoader))


def loop_over(loader: object) -> Any:
    """Return a fit loop that has fetched one batch more than it has trained on."""
    return SimpleNamespace(
        _combined_loader=SimpleNamespace(flattened=[loader]),
        epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(is_last_batch=False)),
        _data_fetcher=SimpleNamespace(_combined_loader=SimpleNamespace(flattened=[loader]), batches=[1]),
    )


def saved(loop: Any, state: dict[str, Any]) -> dict[str, Any]:
    return ADAPTER.on_save_checkpoint(lambda _: state, loop)


def test_the_state_before_the_last_fetch_is_saved() -> None:
    loader = feedline.DataLoader(range(4), seed=1)
    loop, batches = loop_over(loader), iter(loader)
    next(batches)
    ADAPTER.fetch_next(lambda _: next(batches), loop._data_fetcher)
    state = saved(loop, {"combined_loader": [loader.state_dict()]})
    assert state["combined_loader"][0]["order"]["consumed"] == 1


def test_loops_without_feedlines_loaders_are_saved_as_they_are() -> None:
    loop = loop_over(range(4))  # Lightning saves no states of loaders if none has any
    ADAPTER.fetch_next(lambda _: 0, loop._data_fetcher)
    assert saved(loop, {"progress": 1}) == {"progress": 1}


def test_a_second_iter_before_the_first_batch_begins_the_resumed_epoch_again() -> None:
    """Lightning calls it after a checkpoint that was saved when an epoch had been validated."""
    loader, other = (feedline.DataLoader(range(4), seed=1, shuffle=True) for _ in range(2))
    epochs = [[int(batch) for batch in loader] for _ in range(2)]
    loop = loop_over(other)
    loop.restarting = False
    loop._combined_loader._load_state_dicts = lambda states: other.load_state_dict(states[0])
    loop._combined_loader_states_to_load = [loader.state_dict()]
    following = [int(batch) for batch in loader]
    ADAPTER.load_states(lambda _: None, loop)
    iter(other)
    fetcher = SimpleNamespace(combined_loader=loop._combined_loader, _combined_loader=loop._combined_loader, batches=[])
    epoch_loop = SimpleNamespace(trainer=SimpleNamespace(fit_loop=loop, current_epoch=2), restarting=False)
    begun: list[Any] = []

    def start(*_: Any) -> None:
        begun.append(iter(other))

    ADAPTER.on_run_start(start, epoch_loop, fetcher)
    assert [int(batch) for batch in begun.pop()] == following
    ADAPTER.fetch_next(lambda _: None, fetcher)
    ADAPTER.on_run_start(start, epoch_loop, fetcher)
    assert [int(batch) for batch in begun.pop()] not in (*epochs, following)
