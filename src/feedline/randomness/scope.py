"""The random numbers of the sample that is being made right now.

Every sample has a key of its own (see `Draw`), so what it draws depends on neither worker, engine, nor the samples
before it. `rng()` gives it a generator made from that key. If the loader has a seed, the generators that belong to the
whole process (`random`, `numpy.random`, torch's default) are seeded from the key too, before each sample; a dataset
that knows nothing of feedline then becomes reproducible as well.

A scope belongs to one worker; which one is current is a matter of the thread. Generators of the process cannot be
shared among threads, so thread workers leave them alone.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np

from feedline.randomness.keys import mix
from feedline.types import Draw

_COLLATE = 1 << 62
"""Stands in for a place: what the collate function draws is apart from what its samples draw."""
_OPEN = 1 << 63
"""Stands in for a batch: what is drawn when a stream is opened."""


class Scope:
    """Where one worker is: which batch, which sample of it."""

    __slots__ = (
        "_collated",
        "_count",
        "_draw",
        "_drawn_for",
        "_generator",
        "_items",
        "_place",
        "keeps_globals",
        "seeds_globals",
    )

    def __init__(self, *, seeds_globals: bool = False, keeps_globals: bool = False) -> None:
        self._place = 0
        self._items: Any = None
        self._count = 0
        self._collated = 0
        self.seeds_globals = seeds_globals
        self.keeps_globals = keeps_globals
        """True if the generators of the process are the training loop's own, and given back as they were."""
        self._draw = Draw(0)
        self._generator: np.random.Generator | None = None
        self._drawn_for: int | None = None

    def begin(self, draw: Draw) -> None:
        """Begin a task."""
        self._draw = draw
        self._place = 0
        self._items = None
        self._drawn_for = None

    @property
    def place(self) -> int:
        """The number of the sample in its task, or in its stream; -1 while collating."""
        return self._place if self._items is None else self._count - self._items.__length_hint__() - 1

    @place.setter
    def place(self, place: int) -> None:
        self._place = place
        self._items = None

    def following(self, items: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
        """Return an iterator over what is asked for; how far it is tells the place, at no cost unless it is needed."""
        self._count = len(items)
        iterator = self._items = iter(items)
        return iterator

    def apart(self, place: int) -> Scope:
        """Return a scope for one sample of the task alone, which is made at the same time as others."""
        scope = Scope()
        scope.begin(self._draw)
        scope.place = place
        return scope

    def begin_again(self) -> None:
        """Begin the same task once more: what its samples draw is drawn anew."""
        self.begin(self._draw)

    def begin_sample_again(self) -> None:
        """Begin the same sample once more: what it draws is drawn anew."""
        self._drawn_for = None
        if self.seeds_globals:
            seed_globals(self.key())

    def collate(self, number: int | None = None, *, draws: bool = True) -> None:
        """Note that samples are being collated; of a stream, the batch that `number` tells from others.

        Args:
            number: tells the batch of a stream from others.
            draws: False if the collate function is known to draw nothing.
        """
        self._collated = self._draw.first if number is None else number
        self.place = -1
        if draws and number is not None and self.seeds_globals:
            seed_globals(self.key())

    def open(self) -> None:
        """Note that a stream is being opened: a dataset may put its files in random order then."""
        self.collate(_OPEN)

    def kept(self) -> AbstractContextManager[None]:
        """Give the generators of the process back afterwards, if they are seeded here and not one's own."""
        return globals_kept() if self.seeds_globals and self.keeps_globals else nullcontext()

    def key(self) -> int:
        """Return the key of the current sample."""
        draw, place = self._draw, self.place
        if place < 0:
            return mix(mix(draw.key, self._collated), _COLLATE)
        return mix(draw.key, draw.first + draw.stride * place)

    def _reference_count(self) -> int:
        return sys.getrefcount(self._generator)

    def generator(self) -> np.random.Generator:
        """Return the generator of the current sample: the same object, going on, however often it is asked for."""
        generator = self._generator
        place = self.place
        if generator is not None and self._drawn_for == place:
            return generator
        if generator is None or self._reference_count() > _NOT_KEPT:  # somebody keeps it: it stays as it is
            generator = self._generator = np.random.Generator(np.random.PCG64(0))
        self._drawn_for = place
        key = self.key()
        generator.bit_generator.state = {  # ten times quicker than making a generator
            "bit_generator": "PCG64",
            "state": {"state": key << 64 | mix(key, 0), "inc": _INCREMENT},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return generator


def _references_of_our_own() -> int:
    """Count the references to a generator that nobody keeps; Python's versions count differently."""
    scope = Scope()
    generator = scope.generator()
    count = scope._reference_count()
    del generator
    return count


_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F
"""Any odd number: all generators go through one sequence of 2^128 numbers, each from a place of its own."""

_NOT_KEPT = _references_of_our_own()


_of_task: ContextVar[Scope | None] = ContextVar("feedline sample", default=None)
"""The scope of a sample that is made by a coroutine, among others on the same thread."""


class _Current(threading.local):
    scope: Scope | None = None
    ordinary: np.random.Generator | None = None


_current = _Current()


def rng() -> np.random.Generator:
    """Return the NumPy generator of the sample that is being made.

    Inside a dataset, transform or collate function that a loader calls, it follows from the loader's seed, the epoch
    and the place of the sample, and from nothing else: engines and numbers of workers do not matter. Ask for it in
    every call instead of keeping it. Outside a loader it is an ordinary generator.

    Example:
        >>> import feedline
        >>> bool(0.0 <= feedline.rng().random() < 1.0)
        True
    """
    scope = _current.scope
    if scope is None:
        scope = _of_task.get()
    if scope is not None:
        return scope.generator()
    if _current.ordinary is None:
        _current.ordinary = np.random.default_rng()
    return _current.ordinary


def is_in_loader() -> bool:
    """True while a loader of feedline has a dataset do something on this thread."""
    return _current.scope is not None or _of_task.get() is not None


def enter(scope: Scope | None) -> Scope | None:
    """Make `scope` the current one of this thread; returns the one before it, to be entered again afterwards."""
    before, _current.scope = _current.scope, scope
    return before


def enter_task(scope: Scope | None) -> Scope | None:
    """Make `scope` the current one of the coroutine that calls this, and of the threads that it has work done by.

    Returns the one before it, to be entered again afterwards.
    """
    before = _of_task.get()
    _of_task.set(scope)
    return before


# The method of the class below Random: Random.seed itself accepts strings and the like, which takes longer.
python_generator = random.random.__self__  # type: ignore[attr-defined]  # the generator behind the functions of the module
_seed_python = super(random.Random, python_generator).seed


def seed_globals(key: int) -> None:
    """Seed the generators of the process."""
    _seed_python(key)
    python_generator.gauss_next = None
    np.random.seed(key & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)


class GlobalStates:
    """What the generators of the process are at: compared, and given back."""

    __slots__ = ("_normal", "_numpy", "_python", "_torch")

    # Any: bytes, or what the generator's own functions make of its state, slowly; a tensor.
    def __init__(self, python: Any, normal: float | None, numpy: Any, torch: Any) -> None:
        self._python = python
        self._normal = normal
        """The normal number that Python has made and not handed out yet."""
        self._numpy = numpy
        self._torch = torch

    @classmethod
    def now(cls) -> GlobalStates:
        """Return the states of this moment."""
        torch = sys.modules.get("torch")
        state = None if torch is None else torch.default_generator.get_state()
        return cls(_python_state(), python_generator.gauss_next, _numpy_state(), state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GlobalStates):
            return NotImplemented
        return not self.differing(other)

    __hash__ = None  # type: ignore[assignment]  # it is compared, not looked up

    def differing(self, other: GlobalStates) -> list[str]:
        """Name the generators whose states differ."""
        mine, theirs = self._torch, other._torch
        same = {
            "random": self._python == other._python and self._normal == other._normal,
            "numpy.random": self._numpy == other._numpy,
            "torch": mine is theirs or (mine is not None and theirs is not None and mine.equal(theirs)),
        }
        return [name for name, is_same in same.items() if not is_same]

    def is_seeded_with(self, key: int) -> bool:
        """True if this is what seeding leaves behind: nothing was drawn since. The generators are seeded for this."""
        seed_globals(key)
        return self == GlobalStates.now()

    def restore(self) -> None:
        """Give the generators back as they were."""
        if _PYTHON is None:
            random.setstate(self._python)
        else:
            _PYTHON.raw = self._python
            python_generator.gauss_next = self._normal
        if type(self._numpy) is bytes:
            np.random.set_state(pickle.loads(self._numpy))
        else:
            generator, words, store = self._numpy
            if generator is not np.random.get_bit_generator():  # type: ignore[attr-defined]
                np.random.set_bit_generator(generator)  # type: ignore[attr-defined]  # exchanged meanwhile
            _twister_of(generator).raw = words
            _STORE.raw = store
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)


def numpy_has_one_in_store() -> bool:
    """True if NumPy has made a normal number that it has not handed out: the next one will not move its generator."""
    if _STORE is None:
        return bool(np.random.get_state(legacy=False)["has_gauss"])  # takes 80 microseconds
    return _STORE.raw[0] != 0


# The states of Python's and NumPy's generators are read and written where these keep them, in a tenth of a microsecond;
# their own functions take 20 and 160 for it. Nothing is touched unless it is sure what lies there.

TWISTER_BYTES = 625 * 4
"""What a Mersenne Twister consists of: 624 words, and the place in them."""


# Any, below: an array of ctypes, whose type is made on the spot.
def bytes_at(address: int, size: int) -> Any:
    """Return memory, as it is whenever `raw` is asked for."""
    return (ctypes.c_char * size).from_address(address)


def _python_state() -> Any:
    return random.getstate() if _PYTHON is None else _PYTHON.raw


def _numpy_state() -> Any:
    """Return the state of NumPy's global generator: the generator, its words and what it has in store, or a pickle."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # NumPy's stubs forget it
    twister = None if _STORE is None else _twister_of(generator)
    if twister is None:
        return pickle.dumps(np.random.get_state(legacy=False))
    return generator, twister.raw, _STORE.raw


_last_twister: tuple[Any, Any] = (None, None)


def _twister_of(generator: Any) -> Any:
    """Return the words of a bit generator of NumPy's; None if it is not the one that NumPy comes with."""
    global _last_twister
    known, words = _last_twister
    if known is not generator:
        is_twister = type(generator) is np.random.MT19937
        words = bytes_at(generator.ctypes.state_address, TWISTER_BYTES) if is_twister else None
        _last_twister = generator, words
    return words


def _address_of(generator: random.Random) -> int | None:
    """Return where a generator keeps its place and its 624 words; None unless it is sure that they are there."""
    if sys.implementation.name != "cpython" or type(generator).__basicsize__ < object.__basicsize__ + TWISTER_BYTES:
        return None
    address = id(generator) + object.__basicsize__
    words = np.frombuffer(ctypes.string_at(address, TWISTER_BYTES), np.uint32).tolist()
    return address if (*words[1:], words[0]) == generator.getstate()[1] else None


def _store_of_numpy() -> Any:
    """Return where NumPy's global generator keeps a normal number, after whether it has one; None unless it is sure."""
    generator, likewise = np.random.get_state.__self__, np.random.RandomState(0)  # type: ignore[attr-defined]
    likewise.standard_normal()  # it makes two and keeps the second
    kept = struct.pack("@ixxxxd", 1, likewise.get_state(legacy=False)["gauss"])
    if sys.implementation.name != "cpython" or type(generator) is not type(likewise):
        return None
    offset = ctypes.string_at(id(likewise), type(likewise).__basicsize__).find(kept)
    likewise.standard_normal()
    is_sure = offset > 0 and ctypes.string_at(id(likewise) + offset, len(kept)) == bytes(len(kept))
    return bytes_at(id(generator) + offset, len(kept)) if is_sure else None


PYTHON_ADDRESS = _address_of(python_generator)
_PYTHON = None if PYTHON_ADDRESS is None else bytes_at(PYTHON_ADDRESS, TWISTER_BYTES)
_STORE = _store_of_numpy()


@contextmanager
def globals_kept() -> Iterator[None]:
    """Give the generators of the process back as they were."""
    states = GlobalStates.now()
    try:
        yield
    finally:
        states.restore()
