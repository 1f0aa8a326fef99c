"""Troubles of some samples of a dataset, and how often they happened."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

SLOW = "slow sample"
RAISES = "raises always"
FLAKY = "raises twice"
UNPICKLABLE = "raises what cannot be pickled"
KILLS_ONCE = "kills its worker once"
KILLS_ALWAYS = "kills its worker always"
HANGS_ONCE = "hangs its worker once"
GROWS = "makes its worker grow"

KILLERS = frozenset({KILLS_ONCE, KILLS_ALWAYS, HANGS_ONCE})
"""Troubles that cost a worker."""

NEVER_MADE = frozenset({RAISES, UNPICKLABLE, KILLS_ALWAYS})
"""Troubles with which a sample is never made."""

_FLAKY_RUN = 3
"""One in this many attempts at a flaky sample succeeds."""

_SLOW_S = 0.03
_HANG_S = 3600.0
_GROWTH_S = 0.5
"""The memory of workers is checked once a second, so a sample that makes them grow takes some time."""

GROWTH_BYTES = 160 << 20

_grown: list[bytes] = []
"""Memory that makes this worker grow."""

WAYS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, None)
"""How a worker is ended from inside; None calls `os._exit`."""


class BadSample(Exception):
    """Raised by a bad sample."""

    def __init__(self, index: int) -> None:
        super().__init__(f"sample {index} is bad")
        self.index = index

    def __reduce__(self) -> tuple[type[BadSample], tuple[int]]:
        return BadSample, (self.index,)


class UnpicklableSample(Exception):
    """Raised by a bad sample; cannot be sent to another process."""

    def __init__(self, index: int) -> None:
        super().__init__(f"sample {index} is bad, and this cannot be pickled")
        self.lock = threading.Lock()


@dataclass(frozen=True)
class Troubles:
    """The troubles of one dataset. Picklable: every worker has a copy.

    Each time one happens, a byte is appended to its file, so that all processes know how often it happened.
    """

    by_index: dict[int, str] = field(default_factory=dict)
    folder: str = ""
    trainer_pid: int = 0
    """The process that must not be killed: the one in which the training loop runs."""
    tame: bool = False
    """True to keep only samples that are never made, and let them raise: the reference for comparisons."""

    def tamed(self) -> Troubles:
        """Return the same bad samples without any harm to workers."""
        return replace(self, tame=True)

    def meet(self, index: int) -> None:
        """Cause the trouble of the sample `index`, if it has one."""
        name = self.by_index.get(index)
        if name is None:
            return
        if self.tame:
            if name in NEVER_MADE:
                raise BadSample(index)
            return
        can_kill = os.getpid() != self.trainer_pid
        if name in (KILLS_ONCE, HANGS_ONCE, GROWS):
            if can_kill:
                self._harm(name, index)
            return
        times = self._note(name, index)
        if name == SLOW:
            time.sleep(_SLOW_S)
        elif name == KILLS_ALWAYS and can_kill:
            _die(index)
        elif name == FLAKY:
            if times % _FLAKY_RUN:
                raise BadSample(index)
        elif name == UNPICKLABLE:
            raise UnpicklableSample(index)
        else:
            raise BadSample(index)

    def _harm(self, name: str, index: int) -> None:
        if name == GROWS:
            if not _grown:
                self._note(name, index)
                _grown.append(b"x" * GROWTH_BYTES)
            time.sleep(_GROWTH_S)
        elif self._note(name, index) == 1:
            if name == KILLS_ONCE:
                _die(index)
            time.sleep(_HANG_S)

    def _note(self, name: str, index: int) -> int:
        """Record an occurrence; return the number of occurrences so far."""
        file = os.open(Path(self.folder, f"{index}.{name}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, b".")
            return os.fstat(file).st_size
        finally:
            os.close(file)

    def happened(self) -> Counter[str]:
        """Return how often each trouble happened."""
        counts: Counter[str] = Counter()
        for file in Path(self.folder).iterdir():
            name, times = file.name.partition(".")[2], file.stat().st_size
            if name in (KILLS_ONCE, HANGS_ONCE):
                times = 1
            elif name == FLAKY:
                times -= times // _FLAKY_RUN
            counts[name] += times
        return counts


def _die(index: int) -> None:
    way = WAYS[index % len(WAYS)]
    if way is None:
        os._exit(3)
    os.kill(os.getpid(), way)
