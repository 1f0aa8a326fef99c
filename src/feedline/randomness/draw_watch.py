"""Whether anything was drawn from the generators of the process, found out at little cost.

A Mersenne Twister, which all three are, moves its place with every number, and changes all its words before it comes by
the same place again. So the place and a few words tell. They are read where the generators keep them: half a
microsecond for all three, against six for comparing whole states.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import numpy as np

from feedline.randomness.scope import (
    PYTHON_ADDRESS,
    TWISTER_BYTES,
    bytes_at,
    numpy_has_one_in_store,
    python_generator,
)

_MARK_BYTES = 16
"""A place and three words. That these come again by chance has a probability of 2^-96."""

_TORCH_BYTES = 5056
"""Of the state that torch tells of its CPU generator: seed, left, is seeded, next, 624 words of 8 bytes each, numbers
in store."""

_NEAR_BYTES = 1024
"""Where torch's generator keeps its words: so near to its beginning. It is more than twice as long."""


class DrawWatch:
    """Notices that something was drawn since it was made.

    A number that a generator has made and not handed out yet would come without a trace. If there is one at the
    beginning, that counts as drawn. What goes unnoticed: a program that draws and then gives the generator back as it
    was.
    """

    __slots__ = ("_before", "_numpy", "_numpy_mark", "_torch_mark")

    def __init__(self) -> None:
        self._numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]  # NumPy's stubs forget it
        self._numpy_mark = _numpy_mark(self._numpy)
        torch = sys.modules.get("torch")
        self._torch_mark = None if torch is None else _torch_mark(torch)
        self._before = None if has_one_in_store() else self.marks()

    def has_drawn(self) -> bool:
        """True if a generator is not what it was."""
        return self._before is None or self.marks() != self._before

    def marks(self) -> tuple[Any, ...]:
        """Return what tells the states of this moment from others."""
        numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
        return (
            random.getstate() if _PYTHON_MARK is None else _PYTHON_MARK.raw,
            python_generator.gauss_next,
            numpy is self._numpy,
            repr(numpy.state) if self._numpy_mark is None else self._numpy_mark.raw,
            _torch_state() if self._torch_mark is None else self._torch_mark.raw,
        )


def has_one_in_store() -> bool:
    """True if NumPy or torch has made a normal number that it has not handed out, which would come without a trace."""
    torch = sys.modules.get("torch")
    return numpy_has_one_in_store() or (torch is not None and _torch_has_one_in_store(torch))


# Any, below: memory that is read; None if it is not sure where the words are.
_PYTHON_MARK = None if PYTHON_ADDRESS is None else bytes_at(PYTHON_ADDRESS, _MARK_BYTES)


def _numpy_mark(generator: Any) -> Any:
    if type(generator) is not np.random.MT19937:  # exchanged by the program
        return None
    return bytes_at(generator.ctypes.state_address + TWISTER_BYTES - _MARK_BYTES, _MARK_BYTES)  # the place comes last


def _torch_mark(torch: Any) -> Any:
    """Find where torch's generator keeps its place and its words; None if this torch keeps them otherwise."""
    state = _torch_state()
    if len(state) != _TORCH_BYTES or sys.implementation.name != "cpython":
        return None
    words = np.frombuffer(state, np.uint64, 624, 24).astype(np.uint32).tobytes()
    place = np.frombuffer(state, np.uint64, 1, 16).astype(np.uint32).tobytes()
    address = torch.default_generator._cdata
    offset = ctypes.string_at(address, _NEAR_BYTES).find(place + words[:64])
    if offset < 0 or ctypes.string_at(address + offset + 4, len(words)) != words:
        return None
    return bytes_at(address + offset, _MARK_BYTES)


def _torch_has_one_in_store(torch: Any) -> bool:
    """True if torch has made a normal number that it has not handed out, or if that cannot be told."""
    state = _torch_state()
    return len(state) != _TORCH_BYTES or any(state[-16:-12]) or any(state[-4:])


def _torch_state() -> bytes:
    """Return the state of torch's default generator; empty if torch is not there."""
    torch = sys.modules.get("torch")
    return b"" if torch is None else torch.default_generator.get_state().numpy().tobytes()
