"""The frames of all videos of a folder: found once, in parallel, and stored in a file.

An entry holds the stamp of a video, and what `scan` found or why it failed. It is used only as long as the video has
this stamp. Failures are not stored: those videos are scanned again next time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from feedline.datasets.framework.paths import File
from feedline.datasets.framework.progress import Bar
from feedline.datasets.framework.store import Cache, Entry, checked_cache
from feedline.errors import CorruptSource
from feedline.memory.sharing.packed import Packed
from feedline.system.failures import words
from feedline.system.process import core_count
from feedline.video.container import pyav
from feedline.video.frame_table import FrameTable, scan

_VERSION = 2
_FAILED = b"failed: "
"""How the content of an entry begins if the scan failed."""
_WORTH_STORING = 100
"""The fewest videos for which an index is stored if no path is given: fewer are scanned in a second."""
_WORTH_SHOWING = 200
"""The fewest videos to scan for which a terminal shows a progress bar."""
_PART = 1024
"""Videos that the threads are given at a time."""


class VideoIndex:
    """The frames of videos, by the number of the video.

    Args:
        root: the folder of the videos.
        paths: of the videos, below the folder.
        store: the folder to keep the index in; True for the user's cache folder, False for none. The index in a folder
            is also used for copies of the videos, so only their sizes and modification times are compared.

    Raises:
        SourceError: a video is missing.
        BadOption: the folder to keep the index in contains other files.
        MissingExtra: PyAV is not installed.
    """

    def __init__(self, root: str, paths: Sequence[str], store: Cache) -> None:
        pyav()  # now rather than in every thread
        about = {"version": _VERSION, **({"root": os.path.abspath(root)} if store is True else {})}
        file = Entry.within(checked_cache(store), "videos", about)
        known = {} if file is None else file.load(_known) or {}
        files = [File.at(os.path.join(root, path)) for path in paths]
        if store is not True:
            files = [replace(one, changed="") for one in files]
        entries = [_fitting(known.get(path), one) for path, one in zip(paths, files, strict=True)]
        is_old = bool(_complete(entries, files))
        self._entries = Packed(iter(entries), is_text=False)
        if file is not None and is_old and (store is not True or len(paths) >= _WORTH_STORING):
            known = {path: entry for path, entry in known.items() if os.path.exists(os.path.join(root, path))}
            file.save(_to_store({**known, **dict(zip(paths, entries, strict=True))}))

    def table(self, number: int, path: str) -> FrameTable:
        """Return the frames of a video, whose path is given for errors.

        Raises:
            CorruptSource: it could not be scanned.
            SourceChanged: it has changed since.
        """
        stamp, _, content = self._entries.get(number).partition(b"\n")
        size, time, _ = stamp.split(b"-", 2)
        File(path, int(size), int(time)).check()
        if content.startswith(_FAILED):
            raise CorruptSource(content.removeprefix(_FAILED).decode())
        return FrameTable.decode(content)

    def __len__(self) -> int:
        return len(self._entries)


def _complete(entries: list[bytes], files: Sequence[File]) -> int:
    """Scan the files whose entry is empty; returns their number."""
    missing = [number for number, entry in enumerate(entries) if not entry]
    with _shown(len(missing)) as advance, ThreadPoolExecutor(core_count(), "feedline-scan") as threads:
        for start in range(0, len(missing), _PART):
            part = missing[start : start + _PART]
            for number, entry in zip(part, threads.map(_entry, (files[number] for number in part)), strict=True):
                entries[number] = entry
                advance()
    return len(missing)


def _to_store(entries: Mapping[str, bytes]) -> object:
    """Return what is stored, for this dataset and others that have a part of the same folder."""
    whole = {path: entry for path, entry in entries.items() if not entry.partition(b"\n")[2].startswith(_FAILED)}
    return {
        "paths": Packed(list(whole), is_text=True).arrays(),
        "entries": Packed(iter(whole.values()), is_text=False).arrays(),
    }


def _known(stored: Mapping[str, dict[str, object]]) -> dict[str, bytes]:
    paths, entries = (Packed.of_arrays(stored[name]) for name in ("paths", "entries"))
    every = range(len(paths))
    return dict(zip(paths.each(every), entries.each(every), strict=True))


def _fitting(entry: bytes | None, file: File) -> bytes:
    """Return an entry if it is about the file as it is now; otherwise nothing."""
    return entry if entry and entry.startswith(f"{file.stamp}\n".encode()) else b""


def _entry(file: File) -> bytes:
    try:
        content = scan(file.path).encode()
    except CorruptSource as exc:
        content = _FAILED + f"{words(exc)}.".encode()
    return f"{file.stamp}\n".encode() + content


@contextlib.contextmanager
def _shown(count: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar in a terminal, if there is much to do."""
    with Bar(quiet=count < _WORTH_SHOWING) as bar:
        bar.begin("index videos", count)
        yield lambda: bar.update(advance=1)
