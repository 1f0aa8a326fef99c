"""`precompute`: make the samples of a dataset once, and store them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feedline.datasets.derived.cache import sample_store
from feedline.datasets.derived.cache.fingerprint import fingerprint
from feedline.datasets.derived.cache.keepable import RandomWatch, check_dataset
from feedline.datasets.derived.cache.precomputed import PrecomputedDataset
from feedline.datasets.derived.cache.sample_store import Head, SampleStore, encode
from feedline.datasets.framework.paths import local_output
from feedline.datasets.framework.progress import Bar
from feedline.datasets.framework.store import check_own
from feedline.errors import BadOption, SourceChanged, SourceError
from feedline.loader.base import session_of
from feedline.loader.loader import Loader
from feedline.types import EngineName

_BATCH = 16
"""Samples between reports of a worker. A guess: often enough for a progress bar, rarely enough to cost nothing."""

_LIMIT = 1 << 62
"""In effect no limit: the store may fill the disk."""


# Any, throughout: a dataset, a version and a sample are any objects.
def precompute(
    dataset: Any,
    out: str | os.PathLike[str],
    *,
    workers: int = 0,
    engine: EngineName = "auto",
    transform: Callable[[Any], object] | None = None,
    version: object = None,
    overwrite: bool = False,
    pickle: bool = False,
    freeze_random: bool = False,
    seed: int | None = None,
    progress: bool | None = None,
) -> PrecomputedDataset:
    """Make every sample of a map-style dataset once and store it; return a dataset that reads the stored samples.

    If it is interrupted, call it again with the same arguments to resume. An incomplete folder is never mistaken for a
    complete one: it is marked as complete only after every sample was read back undamaged. If all samples are stored
    already, they are checked, and damaged ones are made again.

    Args:
        dataset: the dataset to store. Asynchronous samples are read many at a time.
        out: the folder to store the samples in: new, empty, or one that holds stored samples of this dataset.
        workers: number of workers that make samples; 0 to make them in this process.
        engine: the engine of the loader that makes them: see `feedline.Loader`.
        transform: applied to each sample that the returned dataset delivers; its result is not stored, so random
            augmentation belongs here.
        version: anything with a `repr`; see `feedline.datasets.CachedDataset`.
        overwrite: True to drop samples of another dataset that are in the folder.
        pickle: True to pickle samples that a record cannot hold.
        freeze_random: True to store samples that draw random numbers.
        seed: the seed of these random numbers.
        progress: True to show a progress bar; None to show one in a terminal.

    Raises:
        BadOption: the dataset is not map-style, or draws random numbers; or the folder holds unrelated files.
        SourceChanged: the folder holds the samples of another dataset.
        SourceError: the folder cannot be written to, or the disk is full.

    Example:
        >>> import feedline, tempfile
        >>> out = tempfile.mkdtemp()
        >>> stored = feedline.precompute([[1, 2], [3, 4]], out, progress=False)
        >>> stored[1], len(stored)
        ([3, 4], 2)
    """
    check_dataset(dataset, freeze_random=freeze_random)
    path = local_output("out", out)
    head = Head(fingerprint(dataset, repr(version), pickle), len(dataset))
    store = _begun(path, head, overwrite=overwrite)
    missing = [index for index in range(head.count) if store.get(index) is None]
    filling = _filling(dataset, store, path, pickles=pickle, freezes=freeze_random)
    loader = Loader(
        filling, _BATCH, sampler=missing, collate_fn=list, workers=workers, engine=engine, in_order=False, seed=seed
    )
    session_of(loader).rank_watch.is_over = True  # this process makes all samples, whatever its rank
    is_shown = sys.stderr.isatty() if progress is None else progress
    with Bar(quiet=not is_shown, stays=is_shown) as bar:
        bar.begin(f"precompute {path.name}", head.count, done=head.count - len(missing), unit="samples")
        for sizes in loader:
            bar.update(advance=len(sizes))
    _finish(path, store, missing)
    return PrecomputedDataset(path, transform=transform, pickle=pickle)


def _begun(path: Path, head: Head, *, overwrite: bool) -> SampleStore:
    """Open the store to fill, which may hold samples already."""
    check_own(path, sample_store.FILE)
    if not overwrite and sample_store.has_store(path) and sample_store.head_of(path) != head:
        raise SourceChanged(
            f"{path} holds samples of another dataset, transform or version, or is damaged. Choose another folder, or "
            "pass overwrite=True to drop them."
        )
    store, _ = sample_store.write_store(path, head, _LIMIT)
    if not store.is_current():
        raise _overtaken(path)
    return store


def _overtaken(path: Path) -> SourceChanged:
    return SourceChanged(
        f"Another program has meanwhile stored samples of another dataset in {path}. Give each its own folder."
    )


def _finish(path: Path, store: SampleStore, missing: list[int]) -> None:
    """Read the new samples back, and mark the folder as complete."""
    if sample_store.head_of(path) != store.head():  # another program has replaced the file that this process has open
        raise _overtaken(path)
    damaged = [index for index in missing if store.get(index) is None]
    if damaged:
        raise SourceError(
            f"{len(damaged)} samples stored in {path} cannot be read back; the first is sample {damaged[0]}. The "
            "disk may be failing. Call precompute again to store them again."
        )
    store.note_whole()
    store.close()


class _Filling:
    """A dataset whose items are sizes: getting one makes a sample and stores it."""

    def __init__(self, dataset: Any, store: SampleStore, path: Path, *, pickles: bool, freezes: bool) -> None:
        self._dataset = dataset
        self._pickles = pickles
        self._freezes = freezes
        self._store = store
        self._path = path

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> int:
        watch = RandomWatch()
        with watch.watching():
            sample = self._dataset[index]
        return self._keep(index, sample, watch.generators)

    def _keep(self, index: int, sample: object, generators: list[str]) -> int:
        if generators and not self._freezes:
            raise BadOption(
                f"Sample {index} draws random numbers (from {', '.join(generators)}), so a stored copy would be "
                "the same in every epoch. Move the random part into precompute(..., transform=), which is applied "
                "after reading, or allow it with freeze_random=True."
            )
        encoded = encode(sample, pickles=self._pickles)
        if not self._store.put(index, encoded):
            if not self._store.is_current():
                raise _overtaken(self._path)
            raise SourceError(f"The disk of {self._path} is full. Free some space and call precompute again to resume.")
        return len(encoded.data)


class _AsyncFilling(_Filling):
    """The same for a dataset with asynchronous samples.

    Random draws are not detected here: while several samples are in flight, a draw cannot be attributed to one.
    """

    async def __getitem__(self, index: int) -> int:  # type: ignore[override]  # the loader awaits it
        return self._keep(index, await self._dataset[index], [])


def _filling(dataset: object, store: SampleStore, path: Path, *, pickles: bool, freezes: bool) -> _Filling:
    is_async = inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None))
    return (_AsyncFilling if is_async else _Filling)(dataset, store, path, pickles=pickles, freezes=freezes)
