"""Save a loader's state in Lightning's checkpoints. Lightning knows three things that the loader itself does not.

It ends an epoch by counting batches, and never requests the one after the last; so this module marks the epoch as over.
It fetches one batch ahead of the one it trains on if there is no length; so the saved state is the one before that
fetch. It does not load the loader states of a checkpoint that was saved after an epoch; so they are loaded here.
Lightning handles batches, samplers, ranks and the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from feedline.abc.framework import Rebuilding, TorchLoader
from feedline.abc.stateful import Stateful
from feedline.system.optional import when_imported
from feedline.types import State


def keep_loaders(kind: type[TorchLoader], rebuilding: Rebuilding) -> None:
    """Make checkpoints save the position of loaders of this class and its subclasses."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        when_imported(f"{package}.loops.fit_loop", functools.partial(_wrap_loop, kind, rebuilding))
        when_imported(f"{package}.loops.training_epoch_loop", _wrap_epoch_loop)
        when_imported(f"{package}.loops.fetchers", functools.partial(_wrap_fetcher, kind, rebuilding))


def _wrap_loop(kind: type[TorchLoader], rebuilding: Rebuilding, module: ModuleType) -> None:
    loop: Any = getattr(module, "_FitLoop", None)
    if hasattr(loop, "_load_combined_loader_states"):  # Lightning 2.2 and later, which save loader states
        loop.on_save_checkpoint = _saving(loop.on_save_checkpoint, kind, rebuilding)
        loop._load_combined_loader_states = _loading(loop._load_combined_loader_states, kind)


def _wrap_epoch_loop(module: ModuleType) -> None:
    loop: Any = getattr(module, "_TrainingEpochLoop", None)
    if hasattr(loop, "on_run_start"):
        loop.on_run_start = _starting(loop.on_run_start)


def _wrap_fetcher(kind: type[TorchLoader], rebuilding: Rebuilding, module: ModuleType) -> None:
    fetcher: Any = getattr(module, "_PrefetchDataFetcher", None)
    if fetcher is not None:
        fetcher.__next__ = _fetching(fetcher.__next__, kind)


def _saving(
    function: Callable[[object], State], kind: type[TorchLoader], rebuilding: Rebuilding
) -> Callable[[Any], State]:
    @functools.wraps(function)
    def on_save_checkpoint(self: Any) -> State:
        loaders = _stateful(self._combined_loader)
        is_over = self.epoch_loop.batch_progress.is_last_batch
        for loader in loaders:
            if is_over and isinstance(loader, kind):
                rebuilding.end_epoch(loader)
        state = function(self)
        fetcher = self._data_fetcher
        states = getattr(fetcher, "feedline_states", {})
        if states and not is_over and getattr(fetcher, "batches", None):
            saved = zip(loaders, state["combined_loader"], strict=True)
            state["combined_loader"] = [states.get(id(loader), now) for loader, now in saved]
        return state

    return on_save_checkpoint


def _loading(function: Callable[[object], None], kind: type[TorchLoader]) -> Callable[[object], None]:
    @functools.wraps(function)
    def _load_combined_loader_states(self: Any) -> None:
        states, loaders = self._combined_loader_states_to_load, _stateful(self._combined_loader)
        if states and all(isinstance(loader, kind) for loader in loaders):
            self._combined_loader.feedline_loaded = states
            if not self.restarting:
                self._combined_loader._load_state_dicts(states)
                self._combined_loader_states_to_load = []
        function(self)

    return _load_combined_loader_states


def _starting(function: Callable[[Any, object], None]) -> Callable[[Any, object], None]:
    @functools.wraps(function)
    def on_run_start(self: Any, data_fetcher: Any) -> None:
        loop, combined = self.trainer.fit_loop, data_fetcher.combined_loader
        begins_again = self.trainer.current_epoch > 0 and not (getattr(loop, "is_resuming", False) or self.restarting)
        if begins_again and hasattr(combined, "feedline_loaded") and hasattr(data_fetcher, "batches"):
            # Lightning calls `iter()` again before any batch, which would start the epoch after the resumed one.
            combined._load_state_dicts(combined.feedline_loaded)
        function(self, data_fetcher)

    return on_run_start


def _fetching(function: Callable[[object], object], kind: type[TorchLoader]) -> Callable[[Any], object]:
    @functools.wraps(function)
    def __next__(self: Any) -> object:  # noqa: N807
        vars(self._combined_loader).pop("feedline_loaded", None)
        if self.batches:  # this call returns one of them and fetches another
            loaders = [loader for loader in _stateful(self._combined_loader) if isinstance(loader, kind)]
            self.feedline_states = {id(loader): loader.state_dict() for loader in loaders}
        return function(self)

    return __next__


def _stateful(combined: Any) -> list[Stateful]:
    """Return the loaders whose states a checkpoint contains, in the same order."""
    found = [] if combined is None else combined.flattened
    return [loader for loader in found if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")]
