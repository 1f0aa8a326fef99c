"""Call a user's function for samples: each with its own random numbers, on threads if asked, with notes on errors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from zlib import crc32

from feedline.errors import BadOption, DataWarning, warn_user
from feedline.memory.sharing.records import NotARecord, encode
from feedline.pipes.cursor import Stopped
from feedline.pipes.lap import Draws, Samples
from feedline.randomness.global_states import GlobalStates, seed_globals
from feedline.randomness.keys import mix
from feedline.randomness.scope import Scope, current_scope, enter, stage
from feedline.system.failures import add_note

T = TypeVar("T")

Function = Callable[[Any], object]
"""A user's function: takes a sample. Any: the function knows what samples are."""

_LOOKS = 4
"""Calls without a draw after which a function is assumed not to draw."""
_SHOWN = 200
"""Characters of a sample that a note shows."""


def checked_function(operator: str, function: object) -> Function:
    """Return a function. Raises BadOption: it cannot be called."""
    if not callable(function):
        raise BadOption(f"{operator}({function!r}) needs a function that takes a sample.")
    return function


def name_of(function: object) -> str:
    """Return the name of a function, for people."""
    inner = getattr(function, "func", None)  # functools.partial
    found = getattr(function, "__name__", None) or getattr(inner, "__name__", None)
    return found or type(function).__name__


class Seeding:
    """Gives code that processes items the random numbers of each.

    `feedline.rng()` follows the items at no cost. The process-wide generators are seeded for each item as long as the
    code uses them. If it has not used them for a while, they are only watched, and seeded again
    once it does. The items in which it starts to use them draw arbitrary numbers: processing these items again could
    apply a function that changes samples twice.
    """

    def __init__(self) -> None:
        self._looks: int | None = 0
        """Calls that drew nothing so far; None once something was drawn."""
        self._states: GlobalStates | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_looks": self._looks, "_states": None}

    def run(self, items: list[T], draws: Draws, process: Callable[[Iterator[T]], Samples]) -> Samples:
        """Return what `process` makes from an iterator over the items."""
        scope = current_scope()
        if scope is None:
            return process(iter(items))
        if not (draws.seeds and scope.seeds_globals):
            return process(scope.walking(items, draws.numbers))
        if self._looks is not None and self._looks >= _LOOKS:
            before = self._states = GlobalStates.now(self._states)
            try:
                return process(scope.walking(items, draws.numbers))
            finally:
                if before.have_moved():
                    self._looks = None
                    if scope.keeps_globals:
                        before.restore()
        with scope.kept():
            made = process(_seeding(scope, items, draws))
            if self._looks is not None:
                has_drawn = not GlobalStates.now().is_seeded_with(scope.key())
                self._looks = None if has_drawn else self._looks + 1
            return made


def _seeding(scope: Scope, items: list[T], draws: Draws) -> Iterator[T]:
    for number, item in zip(draws.numbers, items, strict=True):
        scope.place = number
        seed_globals(scope.key())
        yield item


def agree(where: Hashable, label: str, first: int, values: Sequence[int]) -> None:
    """Compare with other workers what decides which samples a stream has: a value for each sample of the source.

    Raises:
        BadOption: another worker has found something else.
    """
    scope = current_scope()
    if scope is not None and scope.findings is not None:
        scope.findings.compare(where, label, first, values)


def warn_if_unequal(where: Hashable, name: str, first: int, samples: Samples) -> bool:
    """Warn if another worker has read other samples of an iterable dataset; return True if it has.

    Compares those at positions 0, 1, 2, 4, 8 and so on: a dataset may leave out or exchange only later ones.

    Args:
        where: identifies the stream.
        name: names the dataset.
        first: the position of the first sample.
        samples: the samples, at consecutive positions.
    """
    scope = current_scope()
    if scope is None or scope.findings is None:
        return False
    end = first + len(samples)
    place = 1 << (first - 1).bit_length() if first else 0
    while place < end:
        try:
            digest = crc32(encode(samples[place - first]))
        except NotARecord:  # pickles of equal samples may differ
            return False
        if not scope.findings.is_equal((where, place), digest):
            warn_user(
                f"A {name} does not yield the same samples in every worker thread, but each thread reads all of it "
                "and keeps its share: some samples may be missing, and others come twice. Threads share random, "
                "numpy.random and torch's generator: draw the order from feedline.rng(), or use engine='process'.",
                DataWarning,
            )
            return True
        place = 2 * place or 1
    return False


