"""The durations of audio files, from their headers: lengths for samplers that put similar ones into a batch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.abc.source import Selection
from feedline.audio.decoding import info
from feedline.datasets.formats.files.dataset import FileDataset
from feedline.datasets.framework.progress import Bar
from feedline.datasets.framework.store import Cache, Entry, checked_cache
from feedline.errors import BadOption, CorruptSource, DataWarning, SourceError, warn_user
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.options import checked_count, checked_number

_VERSION = 2
_WORTH_KEEPING = 1000
"""Durations of at least this many files go to the user's cache folder."""
_CHUNK = 512
"""Files that are handed to the threads at a time."""
_QUIET_S = 2.0
"""A progress bar appears if it takes longer than this."""

T = TypeVar("T")
Seconds = NDArray[np.float64]
Places = NDArray[np.int64]


def durations(audio: object, *, cache: Cache = True, damaged: float | None = None, threads: int = 8) -> Seconds:
    """Return the seconds of each sample of a dataset of audio files, reading only their headers.

    They are the `lengths` of `LengthBucketBatchSampler` and `TokenBudgetBatchSampler`. Several threads read the
    headers. The result is stored; later calls for the same paths read only the headers of files that have changed. On a
    terminal, a progress bar appears if it takes long.

    Args:
        audio: an `AudioFolder` or another `FileDataset`, a part of one (`feedline.split`, torch's `Subset`), or paths.
            Of a part, only the headers of its own files are read.
        cache: True to store the durations of 1,000 files or more in the user's cache folder (`$FEEDLINE_CACHE`), False
            to store nothing, or a folder to store these in.
        damaged: seconds to return for files whose header cannot be read, with a warning; None to raise an error. Use it
            together with `on_error=` of the loader.
        threads: how many headers to read at a time.

    Returns:
        An array with the seconds of each sample, in the order of the samples.

    Raises:
        BadOption: an argument is invalid, or the samples of the dataset are not files.
        CorruptSource: a file is damaged, cut off, empty or not audio.
        SourceError: a file cannot be read.
        MissingExtra: soundfile is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np, soundfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for seconds in (1, 3, 2):
        ...     soundfile.write(folder / f"{seconds}.flac", np.zeros(8000 * seconds), 8000)
        >>> durations(sorted(folder.glob("*.flac"))).tolist()
        [1.0, 2.0, 3.0]
    """
    require("soundfile", extra="audio", purpose="Reading the headers of audio files")
    checked_count("threads", threads)
    instead = np.nan if damaged is None else checked_number("damaged", damaged, low=0)
    audio, part = _origin_of(audio)
    paths = _paths_of(audio)
    places = np.arange(len(paths)) if part is None else np.arange(len(paths))[part]
    wanted = np.unique(places)
    stamps = np.array(list(_mapped(_stamp_of, [paths[place] for place in wanted.tolist()], threads)), np.int64)
    digest = hashlib.blake2b("\0".join(map(os.path.abspath, paths)).encode("utf-8", "surrogatepass")).hexdigest()
    file = Entry.within(checked_cache(cache), "durations", {"version": _VERSION, "paths": digest})
    index = None if file is None else file.load(lambda stored: _Index.of(stored, len(paths)))
    index = index or _Index.of({}, len(paths))
    unread = index.unread(wanted, stamps.reshape(-1, 3))
    _read(index.seconds, unread, paths, threads, skip=damaged is not None)
    if file is not None and len(unread) and (cache is not True or len(paths) >= _WORTH_KEEPING):
        file.save({"stamps": index.stamps, "seconds": index.seconds})
    lost = wanted[np.isnan(index.seconds[wanted])]
    if len(lost):
        warn_user(
            f"The headers of {len(lost)} of {len(wanted)} audio files cannot be read, such as that of "
            f"{paths[lost[0]]}. Their duration is taken to be {damaged} s. Loading them fails: see on_error= of the "
            "loader.",
            DataWarning,
        )
    found: Seconds = index.seconds[places]
    return np.where(np.isnan(found), instead, found)


@dataclass(frozen=True)
class _Index:
    """The durations of files, by place in the list of paths, and the stamp that each file had. NaN: not read."""

    stamps: NDArray[np.int64]
    seconds: Seconds

    @classmethod
    def of(cls, stored: Mapping[str, ArrayLike], count: int) -> _Index:
        """Return a copy of what is stored. Raises ValueError: it is not for so many files."""
        index = cls(np.full((count, 3), -1, np.int64), np.full(count, np.nan))
        index.stamps[:] = stored.get("stamps", -1)
        index.seconds[:] = stored.get("seconds", np.nan)
        return index

    def unread(self, places: Places, stamps: NDArray[np.int64]) -> Places:
        """Note these stamps, and return the places whose header has to be read."""
        changed = (self.stamps[places] != stamps).any(axis=1)
        self.seconds[places[changed]] = np.nan
        self.stamps[places] = stamps
        return places[np.isnan(self.seconds[places])]


def _origin_of(audio: object) -> tuple[object, Places | None]:
    """Return the dataset that a part was taken from, and the places of its samples there; None for all of them."""
    places: Places | None = None
    while isinstance(audio, Selection) or (hasattr(audio, "dataset") and hasattr(audio, "indices")):  # torch's Subset
        indices = np.asarray(audio.indices, np.int64)
        places = indices if places is None else indices[places]
        audio = audio.dataset
    return audio, places


def _paths_of(audio: object) -> Sequence[str]:
    if isinstance(audio, FileDataset):
        return [audio.path_of(index) for index in range(len(audio))]
    if isinstance(audio, (str, bytes, os.PathLike)) or not isinstance(audio, Iterable):
        raise BadOption(
            f"{audio!r} is neither a dataset of audio files nor a list of paths. Give an AudioFolder, or for example "
            "sorted(folder.glob('*.flac'))."
        )
    paths = []
    for path in audio:
        if not isinstance(path, (str, os.PathLike)):
            raise BadOption(
                f"Durations are read from files, but a {type(path).__name__} is among these, not a path. For audio in "
                "shards or tables, call feedline.audio.info(sample[...]).seconds for each sample."
            )
        paths.append(os.fspath(path))
    return paths


def _stamp_of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as exc:
        raise SourceError(exc.errno, f"The audio file cannot be read ({exc.strerror})", path) from exc
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _seconds_of(path: str) -> float | CorruptSource:
    try:
        return info(path).seconds
    except CorruptSource as exc:
        return exc


def _read(found: Seconds, unread: Places, paths: Sequence[str], threads: int, *, skip: bool) -> None:
    """Read the headers of these files."""
    wanted = [paths[place] for place in unread.tolist()]
    for place, answer in zip(unread.tolist(), _shown(_mapped(_seconds_of, wanted, threads), len(wanted)), strict=True):
        if isinstance(answer, float):
            found[place] = answer
        elif not skip:
            raise CorruptSource(
                f"The duration of {paths[place]} cannot be read: {words(answer)}. Or give damaged=0.0, and on_error= "
                "to the loader."
            ) from answer


def _mapped(function: Callable[[str], T], paths: Sequence[str], threads: int) -> Iterator[T]:
    if threads == 1 or len(paths) < threads:
        yield from map(function, paths)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="feedline-audio") as pool:
        for start in range(0, len(paths), _CHUNK):
            yield from pool.map(function, paths[start : start + _CHUNK])


def _shown(items: Iterator[T], total: int) -> Iterator[T]:
    """Yield the items, with a progress bar if they take long."""
    with Bar(after_s=_QUIET_S) as bar:
        bar.begin("reading audio headers", total)
        for item in items:
            yield item
            bar.update(advance=1)
