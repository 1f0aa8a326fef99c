"""The random numbers of the current sample.

Every sample has its own key (see `Draw`), so its random numbers depend on neither the worker, the engine, nor earlier
samples. `rng()` returns a generator made from that key. If the loader has a seed, the process-wide generators
(`random`, `numpy.random`, torch's default) are also seeded from the key before each sample; this makes a dataset that
does not use feedline reproducible as well.

A scope belongs to one worker; the current scope depends on the thread. Threads cannot share process-wide generators,
so thread workers leave them alone.

A scope also measures how long the current task spends in each stage, for `feedline.insight`: in fetching and collating,
and in the steps that a dataset names with `stage`.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from feedline.randomness.global_states import UNCHANGED, OwnGenerators, globals_kept, seed_globals
from feedline.randomness.keys import mix
from feedline.types import Draw

if TYPE_CHECKING:
    from feedline.randomness.agreement import Findings

_COLLATE = 1 << 62
"""Used in place of a position: the collate function draws other numbers than its samples."""
_OPEN = 1 << 63
"""Used in place of a batch: for numbers drawn while a stream is opened."""

T = TypeVar("T")
Items: TypeAlias = "list[object] | tuple[object, ...]"

_NO_DRAW = Draw(0)


ranges: Callable[[str], AbstractContextManager[object]] | None = None
"""Shows a range in a profiler while one is running, such as torch's `record_function`; set by the torch loader."""


