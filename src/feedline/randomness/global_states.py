"""The process-wide generators: `random`, `numpy.random`, torch's default.

All three are Mersenne Twisters: 624 words, a position in them, and perhaps a normal number that was generated but not
returned yet. Their own functions take 200 microseconds to get and set that state, which is longer than many batches
take. So feedline reads the state, and for Python and NumPy writes it, directly in their memory, unless the layout is
uncertain.

A twister moves its position with every number, and changes all its words before it reaches the same position again. So
the position and a few words, its mark, show whether anything was drawn. One case goes unnoticed: a program that draws
and then restores the generator.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np

# The method of Random's base class: Random.seed itself accepts strings and the like, which takes longer.
_python = random.random.__self__  # type: ignore[attr-defined]  # the generator behind the module's functions
_seed_python = super(random.Random, _python).seed


def seed_globals(key: int) -> None:
    """Seed the process-wide generators."""
    _seed_python(key)
    _python.gauss_next = None
    np.random.seed(key & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)


class GlobalStates:
    """The states of the process-wide generators, to be compared and restored."""

    __slots__ = ("_mark", "_normal", "_numpy", "_python", "_torch")

    # Any: bytes, or the result of the generator's own functions; a tensor.
    def __init__(self, mark: object, python: Any, normal: float | None, numpy: Any, torch: Any) -> None:
        self._mark = mark
        self._python = python
        self._normal = normal
        """The normal number that Python has generated but not returned yet."""
        self._numpy = numpy
        self._torch = torch

    @classmethod
    def now(cls, like: GlobalStates | None = None) -> GlobalStates:
        """Return the current states: `like` itself, if the generators have not changed since."""
        mark = _mark()
        if like is not None and mark is not None and like._mark == mark:
            return like
        python = random.getstate() if _PYTHON is None else _PYTHON.raw
        torch = sys.modules.get("torch")
        state = None if torch is None else torch.default_generator.get_state()
        return cls(mark, python, _python.gauss_next, _numpy_state(), state)

    def have_moved(self) -> bool:
        """True if a generator has changed since."""
        return GlobalStates.now(self) != self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GlobalStates):
            return NotImplemented
        return self is other or not self.differing(other)

    __hash__ = None  # type: ignore[assignment]  # compared, never used as a key

    def differing(self, other: GlobalStates) -> list[str]:
        """Return the names of the generators whose states differ."""
        mine, theirs = self._torch, other._torch
        same = {
            "random": self._python == other._python and self._normal == other._normal,
            "numpy.random": self._numpy == other._numpy,
            "torch": mine is theirs or (mine is not None and theirs is not None and mine.equal(theirs)),
        }
        return [name for name, is_same in same.items() if not is_same]

    def is_seeded_with(self, key: int) -> bool:
        """True if nothing was drawn since the generators were seeded with `key`. Seeds the generators to find out."""
        seed_globals(key)
        return self == GlobalStates.now()

    def restore(self) -> None:
        """Restore the generators."""
        if _PYTHON is None:
            random.setstate(self._python)
        else:
            _PYTHON.raw = self._python
            _python.gauss_next = self._normal
        if type(self._numpy) is bytes:
            np.random.set_state(pickle.loads(self._numpy))
        else:
            generator, words, store = self._numpy
            if generator is not np.random.get_bit_generator():  # type: ignore[attr-defined]
                np.random.set_bit_generator(generator)  # type: ignore[attr-defined]  # replaced meanwhile
            with generator.lock:  # another thread may be drawing, and NumPy does so without the GIL
                _words_of(generator)[0].raw = words
                _NUMPY_STORE.raw = store
        if self._torch is not None:
            # Not directly in memory: other threads may be drawing, and torch has a lock for that.
            sys.modules["torch"].default_generator.set_state(self._torch)


class globals_kept:  # noqa: N801  # a context manager, called like a function
    """Restore the process-wide generators on exit."""

    __slots__ = ("_states",)

    def __enter__(self) -> None:
        self._states = GlobalStates.now()

    def __exit__(self, *_: object) -> None:
        self._states.restore()


class OwnGenerators:
    """Inside `with`, continues the process-wide generators from where the last `with` left them, whatever else draws.

    Args:
        keeps: True to restore them on exit.
    """

    __slots__ = ("_keeps", "_others", "_own")

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._own = self._others = GlobalStates.now()

    def __enter__(self) -> None:
        if self._keeps:
            self._others = GlobalStates.now(self._others)
        self._own.restore()

    def __exit__(self, *_: object) -> None:
        self._own = GlobalStates.now(self._own)
        if self._keeps:
            self._others.restore()


UNCHANGED = nullcontext()
"""Leaves the generators unchanged."""


# -- where they are in memory ---

_TWISTER_BYTES = 625 * 4
_MARK_BYTES = 16
"""A position and three words. The probability that these repeat by chance is 2^-96."""

_TORCH_BYTES = 5056
"""The size of the state that torch returns for its CPU generator: seed, left, is seeded, next, 624 words of 8 bytes
each, cached normal numbers."""
_NEAR_BYTES = 1024
"""torch's generator has its words within this distance of its start. The object is more than twice as long."""
_TORCH_SEED_BEFORE = 16
"""The seed is this many bytes before the words."""
_TORCH_STORE_BYTES = 28
"""The bytes after the words: a float and a double, which may be cached normal numbers, each followed by a flag."""


