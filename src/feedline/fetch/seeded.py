"""Fetching with the generators of the process seeded for every sample.

Seeding three generators takes longer than many a sample. So a fetcher looks, for its first few tasks, whether anything
is drawn from them at all. If not, it stops seeding and only compares the generators' states once per task; should
something have been drawn after all, the batch is made again with seeding, and seeding stays on. What is delivered is
the same either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from feedline.fetch.guard import Asking
from feedline.randomness.global_states import GlobalStates, globals_kept, seed_globals
from feedline.randomness.scope import Scope, Timed

_LOOKS = 4
"""Tasks after which a dataset that drew nothing is believed not to. Being wrong costs one batch that is made twice."""


class SeededFetcher:
    """Makes batches whose samples draw from seeded generators.

    Args:
        how: how the samples are asked for.
        scope: told about each sample.
    """

    def __init__(self, how: Asking, scope: Scope) -> None:
        self._how = how
        self._scope = scope
        self._looks: int | None = 0
        """Tasks that drew nothing so far; None once something was drawn."""
        self._states: GlobalStates | None = None
        """What the generators were before the last batch that was expected to draw nothing."""

    def __call__(self, indices: Any) -> Any:
        if self._looks is not None and self._looks >= _LOOKS:
            batch = self._make_if_nothing_is_drawn(indices)
            if batch is not _DRAWN:
                return batch
        if not self._scope.keeps_globals:
            return self._make_seeded(indices)
        with globals_kept():
            return self._make_seeded(indices)

    def _make_if_nothing_is_drawn(self, indices: Any) -> Any:
        """Make a batch without seeding; if it turns out to draw something, take it back and return `_DRAWN`."""
        before = self._states = GlobalStates.now(self._states)
        failure: Exception | None = None
        try:
            batch = self._make(indices)
        except Exception as exc:
            failure = exc
        if before.have_moved():
            before.restore()
            self._looks = None
            return _DRAWN
        if failure is None:
            return batch
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame: no cycle for the garbage collector

    def _make(self, indices: Any) -> Any:
        scope, ask = self._scope, self._how.ask
        samples = [ask(item) for item in scope.following(self._how.items(indices))]
        scope.collate()
        return self._how.join(samples)

    def _make_seeded(self, indices: Any) -> Any:
        scope, ask = self._scope, self._how.ask
        scope.begin_again()
        samples = []
        wanted = self._how.items(indices)
        items: Iterable[Any] = wanted if scope.slow is None else Timed(wanted, scope.slow)
        for scope.place, item in enumerate(items):
            seed_globals(scope.key())
            samples.append(ask(item))
        drew = bool(samples) and self._looks is not None and not GlobalStates.now().is_seeded_with(scope.key())
        scope.collate()
        if self._how.join_draws:
            seed_globals(scope.key())
        batch = self._how.join(samples)
        if self._looks is not None:
            if self._how.join_draws:
                drew = drew or not GlobalStates.now().is_seeded_with(scope.key())
            self._looks = None if drew else self._looks + 1
        return batch


_DRAWN = object()