class Caller:
    """Calls a function for the samples of one operator.

    Args:
        label: names the operator in errors and in `loader.stats()`.
        function: called with each sample.
        salt: the number of the operator; each draws random numbers of its own.
        threads: how many calls may run at once; 0 to call the function on the caller's thread.
        filters: True to return whether the function is true, instead of its results.
    """

    def __init__(self, label: str, function: Function, salt: int, threads: int = 0, *, filters: bool = False) -> None:
        self._label = label
        self._filters = filters
        self._function = function
        self._salt = salt
        self._threads = threads
        self._seeding = Seeding()

    def __call__(self, items: Samples, draws: Draws, places: Sequence[int]) -> Samples:
        """Return the function's result for each item.

        Args:
            items: the samples.
            draws: their random numbers.
            places: their numbers in the source, for errors.

        Raises:
            Stopped: the function has raised an exception.
        """
        if not items:
            return []
        scope = current_scope()
        with stage(self._label):
            if self._threads and len(items) > 1:
                return self._in_threads(items, draws, places, scope)
            if scope is None:
                return self._each(iter(items), items, places)
            with salted(scope, self._salt, draws):
                return self._seeding.run(items, draws, lambda walk: self._each(walk, items, places))

    def _each(self, walk: Iterator[object], items: Samples, places: Sequence[int]) -> Samples:
        made: Samples = []
        try:
            results = map(self._function, walk)
            made.extend(map(bool, results) if self._filters else results)  # keeps what was made before a failure
            if len(made) < len(items):
                raise StopIteration  # raised by the function: `extend` takes it for the end
        except Exception as exc:
            at = len(items) - len(list(walk)) - 1
            raise self._stopped(exc, made, items, places, at) from None
        return made

    def _in_threads(self, items: Samples, draws: Draws, places: Sequence[int], scope: Scope | None) -> Samples:
        function, salt = self._function, self._salt

        def call(number: int) -> object:
            if scope is None:
                return function(items[number])
            with salted(scope, salt, draws):
                own = scope.apart(draws.numbers[number])
            before = enter(own)
            try:
                return function(items[number])
            finally:
                enter(before)

        made: Samples = []
        pool = ThreadPoolExecutor(min(self._threads, len(items)), thread_name_prefix="feedline-map")
        try:
            for result in pool.map(call, range(len(items))):
                made.append(result)
        except Exception as exc:
            raise self._stopped(exc, made, items, places, len(made)) from None
        finally:
            pool.shutdown(cancel_futures=True)
        return made

    def _stopped(self, exc: Exception, made: Samples, items: Samples, places: Sequence[int], at: int) -> Stopped:
        if isinstance(exc, StopIteration):  # would be taken for the end of the stream
            exc = RuntimeError(f"The function of {self._label} raised StopIteration.")
        add_note(exc, f"Raised by {self._label} for sample {places[at]} of its source: {_shown(items[at])}")
        return Stopped(exc, made, items[at : at + 1], items[at + 1 :])


class salted:  # noqa: N801  a context manager
    """Draw the random numbers of an operator, in one of several datasets, inside this context."""

    __slots__ = ("_before", "_salt", "_scope")

    def __init__(self, scope: Scope, salt: int, draws: Draws) -> None:
        self._scope, self._before = scope, 0
        self._salt = mix(draws.branch, salt) if draws.branch else salt

    def __enter__(self) -> None:
        self._before, self._scope.salt = self._scope.salt, self._salt

    def __exit__(self, *_: object) -> None:
        self._scope.salt = self._before


def _shown(sample: object) -> str:
    try:
        text = repr(sample)
    except Exception as exc:  # the user's own __repr__
        return f"a {type(sample).__name__} whose repr raised {type(exc).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
