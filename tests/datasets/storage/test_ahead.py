import threading
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.storage.ahead import Ahead, Depth
from feedline.datasets.storage.blob import Blob
from feedline.errors import SourceError
from tests.sampling import examples


class Fake(Blob):
    """Bytes in memory; tracks which blobs are open."""

    opened: ClassVar[set[int]] = set()

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data, self.size, self.tag = name, data, len(data), "1"
        self.reads: list[tuple[int, int]] = []
        Fake.opened.add(id(self))

    def read(self, start: int, stop: int) -> bytes:
        assert id(self) in Fake.opened, "read after it was closed"
        self.reads.append((start, stop))
        return self.data[start:stop]

    def close(self) -> None:
        Fake.opened.discard(id(self))

    def __del__(self) -> None:
        self.close()


def read_all(contents: list[bytes | None], starts: list[int], depth: int, chunk: int) -> list[bytes | None]:
    def open_blob(address: str) -> Blob:
        data = contents[int(address)]
        if data is None:
            raise SourceError(f"{address} is missing")
        return Fake(address, data)

    ahead = Ahead(open_blob, [(str(n), start) for n, start in enumerate(starts)], depth=depth, chunk_bytes=chunk)
    found: list[bytes | None] = []
    while True:
        try:
            blob = ahead.next_blob()
        except SourceError:
            found.append(None)
            continue
        if blob is None:
            break
        pieces = []
        while piece := ahead.next_chunk():
            assert len(piece) <= chunk
            pieces.append(piece)
        found.append(b"".join(pieces))
    end(ahead)
    assert not Fake.opened
    return found


def end(ahead: Ahead) -> None:
    """Close the iterator, and wait for the threads that read."""
    ahead.close()
    if ahead._threads is not None:
        ahead._threads.shutdown(wait=True)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.none() | st.binary(max_size=50), max_size=6),
    st.integers(0, 5),
    st.integers(1, 20),
    st.data(),
)
def test_chunks_are_the_bytes_of_each_blob_in_order(
    contents: list[bytes | None], depth: int, chunk: int, data: st.DataObject
) -> None:
    starts = [data.draw(st.integers(0, len(content or b""))) for content in contents]
    found = read_all(contents, starts, depth, chunk)
    expected = [None if one is None else one[start:] for one, start in zip(contents, starts, strict=True)]
    assert found == expected


@pytest.mark.parametrize("depth", [0, 3])
def test_next_blob_drops_the_rest_of_the_current_blob(depth: int) -> None:
    ahead = Ahead(lambda name: Fake(name, name.encode() * 100), [("a", 0), ("b", 0)], depth=depth, chunk_bytes=10)
    assert ahead.next_chunk() == b""  # there is no current blob
    ahead.next_blob()
    assert ahead.next_chunk() == b"a" * 10
    ahead.next_blob()
    assert ahead.next_chunk() == b"b" * 10
    end(ahead)
    end(ahead)
    assert not Fake.opened
    assert ahead.next_blob() is None


def test_reads_run_concurrently_and_across_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four reads of two blobs wait for each other: they can only finish if all run at once.

    The second blob is opened once the whole first blob was requested and the reader waits for it.
    """
    barrier, has_asked = threading.Barrier(4, timeout=100), threading.Event()

    class Meeting(Fake):
        def read(self, start: int, stop: int) -> bytes:
            if self.name == "b" or start >= 20:
                barrier.wait()
            return super().read(start, stop)

    def open_blob(name: str) -> Blob:
        assert name == "a" or has_asked.wait(100)
        return Meeting(name, b"x" * {"a": 40, "b": 20}[name])

    ahead = Ahead(open_blob, [("a", 0), ("b", 0)], depth=4, chunk_bytes=10)
    ahead.next_blob()
    assert ahead.next_chunk() == ahead.next_chunk() == b"x" * 10  # then four are requested at a time
    fill = ahead._fill

    def fill_and_tell() -> None:
        fill()
        has_asked.set()

    monkeypatch.setattr(ahead, "_fill", fill_and_tell)
    assert ahead.next_chunk() == ahead.next_chunk() == b"x" * 10
    assert ahead.next_chunk() == b""
    ahead.next_blob()
    assert ahead.next_chunk() == b"x" * 10
    ahead.close()


def test_starts_with_two_requests_and_ends_chunks_at_multiples_of_their_size() -> None:
    asked, may_answer = list[tuple[int, int]](), threading.Event()

    class Noting(Fake):
        def read(self, start: int, stop: int) -> bytes:
            asked.append((start, stop))
            assert may_answer.wait(100)
            return super().read(start, stop)

    ahead = Ahead(lambda name: Noting(name, b"x" * 95), [("a", 7)], depth=4, chunk_bytes=10)
    ahead.next_blob()
    ahead._fill()
    assert len(ahead._opened[0].chunks) == 2
    may_answer.set()
    while ahead.next_chunk():
        pass
    assert sorted(asked) == [(7, 10), *((start, min(95, start + 10)) for start in range(10, 95, 10))]
    ahead.close()


def run_of(depth: Depth, limit: int, chunks: int = 200, waited: float = 0.9) -> int:
    """Take chunks over a connection that carries at most `limit` of them at a time."""
    now_s = 0.0
    for _ in range(chunks):
        step_s = 1 / min(limit, depth.count)
        now_s += step_s
        depth.note(1000, waited_s=step_s * waited, now_s=now_s)
    return depth.count


def test_each_chunk_raises_the_depth_by_one_up_to_the_default() -> None:
    depth = Depth(5, 5)
    counts = [depth.count]
    for now_s in range(5):
        depth.note(1000, waited_s=0.5, now_s=float(now_s))
        counts.append(depth.count)
    assert counts == [2, 3, 4, 5, 5, 5]
    assert Depth(1, 1).count == Depth(0, 0).count == 1


@pytest.mark.parametrize("limit", [1, 2, 4, 7, 12, 100])
def test_the_depth_grows_while_that_is_faster(limit: int) -> None:
    found = run_of(Depth(4, 16), limit)
    assert min(16, max(4, limit * 0.6)) <= found <= min(16, max(4, 1.6 * limit))


def test_the_depth_does_not_grow_if_the_reader_does_not_wait() -> None:
    assert run_of(Depth(4, 16), 100, waited=0.01) == 4


def test_an_explicit_depth_does_not_change() -> None:
    assert run_of(Depth(3, 3), 100) == 3


def test_a_dropped_iterator_leaves_nothing_open() -> None:
    ahead = Ahead(lambda name: Fake(name, b"x" * 100), [("a", 0)], depth=2, chunk_bytes=10)
    ahead.next_blob()
    threads = ahead._threads
    del ahead
    assert threads is not None
    threads.shutdown(wait=True)
    assert not Fake.opened


def test_closing_does_not_wait_for_an_unresponsive_server() -> None:
    answers, asked = threading.Event(), threading.Event()

    class Silent(Fake):
        def read(self, start: int, stop: int) -> bytes:
            asked.set()
            assert answers.wait(100)
            return super().read(start, stop)

    ahead = Ahead(lambda name: Silent(name, b"x" * 100), [("a", 0)], depth=2, chunk_bytes=10)
    ahead.next_blob()
    assert asked.wait(100)
    ahead.close()
    assert Fake.opened  # in use
    answers.set()
    end(ahead)
    assert not Fake.opened
