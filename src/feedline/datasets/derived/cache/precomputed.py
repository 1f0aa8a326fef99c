"""`PrecomputedDataset`: samples that `feedline.precompute` stored."""

from __future__ import annotations

import os
from pathlib import Path

from feedline.datasets.derived.cache import sample_store
from feedline.datasets.derived.cache.sample_store import SampleStore, decode
from feedline.datasets.framework.source import Indices, Source, Transform
from feedline.errors import CorruptSource, SourceChanged, SourceError
from feedline.system.failures import words


class PrecomputedDataset(Source):
    """Reads the samples that `feedline.precompute` stored in a folder, without the original dataset.

    Args:
        path: the folder.
        transform: applied to each sample after it is read.
        pickle: True if samples may have been stored with pickle; only for folders that you trust.

    Raises:
        SourceError: there are no samples, or they are incomplete; raised when the first sample is read.
        CorruptSource: a sample is damaged.
        SourceChanged: samples of another dataset have been stored there since the first one was read.

    Example:
        >>> import feedline, tempfile
        >>> out = tempfile.mkdtemp()
        >>> feedline.precompute([1.5, 2.5], out, progress=False)
        PrecomputedDataset(2 samples of float)
        >>> PrecomputedDataset(out)[1]
        2.5
    """

    _lazy = ("_store", "_count")

    def __init__(
        self, path: str | os.PathLike[str], *, transform: Transform | None = None, pickle: bool = False
    ) -> None:
        super().__init__(transform)
        self.path = Path(path).absolute()
        self._pickles = pickle
        self._store: SampleStore | None = None
        self._count = 0

    def _opened(self) -> SampleStore:
        if self._store is not None:
            return self._store
        if not sample_store.has_store(self.path):
            raise SourceError(f"There are no precomputed samples in {self.path}. Create them with feedline.precompute.")
        store = sample_store.read_store(self.path)
        head = store.head()
        if head is None:
            raise CorruptSource(
                f"{self.path / sample_store.FILE} is damaged, or from another version of feedline. Remove the folder "
                "and call feedline.precompute again."
            )
        if not store.is_whole:
            raise SourceError(
                f"The samples in {self.path} are incomplete: feedline.precompute was interrupted. Call it again with "
                "the same dataset to resume."
            )
        store.open(head)
        self._count, self._store = head.count, store
        return store

    def __len__(self) -> int:
        self._opened()
        return self._count

    def _read(self, indices: Indices) -> list[object]:
        store = self._opened()
        return [self._sample(store, index) for index in indices.tolist()]

    def _sample(self, store: SampleStore, index: int) -> object:
        found = store.get(index)
        if found is None:
            if not store.is_current():
                raise SourceChanged(
                    f"{self.path} now contains samples of another dataset: feedline.precompute was called with "
                    "overwrite=True after this one was opened. Create a new PrecomputedDataset to read them."
                )
            what = "damaged" if index in store.damaged else "absent"
            raise CorruptSource(
                f"Sample {index} in {self.path} is {what}: the file was changed or cut off after it was written. Call "
                "feedline.precompute again with the same dataset: it keeps intact samples and makes the others again."
            )
        try:
            return decode(found, pickles=self._pickles)
        except CorruptSource as exc:
            raise CorruptSource(f"Sample {index} in {self.path} cannot be read: {words(exc)}.") from exc

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _form(self) -> str:
        return type(self._read(self._checked([0]))[0]).__name__ if len(self) else "nothing"
