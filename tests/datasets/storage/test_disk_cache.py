"""Pieces of blobs in a disk cache: concurrent processes, damage, and limits."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feedline.datasets.framework.store import stored_bytes
from feedline.datasets.storage import disk_cache
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.cached_blob import CachedBlob
from feedline.datasets.storage.disk_cache import MARK, DiskCache
from feedline.errors import BadOption, FeedlineWarning, SourceError
from feedline.testing.asserting import apart

PIECE = 1000
DATA = random.Random(0).randbytes(10 * PIECE + 17)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", PIECE)


class Far(Blob):
    """A remote blob that counts how many bytes were fetched."""

    name = address = "s3://bucket/a.tar"

    def __init__(self, data: bytes = DATA, tag: str = "1") -> None:
        self.data, self.size, self.tag = data, len(data), tag
        self.reads = self.fetched = 0
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        with self._lock:
            self.reads += 1
            self.fetched += stop - start
        return self.data[start:stop]

    def close(self) -> None:
        self.data = b""


def path_of(cache: DiskCache, blob: Blob, number: int) -> Path:
    return Path(f"{cache.pieces_of(blob)}-{number}")


def lock_of(folder: Path, blob: Blob) -> Path:
    return folder / f".{path_of(DiskCache(folder, 10**6), blob, 0).name}.lock"


needs_descriptors = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files there")


def waiting_for(path: Path, process: int | None = None) -> int:
    """Return how many threads of a process have a file open, by the links of its descriptors."""
    folder, found = f"/proc/{process or 'self'}/fd", 0
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            found += os.readlink(f"{folder}/{name}") == str(path)
    return found


def opened(far: Blob, cache: DiskCache, *, is_common: bool = False) -> CachedBlob:
    """Open a blob as the only file of its dataset."""
    cache.own([far.address])
    return CachedBlob(far, cache, is_common=is_common)


def taken(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.name != MARK)


def test_a_second_read_comes_from_the_disk(tmp_path: Path) -> None:
    cache, far = DiskCache(tmp_path / "c", 10**6), Far()
    for _ in range(2):
        blob = opened(far, cache)
        for start, stop in ((0, 1), (999, 1001), (2500, 7300), (0, len(DATA)), (len(DATA) - 1, len(DATA))):
            assert blob.read(start, stop) == DATA[start:stop]
    assert far.reads == 11
    assert taken(tmp_path / "c") == 10 * stored_bytes(PIECE) + stored_bytes(17)


def test_another_tag_is_another_blob_whose_old_pieces_are_replaced(tmp_path: Path) -> None:
    cache, new = DiskCache(tmp_path / "c", 6 * PIECE), Far(DATA[::-1], tag="2")
    assert opened(Far(), cache).read(0, 5 * PIECE) == DATA[: 5 * PIECE]
    cache = DiskCache(tmp_path / "c", 6 * PIECE)
    assert opened(new, cache).read(0, 10) == new.data[:10]
    assert path_of(cache, new, 0).exists()


def test_addresses_that_differ_only_in_hidden_parts_are_different_blobs(tmp_path: Path) -> None:
    cache, blobs = DiskCache(tmp_path / "c", 10**6), [Far(), Far(DATA[::-1])]
    for number, blob in enumerate(blobs):
        blob.name, blob.address = "https://host/get?***", f"https://host/get?file={number}"
        assert opened(blob, cache).read(0, 5000) == blob.data[:5000]


def test_a_full_cache_keeps_its_pieces_and_other_reads_fetch_only_their_bytes(tmp_path: Path) -> None:
    cache, far = DiskCache(tmp_path / "c", 6 * PIECE), Far()
    blob = opened(far, cache)
    for number in range(5):
        blob.read(number * PIECE, (number + 1) * PIECE)
    for number in range(5):
        os.utime(path_of(cache, far, number), (0, 0))  # long ago
    assert blob.read(5 * PIECE + 10, 5 * PIECE + 20) == DATA[5 * PIECE + 10 : 5 * PIECE + 20]
    assert {number for number in range(11) if path_of(cache, far, number).exists()} == set(range(5))
    assert far.fetched == 5 * PIECE + 10
    stats = cache.stats()
    assert (stats.fetched, stats.dropped, stats.held) == (5 * PIECE + 10, 10, 5 * stored_bytes(PIECE))


@pytest.mark.parametrize(("share", "sample"), [(0.2, 350), (0.5, 1700), (1.2, 350)])
def test_random_access_fetches_no_more_than_an_optimal_cache(share: float, sample: int, tmp_path: Path) -> None:
    count, dice = 30 * PIECE // sample + 1, random.Random(1)
    far = Far(dice.randbytes(count * sample))
    cache = DiskCache(tmp_path / "c", max(4, int(len(far.data) * share) // PIECE) * stored_bytes(PIECE))
    blob = opened(far, cache)
    held = min(1.0, cache.max_bytes // stored_bytes(PIECE) * PIECE / far.size)
    for epoch in range(3):
        before = far.fetched
        for number in dice.sample(range(count), count):
            start = number * sample
            assert blob.read(start, start + sample) == far.data[start : start + sample]
        least = far.size if epoch == 0 else (1 - held) * far.size
        assert least - 2 * PIECE <= far.fetched - before <= least + 2 * PIECE


def test_random_access_replaces_unused_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, own = Far(), Far(tag="2")
    other.address = "s3://bucket/other.tar"
    opened(other, DiskCache(tmp_path / "c", 6 * PIECE)).read(0, 5 * PIECE)
    cache = DiskCache(tmp_path / "c", 6 * PIECE)
    opened(own, cache).read(0, 10)
    assert not path_of(cache, own, 0).exists(), "the other pieces were used recently"
    monkeypatch.setattr(disk_cache, "_UNUSED_S", -1.0)
    opened(own, cache).read(0, 10)
    assert not path_of(cache, own, 0).exists(), "a full cache is not scanned for every read"
    later = opened(own, DiskCache(tmp_path / "c", 6 * PIECE))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: later.read(number * PIECE, number * PIECE + 10), range(8)))
    later.read(0, 8 * PIECE)
    assert sum(path_of(cache, own, number).exists() for number in range(11)) == 5
    assert taken(tmp_path / "c") <= 6 * PIECE


def test_missing_pieces_are_fetched_in_one_request(tmp_path: Path) -> None:
    far, cache = Far(), DiskCache(tmp_path / "c", 4 * stored_bytes(PIECE))
    blob = opened(far, cache)
    blob.read(0, 4 * PIECE)
    before = far.reads
    assert blob.read(2 * PIECE + 5, 9 * PIECE + 5) == DATA[2 * PIECE + 5 : 9 * PIECE + 5]
    assert far.reads == before + 1


def test_a_lowered_limit_is_respected(tmp_path: Path) -> None:
    far = Far()
    opened(far, DiskCache(tmp_path / "c", 10 * stored_bytes(PIECE))).read(0, len(DATA))
    cache = DiskCache(tmp_path / "c", 5 * stored_bytes(PIECE))
    opened(far, cache).read(10 * PIECE, 10 * PIECE + 5)
    assert cache.stats().held == taken(tmp_path / "c") <= 5 * stored_bytes(PIECE)


def test_without_room_on_the_disk_only_the_requested_bytes_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    far, cache = Far(), DiskCache(tmp_path / "c", 10**6)
    opened(far, cache).read(0, PIECE)
    monkeypatch.setattr(disk_cache, "write_stored", fail)
    with pytest.warns(FeedlineWarning, match="No space left"):
        opened(far, cache).read(PIECE, PIECE + 10)
    for number in range(2, 10):
        opened(far, cache).read(number * PIECE, number * PIECE + 10)
    assert far.fetched == 2 * PIECE + 8 * 10
    assert cache.stats().held == taken(tmp_path / "c") == stored_bytes(PIECE)


class HeldAnywhere(Far):
    """A blob whose first read in any process waits."""

    def __init__(self, reads: Any, may_answer: Any) -> None:
        super().__init__()
        self.all_reads, self.may_answer = reads, may_answer

    def read(self, start: int, stop: int) -> bytes:
        with self.all_reads.get_lock():
            self.all_reads.value += 1
            is_first = self.all_reads.value == 1
        assert not is_first or self.may_answer.wait(60)
        return super().read(start, stop)


def _read_twice(folder: Path, far: Far) -> None:
    disk_cache.PIECE_BYTES = PIECE
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(lambda _: opened(far, DiskCache(folder, 10**6)).read(0, len(DATA)), range(2)):
            assert found == DATA


@needs_descriptors
def test_concurrent_reads_of_a_piece_fetch_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    far = HeldAnywhere(context.Value("i", 0), context.Event())
    processes = [context.Process(target=_read_twice, args=(tmp_path / "c", far)) for _ in range(3)]
    for process in processes:
        process.start()
    lock = lock_of(tmp_path / "c", far)
    while sum(waiting_for(lock, process.pid) for process in processes) < 6:
        assert all(process.is_alive() for process in processes)
    far.may_answer.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    assert far.all_reads.value == 11
    assert {path.name for path in (tmp_path / "c").iterdir() if path.name.startswith(".")} == {MARK}


@needs_descriptors
def test_a_lock_is_released_even_if_a_process_was_forked_meanwhile(tmp_path: Path) -> None:
    cache, far = DiskCache(tmp_path / "c", 10**6), Far()
    context = multiprocessing.get_context("fork")
    may_end = context.Event()
    child = context.Process(target=may_end.wait)
    path, lock = path_of(cache, far, 0), lock_of(tmp_path / "c", far)
    with ThreadPoolExecutor(1) as threads:
        waiting: list[Future[bytes | None]] = []

        def fetch() -> bytes:
            child.start()  # it inherits the descriptor, and with it the lock
            other = DiskCache(tmp_path / "c", 10**6)
            waiting.append(threads.submit(other.fetched, path, PIECE, lambda: DATA[:PIECE], is_worth=False))
            while waiting_for(lock) < 2:
                assert not waiting[0].done()
            return DATA[:PIECE]

        try:
            assert cache.fetched(path, PIECE, fetch, is_worth=False) == DATA[:PIECE]
            assert waiting[0].result(60) == DATA[:PIECE]
        finally:
            may_end.set()
            child.join()


def test_pieces_of_the_own_dataset_stay_however_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Far(), Far()
    second.address = "s3://bucket/second.tar"
    folder, limit = tmp_path / "c", 4 * stored_bytes(PIECE)
    opened(first, DiskCache(folder, limit)).read(0, 4 * PIECE)
    monkeypatch.setattr(disk_cache, "_UNUSED_S", -1.0)
    cache = DiskCache(folder, limit)
    cache.own([first.address, second.address])
    CachedBlob(second, cache).read(0, 10)
    assert all(path_of(cache, first, number).exists() for number in range(4))


def test_reading_a_piece_marks_it_as_used(tmp_path: Path) -> None:
    cache, far = DiskCache(tmp_path / "c", 10**6), Far()
    blob, path = opened(far, cache), path_of(cache, far, 0)
    blob.read(0, 10)
    os.utime(path, (1, 1))
    blob.read(0, 10)
    assert path.stat().st_mtime > 1


def test_a_forked_process_counts_only_its_own_reads(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c", 10**6)
    blob = opened(Far(), cache)
    for _ in range(2):
        blob.read(0, 10)

    def read() -> None:
        blob.read(0, 10)
        cache.stats()

    apart(read)
    assert cache.stats().served == 20


def test_leftovers_of_a_killed_process_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_LOOK_S", 0.0)
    monkeypatch.setattr(disk_cache, "_LOOK_SHARE", float("inf"))
    cache, far = DiskCache(tmp_path / "c", 4 * PIECE), Far()
    opened(far, cache).read(0, 1)
    half, young = (tmp_path / "c" / f".{path_of(cache, far, 1).name}.{end}" for end in ("half", "young"))
    others = [tmp_path / "c" / name for name in (".env", "thesis.tex", "0-1")]  # a file of the user, added later
    for path in (half, young, *others):
        path.write_bytes(b"abc")
    for path in (half, *others):
        os.utime(path, (0, 0))
    opened(far, cache).read(0, 5 * PIECE)
    assert (half.exists(), young.exists()) == (False, True)
    assert all(path.exists() for path in others)


def test_a_process_killed_while_writing_leaves_no_uncounted_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, far = DiskCache(tmp_path / "c", 4 * PIECE), Far()

    def killed(path: Path, pieces: list[bytes], *, flush: bool) -> None:
        path.write_bytes(b"".join(pieces))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "write_stored", killed)
        for number in range(3):
            with pytest.raises(KeyboardInterrupt):
                opened(far, cache).read(number * PIECE, number * PIECE + 1)
    opened(far, cache).read(3 * PIECE, 5 * PIECE)
    assert taken(tmp_path / "c") <= 4 * PIECE


def test_rejects_cache_folders_that_are_not_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert DiskCache("~/shards", 10**6).folder == tmp_path / "shards"
    wrong: Any
    for wrong, named in (("s3://ada:secret@bucket/cache", r"cache='s3://\*\*\*@bucket/cache'"), (True, "cache=True")):
        with pytest.raises(BadOption, match=named):
            DiskCache(wrong, 10**6)


# -- damage and other files -------------------------------------------------------------------------------------------


def read_parts(blob: Blob, parts: int = 4) -> None:
    for number in range(parts):
        assert blob.read(number * PIECE + 5, number * PIECE + 15) == DATA[number * PIECE + 5 : number * PIECE + 15]


def test_a_piece_that_is_damaged_after_it_was_read_is_fetched_again(tmp_path: Path) -> None:
    far, cache = Far(), DiskCache(tmp_path / "c", 4 * stored_bytes(PIECE))
    blob = opened(far, cache)
    blob.read(0, 4 * PIECE)
    read_parts(blob)
    before = far.fetched
    for number in range(4):
        path = path_of(cache, far, number)
        content = bytearray(path.read_bytes())
        content[7] ^= 1
        with open(path, "r+b") as file:  # in place, as a failing disk does
            file.write(content)
    read_parts(blob)
    read_parts(opened(far, DiskCache(tmp_path / "c", 10**6)))
    assert far.fetched == before + 4 * PIECE


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


def large(path: Path) -> None:
    path.write_bytes(bytes(2 * PIECE))


@pytest.mark.parametrize("replaced", [os.mkfifo, zeros, sparse, large])
@pytest.mark.parametrize("worth", ["part", "whole"])
def test_only_regular_files_of_the_right_size_are_pieces(tmp_path: Path, replaced: Any, worth: str) -> None:
    far, cache = Far(), DiskCache(tmp_path / "c", 1 << 40)
    for number in range(4):
        path = path_of(cache, far, number)
        path.parent.mkdir(exist_ok=True)
        (tmp_path / "c" / MARK).touch()
        replaced(path)
    blob = opened(far, cache)
    if worth == "whole":
        assert blob.read(0, 4 * PIECE) == DATA[: 4 * PIECE]
    read_parts(blob)
    assert far.fetched == 4 * PIECE
    read_parts(opened(far, DiskCache(tmp_path / "c", 1 << 40)))
    assert far.fetched == 4 * PIECE, "they were replaced"
    assert taken(tmp_path / "c") == 4 * stored_bytes(PIECE)


@pytest.mark.parametrize("replaced", [os.mkfifo, zeros])
def test_a_pipe_or_device_in_place_of_the_counts_is_not_read(tmp_path: Path, replaced: Any) -> None:
    (tmp_path / "c").mkdir()
    replaced(tmp_path / "c" / MARK)
    with pytest.warns(FeedlineWarning, match="cannot be written"):
        assert opened(Far(), DiskCache(tmp_path / "c", 10**6)).read(0, PIECE) == DATA[:PIECE]


# -- several readers of one piece ---


class Held(Far):
    """A blob whose first read waits until others are on their way, and may fail then."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.is_asked, self.may_answer, self.fails = threading.Event(), threading.Event(), fails

    def read(self, start: int, stop: int) -> bytes:
        is_first = not self.reads
        data = super().read(start, stop)
        if is_first:
            self.is_asked.set()
            assert self.may_answer.wait(60)
            if self.fails:
                raise SourceError("unreachable")
        return data