class Scope:
    """The position of one worker: its batch, and the sample in it."""

    __slots__ = (
        "_collated",
        "_count",
        "_draw",
        "_drawn_for",
        "_generator",
        "_items",
        "_numbers",
        "_place",
        "_range",
        "collating",
        "findings",
        "is_common",
        "is_timed",
        "keeps_globals",
        "packed",
        "salt",
        "seeds_globals",
        "slow",
        "stages",
        "unfit",
    )

    def __init__(self, *, seeds_globals: bool = False, keeps_globals: bool = False) -> None:
        self._place = 0
        self._items: Any = None
        self._numbers: Sequence[int] | None = None
        self._count = 0
        self._collated: int | None = None
        self.salt = 0
        """The operator of a pipe that is running, so that each draws its own numbers; 0 outside of a pipe."""
        self.seeds_globals = seeds_globals
        self.is_common = False
        """True while all ranks draw the same numbers: an opening stream may shuffle files that it splits over ranks."""
        self.keeps_globals = keeps_globals
        """True if the process-wide generators belong to the training loop, and must be restored."""
        self.findings: Findings | None = None
        """What workers that are threads must agree about; None if there are no others."""
        self._draw: Draw | Callable[[], Draw] = _NO_DRAW
        self._generator: np.random.Generator | None = None
        self._drawn_for: tuple[int, int] | None = None
        """Position and salt of the sample that the generator belongs to."""
        self._range: AbstractContextManager[object] | None = None
        """The current stage in a profiler."""
        self.is_timed = False
        """True to record when collating begins."""
        self.collating = 0
        """When collating last began, in nanoseconds, if `is_timed`."""
        self.stages: dict[str, int] = {}
        """Nanoseconds that the task spent in each named stage."""
        self.packed = (0, 0)
        """Of packed rows that the task has made: their tokens, and the tokens and padding together."""
        self.slow: list[tuple[int, object]] | None = None
        """Nanoseconds that each sample of the task took, and its index; None if samples are not timed."""
        self.unfit: list[object] | None = None
        """The samples that the default collate function failed on, until a note on the exception describes them."""

    def begin(self, draw: Draw | Callable[[], Draw]) -> None:
        """Begin a task. A callable `draw` is called when something is drawn, which most tasks do not do."""
        self._draw = draw
        self._place = 0
        self._items = self._numbers = None
        self._drawn_for = None

    def end(self) -> None:
        """End the task, and release its draw with the order and dataset that it may refer to."""
        self._draw = _NO_DRAW
        if self._range is not None:
            self.show(None)

    def show(self, stage: str | None) -> None:
        """Show in a profiler that a stage begins and the last one has ended; None for no further stage."""
        shown, self._range = self._range, None
        if shown is not None:
            shown.__exit__(None, None, None)
        if stage is not None and ranges is not None:
            self._range = ranges(f"feedline: {stage}")
            self._range.__enter__()

    @property
    def place(self) -> int:
        """The position of the sample in its task, or in its stream; -1 while collating."""
        items = self._items
        if items is None:
            return self._place
        if self._numbers is not None:
            number: int = self._numbers[self._count - items.__length_hint__() - 1]
            return number
        return self._count + len(items) if type(items) is list else self._count - items.__length_hint__() - 1

    @place.setter
    def place(self, place: int) -> None:
        self._place = place
        self._items = self._numbers = None

    def following(self, items: Items) -> Iterator[object]:
        """Return an iterator over the items. Its progress gives `place`, which costs nothing unless it is read."""
        self._count = len(items)
        self._numbers = None
        iterator = self._items = iter(items) if self.slow is None else Timed(items, self.slow)
        return iterator

    def walking(self, items: list[T], numbers: Sequence[int]) -> Iterator[T]:
        """Return an iterator over items that have these positions; its progress gives `place`."""
        iterator = iter(items)
        if items:
            self._count, self._numbers, self._items = len(items), numbers, iterator
        return iterator

    def reading(self, samples: list[object], first: int) -> None:
        """Note that samples of a stream, from position `first` on, are appended to a list: its length gives `place`.

        A list that is extended by an iterator grows with every sample, before the next one is requested.
        """
        self._count = first
        self._numbers = None
        self._items = samples

    def apart(self, place: int) -> Scope:
        """Return a scope for one sample of the task, which is made concurrently with others."""
        scope = Scope()
        scope.salt = self.salt
        if not isinstance(self._draw, Draw):
            self._draw = self._draw()  # coroutines may outlive the task, and must not keep the order alive
        scope.begin(self._draw)
        scope.place = place
        scope.stages = self.stages
        return scope

    def begin_again(self) -> None:
        """Begin the same task again: its samples draw the same numbers again."""
        self.begin(self._draw)

    def begin_sample_again(self) -> None:
        """Begin the same sample again: it draws the same numbers again."""
        self._drawn_for = None
        if self.seeds_globals:
            seed_globals(self.key())

    def collate(self, number: int | None = None, *, draws: bool = True) -> None:
        """Note that samples are being collated: of batch `number` of a stream, by a function that may draw."""
        self._collated = number
        self._place, self._items, self._numbers = -1, None, None
        if self._range is not None:
            self.show("collate")
        if self.is_timed:
            self.collating = time.monotonic_ns()
        if draws and number is not None and self.seeds_globals:
            seed_globals(self.key())

    def open(self) -> None:
        """Note that a stream is being opened: a dataset may shuffle its files now."""
        self.is_common = True
        self.collate(_OPEN)

    def part(self, *, seeds: bool) -> None:
        """Make this rank draw other numbers than the other ranks from now on, on request from global generators too."""
        common, self.is_common = self.key(), False
        if seeds and self.key() != common:
            seed_globals(self.key())

    def kept(self) -> AbstractContextManager[None]:
        """Restore the process-wide generators afterwards, if they are seeded here and belong to the training loop."""
        return globals_kept() if self.seeds_globals and self.keeps_globals else UNCHANGED

    def own_generators(self) -> AbstractContextManager[None]:
        """Return a context that continues the process-wide generators from here, if this scope seeds them."""
        return OwnGenerators(keeps=self.keeps_globals) if self.seeds_globals else UNCHANGED

    def key(self) -> int:
        """Return the key of the current sample."""
        draw, place = self._draw, self.place
        if not isinstance(draw, Draw):
            draw = self._draw = draw()
        first = 0 if self.is_common else draw.first
        if place < 0:
            return mix(mix(draw.key, first + (self._collated or 0)), _COLLATE)
        key = mix(draw.key, first + draw.stride * place)
        return mix(key, self.salt) if self.salt else key

    def generator(self) -> np.random.Generator:
        """Return the generator of the current sample: the same object, with its progress, on every call."""
        generator = self._generator
        place = self.place, self.salt
        if generator is not None and self._drawn_for == place:
            return generator
        if generator is None:
            generator = self._generator = np.random.Generator(np.random.PCG64(0))
        self._drawn_for = place
        key = self.key()
        generator.bit_generator.state = {  # ten times faster than making a generator
            "bit_generator": "PCG64",
            "state": {"state": key << 64 | mix(key, 0), "inc": _INCREMENT},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return generator


class Timed(Iterator[object]):
    """An iterator over items that appends the time until the next one is requested, and the item, to `took`."""

    def __init__(self, items: Items, took: list[tuple[int, object]]) -> None:
        self._left = iter(items)
        self._took = took
        self._begun = 0
        self._item: object = None

    def __next__(self) -> object:
        now = time.monotonic_ns()
        if self._begun:
            self._took.append((now - self._begun, self._item))
        self._item = next(self._left)
        self._begun = now
        return self._item

    def __length_hint__(self) -> int:
        return operator.length_hint(self._left)


_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F
"""Any odd number: all generators use the same sequence of 2^128 numbers, each from its own position."""


_of_task: ContextVar[Scope | None] = ContextVar("feedline sample", default=None)
"""The scope of a sample that a coroutine makes, among others on the same thread."""


class _Current(threading.local):
    scope: Scope | None = None
    ordinary: np.random.Generator | None = None


_current = _Current()


def rng() -> np.random.Generator:
    """Return the NumPy generator of the current sample.

    Inside a dataset, transform or collate function that a loader calls, it depends only on the loader's seed, the epoch
    and the position of the sample, not on the engine or the number of workers. Call this function each time: a result
    that you keep is that of later samples as well. Outside a loader it is an ordinary generator.

    Example:
        >>> import feedline
        >>> bool(0.0 <= feedline.rng().random() < 1.0)
        True
    """
    scope = current_scope()
    if scope is not None:
        return scope.generator()
    if _current.ordinary is None:
        _current.ordinary = np.random.default_rng()
    return _current.ordinary


def current_scope() -> Scope | None:
    """Return the scope of the sample that is being made on this thread; None outside a loader."""
    return _current.scope or _of_task.get()


def is_in_loader() -> bool:
    """True while a feedline loader is running a dataset's code on this thread."""
    return current_scope() is not None


def enter(scope: Scope | None) -> Scope | None:
    """Make `scope` the current one of this thread; returns the previous one, to be entered again afterwards."""
    before, _current.scope = _current.scope, scope
    return before


def enter_task(scope: Scope | None) -> Scope | None:
    """Make `scope` the current one of the calling coroutine, and of threads that run work for it.

    Returns the previous one, to be entered again afterwards.
    """
    before = _of_task.get()
    _of_task.set(scope)
    return before


TRANSFORM = "transform"
"""The stage of everything done to a sample after it was read. feedline's sources and transforms name it themselves."""


class stage:  # noqa: N801  a context manager, which users call
    """Name a step of a dataset inside a context: `loader.stats()` shows its time as a separate stage.

    A stage nested inside itself counts once. Costs about a microsecond. Does nothing outside a loader.

    Args:
        name: of the stage, such as "decode"; "transform" is the loader's own name for everything done to a sample after
            it was read.

    Example:
        >>> import feedline
        >>> class Squares:
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         with feedline.stage("square"):
        ...             return index * index
        >>> loader = feedline.Loader(Squares(), 2)
        >>> batches = list(loader)
        >>> loader.stats().epoch.stages["square"].count
        2
    """

    __slots__ = ("_begun", "_name", "_scope")

    def __init__(self, name: str) -> None:
        self._name = name
        self._scope: Scope | None = None
        self._begun = 0

    def __enter__(self) -> None:
        scope = current_scope()
        # A negative number means that it is already entered, further up the stack.
        if scope is None or scope.stages.get(self._name, 0) < 0:
            return
        self._scope = scope
        scope.stages[self._name] = ~scope.stages.get(self._name, 0)
        self._begun = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            spent = time.monotonic_ns() - self._begun
            scope.stages[self._name] = ~scope.stages.get(self._name, -1) + spent
