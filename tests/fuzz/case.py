"""One case: damage a file, read it, and judge the outcome."""

from __future__ import annotations

import hashlib
import random
import shutil
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import FeedlineError
from tests.fuzz.damage import damaged
from tests.fuzz.targets import VICTIM, Target

_MOST_TIMES = 32
"""How many times as many bytes as from the undamaged file may be read; more cannot come from the file."""


@dataclass(frozen=True)
class Failure:
    """What was wrong with the outcome of a case."""

    format: str
    number: int
    damage: str
    kind: str
    """"foreign": an exception that is not feedline's; "unnamed": one that does not name the file; "memory": memory was
    asked for that the file cannot need; "wrong": other samples; "crash" and "time": how the process ended."""
    text: str


# Any, throughout: samples of any form.
def plain(value: Any) -> Any:
    """Return a value in a comparable form, with everything lazy evaluated."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        return str(array.dtype), array.shape, array.nbytes, hashlib.blake2b(array.tobytes()).hexdigest()
    return value


def size_of(value: Any) -> int:
    """Return the size in bytes of what `plain` returned."""
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list):
        return sum(map(size_of, value))
    if isinstance(value, tuple):
        return int(value[2])
    return len(value) if isinstance(value, (str, bytes)) else 8


class Fuzz:
    """The cases of a target, each determined by the seed and its number.

    Args:
        target: what is damaged.
        seed: determines everything.
        folder: for files.
    """

    def __init__(self, target: Target, seed: int, folder: Path) -> None:
        self.target = target
        self._seed = seed
        self._folder = folder
        self._data = target.make(folder / "original")
        self._right = self._read(folder / "whole", self._data)
        self._size = size_of(self._right)

    def _read(self, folder: Path, data: bytes) -> list[Any]:
        folder.mkdir()
        try:
            return [plain(sample) for sample in self.target.read(self.target.place(folder, data))]
        finally:
            shutil.rmtree(folder)

    def run(self, number: int) -> Failure | None:
        """Run a case; None if its outcome is allowed."""
        name = f"{self._seed}/{self.target.name}/{number}"
        damage, data = damaged(self._data, random.Random(name), self.target.kinds)

        def failure(kind: str, text: str) -> Failure:
            return Failure(self.target.name, number, damage, kind, text)

        try:
            found = self._read(self._folder / f"case{number}", data)
        except Exception as exc:
            kind = self._what_is_wrong(exc)
            if kind is None:
                return None
            return failure(kind, "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)))
        if size_of(found) > _MOST_TIMES * self._size and not self.target.may_grow:
            return failure("wrong", f"{size_of(found)} bytes came out, but {self._size} of the undamaged file")
        if damage in self.target.values and found != self._right:
            return failure("wrong", f"{len(found)} samples, of which some are wrong, instead of {len(self._right)}")
        if damage in self.target.count and len(found) != len(self._right):
            return failure("wrong", f"{len(found)} samples instead of {len(self._right)}")
        return None

    def _what_is_wrong(self, exc: Exception) -> str | None:
        """Return the kind of failure that an exception is; None if it is allowed."""
        if _ran_out(exc) and not (self.target.may_ask and isinstance(exc, FeedlineError)):
            return "memory"
        if not isinstance(exc, FeedlineError):
            return "foreign"
        message = "\n".join([str(exc), *getattr(exc, "__notes__", ())])
        return None if VICTIM in message else "unnamed"


def _ran_out(exc: BaseException | None) -> bool:
    """Return whether an allocation failed, even if the error was wrapped."""
    while exc is not None:
        if isinstance(exc, MemoryError):
            return True
        exc = exc.__cause__ or exc.__context__
    return False
