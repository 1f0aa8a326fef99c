"""Blobs in sequence, with their bytes fetched ahead by threads.

The consuming thread decides what is fetched: whenever it takes a chunk, it requests more, up to `depth` chunks ahead,
across the ends of blobs. The other threads only open and read, independently of each other. Chunks are returned in
order, whichever was fetched first. With a depth of 0 there are no threads, only hints to the operating system.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from feedline.datasets.remote.blob import Blob, LocalBlob
from feedline.system.deletion import ClosedWhenDeleted

T = TypeVar("T")


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


class Ahead(ClosedWhenDeleted):
    """Reads blobs from given offsets on.

    Args:
        open_blob: opens an address; called by threads.
        blobs: addresses, and where to begin in each, in the order in which they are wanted.
        depth: chunks to be fetched ahead; 0 for no threads.
        chunk_bytes: the size of a chunk.
    """

    def __init__(
        self, open_blob: Callable[[str], Blob], blobs: Iterable[tuple[str, int]], *, depth: int, chunk_bytes: int
    ) -> None:
        self._open_blob = open_blob
        self._blobs: Iterator[tuple[str, int]] = iter(blobs)
        self._depth = depth
        self._chunk_bytes = chunk_bytes
        self._threads = ThreadPoolExecutor(depth, "feedline-ahead") if depth else None
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
        data = current.chunks[0].result()
        current.chunks.popleft()
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
        while ahead < max(1, self._depth):
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

    def _ask(self, opened: Opened, blob: Blob) -> None:
        start, stop = opened.requested_to, min(opened.requested_to + self._chunk_bytes, blob.size)
        opened.requested_to = stop
        opened.chunks.append(self._submit(partial(_read, blob, start, stop)))

    def _submit(self, act: Callable[[], T]) -> Future[T]:
        # `act` must not refer to this object: a thread that is the last to do so would have to end itself.
        return _Later(act) if self._threads is None else self._threads.submit(act)

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
