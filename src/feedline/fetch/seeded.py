"""Fetching with the generators of the process seeded for every sample.

Seeding three generators takes longer than many a sample. So a fetcher looks, for its first few tasks, whether anything
is drawn from them at all. If not, it stops seeding and only compares the generators' states once per task; should
something have been drawn after all, the batch is made again with seeding, and seeding stays on. What is delivered is
the same either way. Of streams, see `StreamSeeding`.
"""

from __future__ import annotations

from typing import Any, Protocol

from feedline.errors import SharedGenerators, tell
from feedline.fetch.asking import Asking
from feedline.randomness.draw_watch import DrawWatch, has_one_in_store
from feedline.randomness.scope import GlobalStates, Scope, globals_kept, seed_globals

_LOOKS = 4
"""Tasks after which a dataset that drew nothing is believed not to. Being wrong costs one batch that is made twice."""


class _States:
    """What the generators were before a batch that is expected to draw nothing."""

    def __init__(self) -> None:
        self._watch: DrawWatch | None = None
        self._marks: tuple[Any, ...] | None = None
        self._states: GlobalStates | None = None

    def note(self) -> bool:
        """Note what they are; False if that cannot be known.

        A number that a generator has in store is drawn without a trace; none gets there while nothing is drawn.
        """
        self._watch = self._watch or DrawWatch()
        marks = self._watch.marks()
        if marks != self._marks:
            if has_one_in_store():
                return False
            self._marks, self._states = marks, GlobalStates.now()
        return True

    def are_back(self) -> bool:
        """True if nothing was drawn; otherwise they are given back as they were."""
        assert self._watch is not None
        assert self._states is not None
        if self._watch.marks() == self._marks:
            return True
        self._states.restore()
        return False


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
        self._states = _States()

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
        if not self._states.note():
            return _DRAWN
        failure: Exception | None = None
        try:
            batch = self._make(indices)
        except Exception as exc:
            failure = exc
        if not self._states.are_back():
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
        for scope.place, item in enumerate(self._how.items(indices)):
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


class StreamSeeding:
    """Makes batches of a stream, whose samples draw from seeded generators, the same way.

    A sample of a stream cannot be asked for again. So if something was drawn after all, the stream is opened anew and
    read again up to the batch, with seeding, which stays on then. That costs time once.

    Args:
        fetcher: makes the batches.
        scope: told about each sample.
        may_look: False to seed for every sample, whatever happens: the stream cannot be opened anew.
    """

    def __init__(self, fetcher: Rereadable, scope: Scope, *, may_look: bool) -> None:
        self._fetcher = fetcher
        self._scope = scope
        self._looks: int | None = 0 if may_look and scope.seeds_globals else None
        """Batches that drew nothing so far; None if that is not looked for."""
        self._states = _States()

    def make(self, request: Any) -> Any:
        """Make the batch that is asked for."""
        if self._looks is not None and self._looks >= _LOOKS:
            batch = self._make_if_nothing_is_drawn(request)
            if batch is not _DRAWN:
                return batch
        with self._scope.kept():
            if self._looks is None:
                return self._fetcher.make(request)
            return self._look(request)

    def _look(self, request: Any) -> Any:
        """Make a batch with seeding, and see whether anything is drawn."""
        stream, scope = self._fetcher.stream, self._scope
        stream.looks, stream.drew = True, False
        try:
            batch = self._fetcher.make(request)
        finally:
            stream.looks = False
        drew = stream.drew or not GlobalStates.now().is_seeded_with(scope.key())
        self._looks = None if drew or self._looks is None else self._looks + 1
        return batch

    def _make_if_nothing_is_drawn(self, request: Any) -> Any:
        """Make a batch without seeding; if it turns out to draw something, go back and return `_DRAWN`."""
        scope, fetcher = self._scope, self._fetcher
        if not self._states.note():
            self._looks = None
            return _DRAWN
        place = fetcher.place()
        batch: Any = None
        failure: BaseException | None = None
        scope.seeds_globals = False
        try:
            batch = fetcher.make(request)
        except BaseException as exc:
            failure = exc
        finally:
            scope.seeds_globals = True
        if not self._states.are_back():
            self._looks = None
            with scope.kept():
                goes_back = fetcher.go_back(place)
            if goes_back and (failure is None or isinstance(failure, Exception)):
                return _DRAWN
            if not goes_back:
                self._tell()
        if failure is None:
            return batch
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame: no cycle for the garbage collector

    def _tell(self) -> None:
        tell(
            "The dataset has drawn random numbers for the first time after many samples, and its stream cannot be read "
            "again from the beginning. The numbers of one batch do not follow from the seed; those after it do. Draw "
            "from feedline.rng(), which follows from the seed at any time.",
            SharedGenerators,
        )


class Rereadable(Protocol):
    """Makes batches of a stream, and can go back to where it was before one."""

    stream: Any
    """What it reads: a `Stream`."""

    def make(self, request: Any) -> Any:
        """Make a batch."""

    def place(self) -> Any:
        """Return where it is."""

    def go_back(self, place: Any) -> bool:
        """Go back there, by opening the stream anew; False if that cannot be done, and then nothing has changed."""


_DRAWN = object()
