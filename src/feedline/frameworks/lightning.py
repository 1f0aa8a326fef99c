"""Save a loader's state in Lightning's checkpoints. Lightning knows three things that the loader itself does not.

It ends an epoch by counting batches, and never requests the one after the last; so this module marks the epoch as over.
It fetches one batch ahead of the one it trains on if there is no length; so the saved state is the one before that
fetch. It does not load the loader states of a checkpoint that was saved after an epoch; so they are loaded here.
Lightning handles batches, samplers, ranks and the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from feedline.abc.framework import Rebuilding
from feedline.abc.stateful import Stateful
from feedline.frameworks.substitution import wrapped
from feedline.system.optional import when_imported
from feedline.types import State


def keep_loaders(rebuilding: Rebuilding) -> None:
    """Make checkpoints save the position of loaders."""
    adapter = _Adapter(rebuilding)
    for package in ("lightning.pytorch", "pytorch_lightning"):
        when_imported(f"{package}.loops.fit_loop", adapter.wrap_loop)
        when_imported(f"{package}.loops.training_epoch_loop", adapter.wrap_epoch_loop)
        when_imported(f"{package}.loops.fetchers", adapter.wrap_fetcher)


class _Adapter:
    """What Lightning's loops do with loaders of feedline's. The last four methods take the original first."""

    def __init__(self, rebuilding: Rebuilding) -> None:
        self._rebuilding = rebuilding

    def wrap_loop(self, module: ModuleType) -> None:
        loop: Any = getattr(module, "_FitLoop", None)
        if hasattr(loop, "_load_combined_loader_states"):  # Lightning 2.2 and later, which save loader states
            loop.on_save_checkpoint = wrapped(loop.on_save_checkpoint, self.on_save_checkpoint)
            loop._load_combined_loader_states = wrapped(loop._load_combined_loader_states, self.load_states)

    def wrap_epoch_loop(self, module: ModuleType) -> None:
        loop: Any = getattr(module, "_TrainingEpochLoop", None)
        if hasattr(loop, "on_run_start"):
            loop.on_run_start = wrapped(loop.on_run_start, self.on_run_start)

    def wrap_fetcher(self, module: ModuleType) -> None:
        fetcher: Any = getattr(module, "_PrefetchDataFetcher", None)
        if fetcher is not None:
            fetcher.__next__ = wrapped(fetcher.__next__, self.fetch_next)

    def on_save_checkpoint(self, function: Callable[[object], State], loop: Any) -> State:
        loaders = _stateful(loop._combined_loader)
        is_over = loop.epoch_loop.batch_progress.is_last_batch
        for loader in loaders:
            if is_over and isinstance(loader, self._rebuilding.kind):
                self._rebuilding.end_epoch(loader)
        state = function(loop)
        fetcher = loop._data_fetcher
        states = getattr(fetcher, "feedline_states", {})
        if states and not is_over and getattr(fetcher, "batches", None):
            saved = zip(loaders, state["combined_loader"], strict=True)
            state["combined_loader"] = [states.get(id(loader), now) for loader, now in saved]
        return state

    def load_states(self, function: Callable[[object], None], loop: Any) -> None:
        states, loaders = loop._combined_loader_states_to_load, _stateful(loop._combined_loader)
        if states and all(isinstance(loader, self._rebuilding.kind) for loader in loaders):
            loop._combined_loader.feedline_loaded = states
            if not loop.restarting:
                loop._combined_loader._load_state_dicts(states)
                loop._combined_loader_states_to_load = []
        function(loop)

    def on_run_start(self, function: Callable[[Any, object], None], epoch_loop: Any, data_fetcher: Any) -> None:
        trainer, combined = epoch_loop.trainer, data_fetcher.combined_loader
        is_resuming = getattr(trainer.fit_loop, "is_resuming", False) or epoch_loop.restarting
        begins_again = trainer.current_epoch > 0 and not is_resuming
        if begins_again and hasattr(combined, "feedline_loaded") and hasattr(data_fetcher, "batches"):
            # Lightning calls `iter()` again before any batch, which would start the epoch after the resumed one.
            combined._load_state_dicts(combined.feedline_loaded)
        function(epoch_loop, data_fetcher)

    def fetch_next(self, function: Callable[[object], object], fetcher: Any) -> object:
        vars(fetcher._combined_loader).pop("feedline_loaded", None)
        if fetcher.batches:  # this call returns one of them and fetches another
            loaders = _stateful(fetcher._combined_loader)
            ours = [loader for loader in loaders if isinstance(loader, self._rebuilding.kind)]
            fetcher.feedline_states = {id(loader): loader.state_dict() for loader in ours}
        return function(fetcher)


def _stateful(combined: Any) -> list[Stateful]:
    """Return the loaders whose states a checkpoint contains, in the same order."""
    found = [] if combined is None else combined.flattened
    return [loader for loader in found if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")]