@needs_descriptors
@pytest.mark.parametrize("fails", [False, True])
def test_a_piece_without_room_is_handed_to_those_who_wait_for_it(tmp_path: Path, fails: bool) -> None:
    """If the first fetch fails, one of the others fetches, and hands its piece over, too."""
    folder, limit, far = tmp_path / "c", 4 * stored_bytes(PIECE), Held(fails)
    other = Far()
    other.address = "s3://bucket/other.tar"
    opened(other, DiskCache(folder, limit)).read(0, 4 * PIECE)
    lock = lock_of(folder, far)
    blobs = [opened(far, DiskCache(folder, limit), is_common=True) for _ in range(4)]
    with ThreadPoolExecutor(len(blobs)) as threads:
        first = threads.submit(blobs[0].read, 0, PIECE)
        assert far.is_asked.wait(60)
        others = [threads.submit(blob.read, 0, PIECE) for blob in blobs[1:]]
        while waiting_for(lock) < len(blobs):
            assert not any(one.done() for one in others)
        far.may_answer.set()
        assert [one.result() for one in others] == [DATA[:PIECE]] * 3
        if fails:
            with pytest.raises(SourceError, match="unreachable"):
                first.result()
    assert far.reads == 1 + fails
    assert not lock.exists()
    assert taken(folder) == limit


