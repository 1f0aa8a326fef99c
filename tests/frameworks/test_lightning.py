"""The parts of the adapter for Lightning that work without it. The others: tests/frameworks_real."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import feedline
from feedline.frameworks.lightning import _fetching, _saving
from feedline.loader.rebuilding import REBUILDING


def loop_over(loader: object) -> Any:
    """Return a fit loop that has fetched one batch more than it has trained on."""
    return SimpleNamespace(
        _combined_loader=SimpleNamespace(flattened=[loader]),
        epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(is_last_batch=False)),
        _data_fetcher=SimpleNamespace(_combined_loader=SimpleNamespace(flattened=[loader]), batches=[1]),
    )


def saved(loop: Any, state: dict[str, Any]) -> dict[str, Any]:
    return _saving(lambda _: state, feedline.DataLoader, REBUILDING)(loop)


def test_the_state_before_the_last_fetch_is_saved() -> None:
    loader = feedline.DataLoader(range(4), seed=1)
    loop, batches = loop_over(loader), iter(loader)
    next(batches)
    _fetching(lambda _: next(batches), feedline.DataLoader)(loop._data_fetcher)
    state = saved(loop, {"combined_loader": [loader.state_dict()]})
    assert state["combined_loader"][0]["order"]["consumed"] == 1


def test_loops_without_feedlines_loaders_are_saved_as_they_are() -> None:
    loop = loop_over(range(4))  # Lightning saves no states of loaders if none has any
    _fetching(lambda _: 0, feedline.DataLoader)(loop._data_fetcher)
    assert saved(loop, {"progress": 1}) == {"progress": 1}
