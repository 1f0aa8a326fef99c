"""The contract for objects whose bytes can be read by range."""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

from feedline.datasets.framework.paths import change_of
from feedline.datasets.storage.addresses import shown_address
from feedline.errors import BadOption, SourceChanged, SourceError, TooManyOpenFiles
from feedline.system.handle import ClosedWhenDeleted
from feedline.system.options import checked_count

T = TypeVar("T")


class Version(NamedTuple):
    """Identifies one version of the content of a file or object."""

    size: int
    tag: str
    """Changes with the content: a modification time or an entity tag. Empty if unknown."""


class Blob(ABC):
    """A file or object that is open for reading. Its size is fixed: if the content changes, reading fails."""

    name: str
    """The path or address, without secrets."""
    address: str
    """The path or address as the user gave it: never shown."""
    size: int
    tag: str
    """As in `Version`."""
    is_local = False
    """True if a read costs little more than its bytes."""

    @property
    def stamp(self) -> str:
        """What a kept result that was derived from the content belongs to."""
        return f"{self.size}-{self.tag}"

    @abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes from `start` to `stop`. Blocks; may be called by several threads at once.

        Raises SourceError: they cannot be read, even after retries; SourceChanged: the content has changed since the
        blob was opened.
        """

    @abstractmethod
    def close(self) -> None:
        """Close it. May be called twice, but not while another thread reads. Dropping the blob also closes it."""

    def check(self) -> None:  # noqa: B027  (most detect changes while they read)
        """Raise SourceChanged if the content has changed since the blob was opened and `read` could not detect it."""

    def __repr__(self) -> str:
        return f"<{self.name}, {self.size} bytes>"


class LocalBlob(ClosedWhenDeleted, Blob):
    """A local file. Reads do not move a file position, so threads do not interfere with each other."""

    is_local = True

    def __init__(self, path: str) -> None:
        self.name = self.address = path
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError as exc:
            if exc.errno == errno.EMFILE:
                raise TooManyOpenFiles(f"opening {path}") from exc
            raise SourceError(
                f"{shown_address(path)} cannot be opened: {exc.strerror}. Is the name right, and may it be read?"
            ) from (exc if shown_address(path) == path else None)
        try:
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode):  # O_NONBLOCK lets a pipe be opened without a writer
                files = os.path.join(path, "*")
                raise SourceError(f"{path} is not a file. If it is a folder, name the files in it, such as {files}.")
        except BaseException:
            self.close()
            raise
        self.size = status.st_size
        self.tag = str(status.st_mtime_ns)
        self._changed = change_of(status)

    @property
    def stamp(self) -> str:
        return f"{self.size}-{self.tag}-{self._changed}"

    def read(self, start: int, stop: int) -> bytes:
        try:
            data = os.pread(self._file, stop - start, start)
            while len(data) < stop - start:  # a read is at most 2 GB
                more = os.pread(self._file, stop - start - len(data), start + len(data))
                if not more:
                    raise SourceChanged(
                        f"{self.name} ends at byte {start + len(data)}, but had {self.size} bytes when it was opened. "
                        "It was cut off, or is written anew, while it is read."
                    )
                data += more
        except SourceChanged:
            raise
        except OSError as exc:
            raise SourceError(f"{self.name} cannot be read at byte {start}: {exc.strerror}.") from exc
        return data

    def check(self) -> None:
        status = os.fstat(self._file)
        if (status.st_size, str(status.st_mtime_ns)) != (self.size, self.tag):
            raise SourceChanged(f"{self.name} was changed while it was read.")

    def hint(self, start: int, stop: int) -> None:
        """Ask the system to prefetch a range, without waiting for it."""
        if hasattr(os, "posix_fadvise") and start < self.size:
            os.posix_fadvise(self._file, start, stop - start, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _needs_closing(self) -> bool:
        return bool(self.__dict__.get("_file", -1) >= 0)


_PROGRESS = 1 << 18
"""Bytes that must arrive for an attempt to count as progress, which resets the retry count. A guess."""


class Transient(Exception):
    """A failure that a retry may fix; its text describes it."""


class Throttled(Transient):
    """The server is overloaded and asks clients to back off."""


class TooSlow(Transient):
    """A request is far slower than usual: another connection would be quicker."""


class Pace:
    """How fast requests usually are, and which are far too slow. Threads may share it.

    A request that has run for two seconds at less than an eighth of the usual rate is given up, and what is missing is
    requested again. Each time the usual rate is halved, so a line that has become slow is soon taken as it is.
    """

    after_s = 2.0
    share = 1 / 8
    known = 8
    """Requests after which the usual rate is known."""

    def __init__(self) -> None:
        self._count = 0
        self._rate = 0.0
        """Bytes per second of a request: a moving average."""

    def __reduce__(self) -> tuple[type[Pace], tuple[()]]:
        return Pace, ()  # another process has its own line

    def note(self, size: int, seconds: float) -> None:
        """Note a request that has ended."""
        if size < _PROGRESS:
            return  # its time was that of the answer, not of the bytes
        rate = size / max(seconds, 1e-6)
        self._count += 1
        self._rate += (rate - self._rate) / min(self._count, 32)

    def check(self, size: int, seconds: float) -> None:
        """Raise TooSlow if a request that has brought `size` bytes in `seconds` should be given up."""
        if seconds > self.after_s and self._count >= self.known and size / seconds < self.share * self._rate:
            self._rate /= 2
            raise TooSlow(f"only {size} bytes came in {seconds:.1f} s")


_THROTTLED_LATER = 3
"""Extra doublings of the pause after such an answer: many clients are throttled at once, and all of them return."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often to retry, and how long to wait."""

    retries: int = 5
    """Attempts after the first, without progress in between."""
    pause_s: ClassVar[float] = 0.1
    """Pause before the second attempt; it doubles before each later one, give or take half."""
    timeout_s: float = 60.0
    """How long to wait while nothing arrives."""
    pace: Pace = field(default_factory=Pace, compare=False, repr=False)
    """How fast requests are."""

    def __post_init__(self) -> None:
        checked_count("retries", self.retries, 0)
        if not self.timeout_s > 0:
            raise BadOption(f"timeout_s={self.timeout_s!r} is not a positive number of seconds.")

    def wait(self, attempt: int) -> None:
        """Wait after the n-th failure."""
        # Not from a seeded generator: workers that failed together should not retry together.
        time.sleep(min(30.0, self.pause_s * 2 ** (attempt - 1)) * (0.5 + random.SystemRandom().random()))


