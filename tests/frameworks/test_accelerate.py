"""The parts of the adapter for Accelerate that work without it. The others: tests/frameworks_real."""

from __future__ import annotations

from typing import Any

import feedline
from feedline.frameworks.accelerate import _Adapter
from feedline.loader.rebuilding import TorchRebuilding

ADAPTER = _Adapter(TorchRebuilding(feedline.DataLoader))


class Adapter:
    """Keeps the state of its loader as Accelerate's wrappers do."""

    use_stateful_dataloader = True

    def __init__(self, loader: Any) -> None:
        self.base_dataloader = loader
        self.dl_state_dict = {**loader.state_dict(), "_iterator_finished": False}

    def state_dict(self) -> Any:
        return self.dl_state_dict


def test_the_state_of_a_wrapper_is_the_loaders() -> None:
    loader = feedline.DataLoader(range(4), seed=1)
    wrapper = Adapter(loader)
    state = ADAPTER.state_dict(Adapter.state_dict, wrapper)
    assert state == loader.state_dict()
    assert "_iterator_finished" in wrapper.dl_state_dict  # unchanged: Accelerate goes on using it


def test_other_loaders_keep_their_state() -> None:
    wrapper = Adapter(feedline.Loader([1, 2], 1))
    assert ADAPTER.state_dict(Adapter.state_dict, wrapper) is wrapper.dl_state_dict