def _mark() -> tuple[object, ...] | None:
    """Return values that identify the current states; None if it is uncertain where they are in memory."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # missing in NumPy's stubs
    _, numpy = _words_of(generator)
    torch, torch_seed, torch_store = _torch_memory()
    if _PYTHON_MARK is None or numpy is None or torch is None:
        return None
    return (
        _PYTHON_MARK.raw,
        _python.gauss_next,
        generator,
        numpy.raw,
        _NUMPY_STORE.raw,
        torch.raw,
        torch_seed.raw,
        torch_store.raw,
    )


def _bytes_at(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Return memory whose `raw` is always its current content."""
    return (ctypes.c_char * size).from_address(address)


def _address_of(generator: random.Random) -> int | None:
    """Return the address of the position and words of a Python generator; None if uncertain."""
    if sys.implementation.name != "cpython" or type(generator).__basicsize__ < object.__basicsize__ + _TWISTER_BYTES:
        return None
    address = id(generator) + object.__basicsize__
    words = np.frombuffer(ctypes.string_at(address, _TWISTER_BYTES), np.uint32).tolist()
    return address if (*words[1:], words[0]) == generator.getstate()[1] else None


def _numpy_state() -> object:
    """Return the state of NumPy's global generator: itself, its words and its cached number; or a pickle."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    words, _ = _words_of(generator)
    if words is None:
        return pickle.dumps(np.random.get_state(legacy=False))
    with generator.lock:
        return generator, words.raw, _NUMPY_STORE.raw


_last_words: tuple[object, tuple[object, object]] = (None, (None, None))


# Any, below: such memory; None if its layout is uncertain.
def _words_of(generator: Any) -> tuple[Any, Any]:
    """Return the memory of a NumPy bit generator's words, and of its mark."""
    global _last_words
    known, words = _last_words
    if known is not generator:
        words = None, None
        if _NUMPY_STORE is not None and type(generator) is np.random.MT19937:  # otherwise the program has replaced it
            address = generator.ctypes.state_address
            last = address + _TWISTER_BYTES - _MARK_BYTES  # the position comes last
            words = _bytes_at(address, _TWISTER_BYTES), _bytes_at(last, _MARK_BYTES)
        _last_words = generator, words
    return words


def _store_of_numpy() -> Any:
    """Return where NumPy's global generator keeps a cached normal number, preceded by a flag; None if uncertain."""
    generator, likewise = np.random.get_state.__self__, np.random.RandomState(0)  # type: ignore[attr-defined]
    likewise.standard_normal()  # generates two and caches the second
    kept = struct.pack("@ixxxxd", 1, likewise.get_state(legacy=False)["gauss"])
    if sys.implementation.name != "cpython" or type(generator) is not type(likewise):
        return None
    offset = ctypes.string_at(id(likewise), type(likewise).__basicsize__).find(kept)
    likewise.standard_normal()
    is_sure = offset > 0 and ctypes.string_at(id(likewise) + offset, len(kept)) == bytes(len(kept))
    return _bytes_at(id(generator) + offset, len(kept)) if is_sure else None


_NO_TORCH = (ctypes.create_string_buffer(0),) * 3
_UNSURE = (None, None, None)
_of_torch: tuple[object, tuple[object, object, object]] = (None, _UNSURE)


def _torch_memory() -> tuple[Any, Any, Any]:
    """Return the memory of torch's mark, seed and cached normal numbers; empty without torch."""
    global _of_torch
    torch = sys.modules.get("torch")
    if torch is None:
        return _NO_TORCH
    known, memory = _of_torch
    generator = torch.default_generator
    if known is not generator:
        memory = _memory_of(generator, torch)
        _of_torch = generator, memory  # keeps the generator alive while its memory is read
    return memory


def _memory_of(generator: Any, torch: ModuleType) -> tuple[object, object, object]:
    likewise = torch.Generator()
    offset = _offset_in(likewise)
    if offset is None or offset != _offset_in(generator):
        return _UNSURE
    behind = offset + _TWISTER_BYTES
    store, flags = _bytes_at(likewise._cdata + behind, _TORCH_STORE_BYTES), []
    for _ in range(4):
        torch.randn((), generator=likewise, device="cpu", dtype=torch.float32)  # generates two and caches the second
        flags.append(store.raw[-8])
    if flags != [1, 0, 1, 0]:
        return _UNSURE
    address = generator._cdata
    return (
        _bytes_at(address + offset, _MARK_BYTES),
        _bytes_at(address + offset - _TORCH_SEED_BEFORE, 8),  # the words depend on its lower half only
        _bytes_at(address + behind, _TORCH_STORE_BYTES),
    )


def _offset_in(generator: Any) -> int | None:
    """Return the offset of the position and words in a torch generator; None if uncertain."""
    state = generator.get_state().numpy().tobytes()
    if len(state) != _TORCH_BYTES or sys.implementation.name != "cpython":
        return None
    words = np.frombuffer(state, np.uint64, 625, 16).astype(np.uint32).tobytes()
    near = ctypes.string_at(generator._cdata, _NEAR_BYTES)
    offset = near.find(words[:64])
    seed = offset - _TORCH_SEED_BEFORE
    is_sure = seed > 0 and near[seed : seed + 8] == state[:8]
    return offset if is_sure and ctypes.string_at(generator._cdata + offset, _TWISTER_BYTES) == words else None


_ADDRESS = _address_of(_python)
_PYTHON = None if _ADDRESS is None else _bytes_at(_ADDRESS, _TWISTER_BYTES)
_PYTHON_MARK = None if _ADDRESS is None else _bytes_at(_ADDRESS, _MARK_BYTES)
_NUMPY_STORE = _store_of_numpy()
