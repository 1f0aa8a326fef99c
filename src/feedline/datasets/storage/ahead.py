"""Blobs in sequence, with their bytes fetched ahead by threads.

The consuming thread decides what is fetched: whenever it takes a chunk, it requests more, some chunks ahead, across the
ends of blobs. The other threads only open and read, independently of each other. Chunks are returned in order,
whichever was fetched first. With a depth of 0 there are no threads, only hints to the operating system.

Two chunks are requested at first, because training waits for them, and rivals would share the line with them. Then more
and more are requested, as `Depth` finds worthwhile.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from feedline.datasets.storage.blob import Blob, LocalBlob
from feedline.datasets.storage.disk_cache import PIECE_BYTES
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import protocol_of
from feedline.system.handle import ClosedWhenDeleted

T = TypeVar("T")

LOCAL_CHUNK = 1 << 20
REMOTE_CHUNK = PIECE_BYTES
"""Large enough that request latency does not matter, small enough to have several in flight: with 2 workers, 30 ms and
40 MB/s, `benchmarks.w20_object_storage` measures 94 % of the line."""
_REMOTE_DEPTH = 8
_MOST_REMOTE_DEPTH = 32
"""Chunks in flight: to begin with, and at most, if more are faster."""


@dataclass(eq=False)
class Opened:
    """A blob whose turn it is, or will be."""

    requested_to: int
    """Where the first chunk begins that was not asked for."""
    opening: Future[Blob]
    chunks: deque[Future[bytes]] = field(default_factory=deque)

    def is_known(self) -> bool:
        """True if it is open, so that its size is known."""
        return self.opening.done() and self.opening.exception() is None


class _Later(Future[T]):
    """A future where there are no threads: does it when the result is wanted."""

    def __init__(self, act: Callable[[], T]) -> None:
        super().__init__()
        self._act = act

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            self.set_result(self._act())
        return super().result()


def _read(blob: Blob, start: int, stop: int) -> bytes:
    if isinstance(blob, LocalBlob):
        blob.hint(stop, stop + (stop - start))
    return blob.read(start, stop)


_GAIN = 1.1
"""How much faster bytes must come for another request in flight to be worthwhile. A guess."""
_WAITED = 0.1
"""The share of time that the reader waits from which on more requests are tried. A guess."""


class Depth:
    """How many chunks to request ahead: more and more, as long as the reader waits and bytes come faster for it.

    It begins with at most two, and every chunk that comes allows another, up to the usual number. Pure: the caller
    reports times. It measures in rounds of twice as many chunks as are in flight.

    Args:
        usual: the number after the first chunks.
        most: the upper limit.

    Example:
        >>> depth, now = Depth(usual=2, most=8), 0.0
        >>> for _ in range(100):  # each request brings 1 MB in a second, and five of them at most go side by side
        ...     now += 1 / min(5, depth.count)
        ...     depth.note(1_000_000, waited_s=0.1, now_s=now)
        >>> depth.count in (5, 6)
        True
    """

    def __init__(self, usual: int, most: int) -> None:
        self.count = max(1, min(2, usual))
        self._usual = usual
        self._most = most
        self._chunks = 0
        self._bytes = 0
        self._waited_s = 0.0
        self._since_s: float | None = None
        self._before: tuple[int, float] | None = None
        """The last number that was tried, and its bytes per second."""
        self._is_settled = usual >= most

    def note(self, size: int, waited_s: float, now_s: float) -> None:
        """Note that the reader took a chunk, and how long it waited for it."""
        if self.count < self._usual:
            self.count += 1
            return
        if self._is_settled:
            return
        if self._since_s is None:
            self._since_s = now_s
            return
        self._chunks, self._bytes, self._waited_s = self._chunks + 1, self._bytes + size, self._waited_s + waited_s
        if self._chunks < 2 * self.count:
            return
        elapsed_s = max(1e-9, now_s - self._since_s)
        self._try_another(self._bytes / elapsed_s, self._waited_s / elapsed_s)
        self._chunks, self._bytes, self._waited_s, self._since_s = 0, 0, 0.0, now_s

    def _try_another(self, rate: float, waited: float) -> None:
        if waited < _WAITED:
            return
        if self._before is not None and rate < self._before[1] * _GAIN:
            self.count, self._is_settled = self._before[0], True
            return
        self._before = self.count, rate
        self.count = min(self._most, self.count + max(1, self.count // 2))
        self._is_settled = self.count == self._before[0]


class Ahead(ClosedWhenDeleted):
    """Reads blobs from given offsets on.

    Args:
        open_blob: opens an address; called by threads.
        blobs: addresses, and where to begin in each, in the order in which they are wanted.
        depth: chunks to be fetched ahead; 0 for no threads.
        chunk_bytes: the size of a chunk. Chunks end at multiples of it.
        most: the upper limit, if more chunks ahead should be tried.
    """

    def __init__(
        self,
        open_blob: Callable[[str], Blob],
        blobs: Iterable[tuple[str, int]],
        *,
        depth: int,
        chunk_bytes: int,
        most: int = 0,
    ) -> None:
        self._open_blob = open_blob
        self._blobs: Iterator[tuple[str, int]] = iter(blobs)
        self._depth = Depth(depth, max(depth, most))
        self._chunk_bytes = chunk_bytes
        self._threads = ThreadPoolExecutor(max(depth, most), "feedline-ahead") if depth else None
        self._opened: deque[Opened] = deque()
        """The current one, if there is one, and those after it that were begun."""
        self._has_current = False
        self._pid = os.getpid()

    def next_blob(self) -> Blob | None:
        """Go on to the next blob and return it, None if there is none. What was not read of the last is dropped.

        Raises SourceError: it cannot be opened; the next call goes on with the one after it.
        """
        if self._has_current:
            self._leave()
        if not self._opened and not self._begin_another():
            return None
        try:
            blob = self._opened[0].opening.result()
        except BaseException:
            self._opened.popleft()
            raise
        self._has_current = True
        self._fill()
        return blob

    def next_chunk(self) -> bytes:
        """Return the next bytes of the current blob; none at its end."""
        if not self._has_current:
            return b""
        current = self._opened[0]
        self._fill()
        if not current.chunks:
            return b""
        asked_s = time.monotonic()
        self._fill_until(current.chunks[0])
        data = current.chunks[0].result()
        current.chunks.popleft()
        if self._threads is not None:
            now_s = time.monotonic()
            self._depth.note(len(data), now_s - asked_s, now_s)
        self._fill()
        return data

    def _leave(self) -> None:
        self._has_current = False
        for chunk in self._opened.popleft().chunks:
            chunk.cancel()

    def _begin_another(self) -> bool:
        following = next(self._blobs, None)
        if following is None:
            return False
        address, start = following
        self._opened.append(Opened(start, self._submit(partial(self._open_blob, address))))
        return True

    def _fill(self) -> None:
        """Ask for chunks until enough are under way; open the next blob early, since its size has to be known."""
        ahead = sum(len(opened.chunks) for opened in self._opened)
        number = 0
        while ahead < self._depth.count:
            opened = self._opened[number]
            if not opened.is_known():
                return
            blob = opened.opening.result()
            if opened.requested_to < blob.size:
                self._ask(opened, blob)
                ahead += 1
                continue
            number += 1
            if number < len(self._opened):
                continue
            if self._threads is None or not self._begin_another():
                return
        if self._threads is not None and len(self._opened) == 1:
            self._begin_another()

    def _fill_until(self, chunk: Future[bytes]) -> None:
        """Wait for a chunk, and ask for chunks of the blobs that are opened meanwhile: it may be a slow one."""
        opening: Future[Blob] | None = None
        while self._threads is not None and not chunk.done() and self._opened[-1].opening is not opening:
            opening = self._opened[-1].opening
            either: tuple[Future[Any], Future[Any]] = chunk, opening  # Any: bytes or a blob
            wait(either, return_when=FIRST_COMPLETED)
            self._fill()

    def _ask(self, opened: Opened, blob: Blob) -> None:
        start, size = opened.requested_to, self._chunk_bytes
        stop = min((start // size + 1) * size, blob.size)
        opened.requested_to = stop
        opened.chunks.append(self._submit(partial(_read, blob, start, stop)))

    def _submit(self, act: Callable[[], T]) -> Future[T]:
        # `act` must not refer to this object: a thread that is the last to do so would have to end itself.
        return _Later(act) if self._threads is None else self._threads.submit(act)

    @property
    def is_own(self) -> bool:
        """True if this process can go on with it: a forked one has not inherited the threads."""
        return self._threads is None or self._pid == os.getpid()

    def close(self) -> None:
        """Let go of all blobs, which closes them, and end the threads. May be called twice.

        Threads that are reading are not waited for: a server that does not answer would keep us for minutes. They end
        after that, and let go of what they read.
        """
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._opened.clear()
        self._has_current = False
        self._blobs = iter(())

    def _needs_closing(self) -> bool:
        # A forked process has inherited neither threads nor the right.
        return self.__dict__.get("_pid") == os.getpid()


def read_ahead(open_blob: Callable[[str], Blob], blobs: Sequence[tuple[str, int]], remote: Remote) -> Ahead:
    """Return the blobs from these offsets on, fetched ahead as far as `remote` says, or as is usual for them."""
    usual = _REMOTE_DEPTH if any(protocol_of(address) for address, _ in blobs) else 0
    depth = usual if remote.read_ahead is None else remote.read_ahead
    return Ahead(
        open_blob,
        blobs,
        depth=depth,
        chunk_bytes=REMOTE_CHUNK if depth else LOCAL_CHUNK,
        most=_MOST_REMOTE_DEPTH if depth and remote.read_ahead is None else 0,
    )
