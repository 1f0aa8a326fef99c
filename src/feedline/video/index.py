"""The frames of all videos of a folder: found once, in parallel, and stored in a file.

An entry holds the size and modification time of a video, and what `scan` found or why it failed. It is used only as
long as the video has this size and time. Failures are not stored: those videos are scanned again next time.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from feedline.datasets.framework.cache_file import Cache, CacheFile
from feedline.datasets.framework.paths import File
from feedline.datasets.framework.progress import Bar
from feedline.errors import BadOption, CorruptSource
from feedline.memory.sharing.packed import Packed
from feedline.system.failures import words
from feedline.system.process import core_count
from feedline.video.container import pyav
from feedline.video.frame_table import FrameTable, scan

_VERSION = 1
_HEAD = struct.Struct("<qq?")
"""Size, modification time, and whether the scan failed."""
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
        store: the file to store the index in; True for one in the user's cache folder, False for none.

    Raises:
        SourceError: a video is missing.
        BadOption: the file to store the index in contains something else.
        MissingExtra: PyAV is not installed.
    """

    def __init__(self, root: str, paths: Sequence[str], store: Cache) -> None:
        pyav()  # now rather than in every thread
        file = _stored_at(root, store)
        known = {} if file is None else file.read_as(_known) or {}
        files = [File.at(os.path.join(root, path)) for path in paths]
        entries = [_fitting(known.get(path), one) for path, one in zip(paths, files, strict=True)]
        is_old = bool(_complete(entries, files))
        self._entries = Packed(iter(entries), is_text=False)
        if file is not None and is_old and (store is not True or len(paths) >= _WORTH_STORING):
            known = {path: entry for path, entry in known.items() if os.path.exists(os.path.join(root, path))}
            file.write(_to_store({**known, **dict(zip(paths, entries, strict=True))}))

    def table(self, number: int, path: str) -> FrameTable:
        """Return the frames of a video, whose path is given for errors.

        Raises:
            CorruptSource: it could not be scanned.
            SourceChanged: it has changed since.
        """
        entry = self._entries.get(number)
        size, time, failed = _HEAD.unpack_from(entry)
        File(path, size, time).check()
        content = entry[_HEAD.size :]
        if failed:
            raise CorruptSource(content.decode())
        return FrameTable.decode(content)

    def __len__(self) -> int:
        return len(self._entries)


def _stored_at(root: str, store: Cache) -> CacheFile | None:
    about = {"version": _VERSION}
    if isinstance(store, bool):
        return CacheFile.at(store, "videos", {**about, "root": os.path.abspath(root)})
    file = CacheFile(Path(store).parent, "videos", about)
    file.path = Path(os.path.realpath(store))  # kept files are not read through a link
    if file.is_of_others():
        raise BadOption(
            f"index={str(store)!r} is a file, but not an index of videos. Choose another path for the index."
        )
    return file


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
    whole = {path: entry for path, entry in entries.items() if not _HEAD.unpack_from(entry)[2]}
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
    return entry if entry and _HEAD.unpack_from(entry)[:2] == (file.size, file.tag) else b""


def _entry(file: File) -> bytes:
    try:
        failed, content = False, scan(file.path).encode()
    except CorruptSource as exc:
        failed, content = True, f"{words(exc)}.".encode()
    return _HEAD.pack(file.size, int(file.tag), failed) + content


@contextlib.contextmanager
def _shown(count: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar in a terminal, if there is much to do."""
    with Bar(quiet=count < _WORTH_SHOWING) as bar:
        bar.begin("index videos", count)
        yield lambda: bar.update(advance=1)