def read_range(
    get: Callable[[int, int], Iterator[bytes]],
    start: int,
    stop: int,
    *,
    name: str,
    retry_policy: RetryPolicy,
    done: str = "read",
) -> bytes:
    """Return the bytes from `start` to `stop`.

    `get` yields pieces of a range as they arrive. It raises Transient if a retry may help, any other exception if not.
    `done` is the verb of the error: the blob "cannot be read".
    """
    pieces: list[bytes] = []
    at, attempt, mark = start, 0, start
    while at < stop:
        first, began_s, pace = at, time.monotonic(), retry_policy.pace
        arriving = get(at, stop)
        try:
            for piece in arriving:
                pieces.append(piece)
                at += len(piece)
                if at < stop:
                    pace.check(at - first, time.monotonic() - began_s)
            if at < stop:
                raise Transient("the connection ended early")
            pace.note(at - first, time.monotonic() - began_s)
        except TooSlow:
            if isinstance(arriving, Generator):
                arriving.close()  # and with it the connection
            mark = at
        except Transient as exc:
            if at - mark >= _PROGRESS:
                attempt = 0
            mark = at
            attempt += 1
            if attempt > retry_policy.retries:
                tries = f"{attempt} times" if attempt > 1 else "once"
                if done != "read":
                    raise SourceError(f"{name} cannot be {done}: {exc} (tried {tries}).") from exc
                raise SourceError(
                    f"{name} cannot be read at byte {at}: {exc} (tried {tries}). If the network or the server has "
                    "trouble now and then, Remote(retries=...) bridges more of it."
                ) from exc
            retry_policy.wait(attempt + (_THROTTLED_LATER if isinstance(exc, Throttled) else 0))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def retried(act: Callable[[], T], *, name: str, retry_policy: RetryPolicy, done: str = "read") -> T:
    """Return what `act` returns, which raises Transient if a retry may help. The other arguments are as above."""
    answers = list[T]()

    def once(_start: int, _stop: int) -> Iterator[bytes]:
        answers.append(act())
        yield b" "

    read_range(once, 0, 1, name=name, retry_policy=retry_policy, done=done)
    return answers[0]