def test_parts_of_pieces_are_fetched_alone_without_room(tmp_path: Path) -> None:
    far, cache = Far(), DiskCache(tmp_path / "c", 4 * stored_bytes(PIECE))
    blob = opened(far, cache, is_common=True)
    blob.read(0, 4 * PIECE)
    before = far.fetched
    assert blob.read(5 * PIECE, 5 * PIECE + 400) == DATA[5 * PIECE : 5 * PIECE + 400]
    assert far.fetched == before + 400
    assert blob.read(5 * PIECE, 5 * PIECE + 600) == DATA[5 * PIECE : 5 * PIECE + 600]
    assert far.fetched == before + 400 + PIECE
    stats = cache.stats()
    assert (stats.fetched, stats.dropped) == (far.fetched, 400 + PIECE)


class Meeting(Far):
    """A blob whose reads of whole pieces end when so many of them have begun."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.together = threading.Barrier(count, timeout=60)

    def read(self, start: int, stop: int) -> bytes:
        if stop - start == PIECE:
            self.together.wait()
        return super().read(start, stop)


def test_reads_at_the_same_time_fetch_no_more_pieces_than_fit(tmp_path: Path) -> None:
    far, folder = Meeting(4), tmp_path / "c"
    ready = threading.Barrier(10, timeout=60)

    def read(number: int) -> bytes:
        cache = DiskCache(folder, 4 * stored_bytes(PIECE))
        ready.wait()
        return opened(far, cache).read(number * PIECE, number * PIECE + 10)

    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(read, range(10))) == [DATA[n * PIECE : n * PIECE + 10] for n in range(10)]
    assert far.fetched == 4 * PIECE + 6 * 10
    assert taken(folder) == 4 * stored_bytes(PIECE)
