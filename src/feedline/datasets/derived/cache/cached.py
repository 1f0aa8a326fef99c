"""`CachedDataset`: samples are computed once and kept, in memory that all workers share, on disk, or both."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from feedline.abc.description import Described, Description, description_of
from feedline.abc.source import Derived, EpochAware
from feedline.datasets.derived.cache import sample_store
from feedline.datasets.derived.cache.fingerprint import fingerprint
from feedline.datasets.derived.cache.keepable import RandomWatch, check_dataset
from feedline.datasets.derived.cache.sample_store import Encoded, Head, SampleStore, decode, encode
from feedline.datasets.derived.cache.shared_bytes import Counters, SharedMemory
from feedline.datasets.framework.paths import local_output
from feedline.datasets.framework.source import Indices, Source, Transform
from feedline.datasets.framework.store import check_own
from feedline.errors import BadOption, CorruptSource, PerformanceWarning, warn_user
from feedline.system.process import lock_of_process
from feedline.system.sizes import byte_count

_one_thread = lock_of_process()
"""Held to drop samples: of a loader's threads, which have copies of a dataset, only the first in an epoch does so."""

_MISSING = object()
"""Marks a sample that is not cached."""


class CachedDataset(Source, EpochAware, Derived, Described):
    """Caches the samples of a map-style dataset.

    All workers, whether threads or processes, share one copy. A full cache evicts nothing: the first samples stay,
    which is optimal in random order. Samples are stored as records, without pickle, each with a checksum; a damaged one
    is made again.

    A sample that draws random numbers while it is made is not cached, and a warning reports it. Pass random steps as
    `transform=`, which is applied to samples that come out of the cache.

    Args:
        dataset: the map-style dataset to cache. If its `__getitem__` is an `async def`, so is that of the cache.
        memory: the limit of shared memory: bytes, or a text such as "4GB".
        disk: a folder for samples, which outlives the program and which several programs may use at once. It must be
            new, empty, or have held a cache before. Use one folder per dataset: samples from a cache of another
            dataset, or of another transform, are dropped.
        disk_limit: the limit of disk space; half of the free space if not given.
        version: anything with a `repr`; a disk cache of another version is dropped. Without it, these changes are
            detected: the dataset's attributes, the source text of its class and of functions that it holds, and the
            files that its attributes name. Change the version when anything else changes: functions that this code
            calls, constants of a module, the rows of a database.
        transform: applied to each sample on delivery, and not cached.
        pickle: True to pickle samples that a record cannot hold. Only for folders that you alone can write to.
        freeze_random: True to cache samples that draw random numbers; they are then the same in all epochs.
        copy: False to get arrays that are read-only views of the shared memory.

    Raises:
        BadOption: an argument, or a combination of arguments, is invalid.

    Example:
        >>> cached = CachedDataset([1.5, 2.5, 3.5], memory="1MB")
        >>> [cached[0], cached[0], cached[2]], cached.stats()["hits"]
        ([1.5, 1.5, 3.5], 1)
    """

    changes_with_epoch = False

    _lazy = ("_counters", "_memory", "_disk", "_head", "_maker", "_has_warned")

    # Any: a dataset, a version and a sample are any objects.
    def __new__(cls, dataset: object = None, **options: object) -> Any:
        if cls is CachedDataset and inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None)):
            return object.__new__(AsyncCachedDataset)
        return object.__new__(cls)

    def __init__(
        self,
        dataset: Any,
        *,
        memory: int | str | None = None,
        disk: str | os.PathLike[str] | None = None,
        disk_limit: int | str | None = None,
        version: object = None,
        transform: Transform | None = None,
        pickle: bool = False,
        freeze_random: bool = False,
        copy: bool = True,
    ) -> None:
        super().__init__(transform)
        check_dataset(dataset, freeze_random=freeze_random)
        if memory is None and disk is None:
            raise BadOption("A cache needs memory or disk space: pass memory='4GB', disk='some/folder', or both.")
        if disk is None and disk_limit is not None:
            raise BadOption(f"disk_limit={disk_limit!r} was given without disk=. Pass the folder that it limits.")
        self.dataset = dataset
        self._version = version
        self._pickles = pickle
        self._freezes = freeze_random
        self._copies = copy
        size = byte_count("memory", memory)
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if size is not None and size > whole:
            raise BadOption(f"memory={size} is more than the {whole} bytes of memory that this machine has.")
        self._memory = None if size is None else SampleStore(SharedMemory(size), limit=size)
        self._folder = None if disk is None else local_output("disk", disk)
        if self._folder is not None:
            check_own(self._folder, sample_store.FILE)
        self._disk_limit = byte_count("disk_limit", disk_limit)
        self._disk: SampleStore | None = None
        self._counters = Counters("memory_hits", "disk_hits", "misses", "damaged", "random")
        self._head: Head | None = None
        self._maker = os.getpid()
        self._has_warned = False

    def __len__(self) -> int:
        return len(self.dataset) if self._head is None else self._head.count

    def origin(self, index: object) -> tuple[object, object]:
        return self.dataset, index

    def _head_now(self) -> Head:
        head = Head(fingerprint(self.dataset, repr(self._version), self._pickles), len(self.dataset))
        least = SampleStore.least_bytes(head.count)
        if self._memory is not None and least >= self._memory.limit:
            raise BadOption(
                f"memory={self._memory.limit} is too little: the index of {head.count} samples alone takes {least} "
                "bytes. Allow more, or use disk=."
            )
        return head

    def _open(self) -> Head:
        """Return the head of the cache, which identifies its dataset; open the cache first if needed."""
        if self._head is not None:
            return self._head
        head = self._head_now()
        if self._memory is not None:
            self._memory.open(head)
        if self._folder is not None:
            self._open_disk(self._folder, head)
        self._head = head
        return head

    def _open_disk(self, place: Path, head: Head) -> None:
        if sample_store.head_of(place) != head:
            sample_store.refuse_whole(place)
        self._disk, dropped = sample_store.write_store(place, head, self._disk_limit)
        if dropped:
            warn_user(
                f"The cache in {place} was dropped and will be filled again: it was damaged, or belonged to another "
                "version, or to a dataset or transform that has changed. If two datasets share the folder by mistake, "
                "give each its own.",
                PerformanceWarning,
            )

    def describe(self) -> Description | None:
        return description_of(self.dataset)  # a cache may be added and left out

    def set_epoch(self, epoch: int) -> None:
        """Check whether the dataset has changed since the last epoch; if so, drop all samples. Loaders call this."""
        with _one_thread:
            if self._head is None:
                self._open()
                return
            head = self._head_now()
            is_maker = os.getpid() == self._maker
            if is_maker and head == self._head:
                return
            if is_maker and not all(store is None or store.head() == head for store in (self._memory, self._disk)):
                warn_user(
                    "The dataset inside a CachedDataset has changed, so its cached samples are dropped. If it changes "
                    "whenever it is read (a counter, an open file), give it a method fingerprint() that returns a "
                    "string of what its samples depend on.",
                    PerformanceWarning,
                )
                self.clear()
            else:
                self._follow(head)

    def _follow(self, head: Head) -> None:
        """Adopt changes to the cache by another thread or by the program that started this worker.

        A persistent worker may have an old dataset: for it, a cache of the new dataset has no samples and no room.
        """
        if self._memory is not None:
            self._memory.open(head)
        if self._disk is not None and self._folder is not None and sample_store.has_store(self._folder):
            self._disk.close()  # the folder may have been removed and created again
            self._disk.open(head)
        self._head = head

    def clear(self) -> None:
        """Drop all cached samples, in memory and on disk."""
        self._open()
        if self._folder is not None and self._disk is not None:
            sample_store.refuse_whole(self._folder)
            self._disk.close()
            sample_store.write_store(self._folder, self._open(), 0)[0].close()  # the folder may have been removed
        head = self._head_now()
        for store in (self._memory, self._disk):
            if store is not None:
                store.empty(head)
        self._head = head

    def close(self) -> None:
        """Close the file on disk in this process. Samples in memory live as long as this object or a worker."""
        if self._disk is not None:
            self._disk.close()

    def __getitem__(self, index: object) -> Any:
        listed = self._listed_index(index)
        sample = self._look_up(listed)
        if sample is _MISSING:
            sample = self._made([listed])[0]
        return sample if self.transform is None else self.transform(sample)

    @property
    def __getitems__(self) -> Callable[[Iterable[object]], list[Any]] | None:  # type: ignore[override]  # may be absent
        """Returns the samples of several indices. None unless the dataset can do that: loaders look for it."""
        return super().__getitems__ if callable(getattr(self.dataset, "__getitems__", None)) else None

    def _read(self, indices: Indices) -> list[object]:
        self._open()
        listed = indices.tolist()
        samples = [self._look_up(index) for index in listed]
        missing = [place for place, sample in enumerate(samples) if sample is _MISSING]
        if missing:
            for place, sample in zip(missing, self._made([listed[place] for place in missing]), strict=True):
                samples[place] = sample
        return samples

    def _listed_index(self, index: object) -> int:
        """Return a checked index; open the cache if needed."""
        head = self._open()
        return index if type(index) is int and 0 <= index < head.count else int(self._checked([index])[0])

    def _look_up(self, index: int) -> object:
        """Return a cached sample; `_MISSING` if there is none."""
        memory, disk = self._memory, self._disk
        if memory is not None:
            sample = self._kept(memory, index, memory.get(index, view=not self._copies))
            if sample is not _MISSING:
                self._counters.add("memory_hits")
                return sample
        if disk is None:
            return _MISSING
        found = disk.get(index)
        sample = self._kept(disk, index, found)
        if sample is not _MISSING:
            self._counters.add("disk_hits")
            if memory is not None and found is not None and not memory.is_full:
                memory.put(index, found)
        return sample

    def _kept(self, store: SampleStore, index: int, found: Encoded | None) -> object:
        if found is not None:
            try:
                return decode(found, pickles=self._pickles)
            except CorruptSource:
                store.damaged.add(index)
        if index in store.damaged:
            self._counters.add("damaged")
        return _MISSING

    def _made(self, indices: list[int]) -> list[object]:
        """Make missing samples with the dataset, and cache them."""
        watch = RandomWatch()
        several = getattr(self.dataset, "__getitems__", None)
        with watch.watching():
            if callable(several) and len(indices) > 1:
                samples = list(several(indices))
            else:
                samples = [self.dataset[index] for index in indices]
        if len(samples) != len(indices):
            raise ValueError(
                f"{type(self.dataset).__name__}.__getitems__ returned {len(samples)} samples, not {len(indices)}."
            )
        return self._keep(indices, samples, watch)

    def _keep(self, indices: list[int], samples: list[object], watch: RandomWatch) -> list[object]:
        """Store samples where there is room, unless they are random; return them as the cache will return them."""
        self._counters.add("misses", len(indices))
        if watch.generators and not self._freezes:
            self._counters.add("random", len(indices))
            if not self._has_warned:
                self._has_warned = True
                warn_user(
                    f"Samples of {type(self.dataset).__name__} are not cached: making them draws random numbers (from "
                    f"{', '.join(watch.generators)}), and a cached sample would be the same in every epoch. Pass the "
                    "random part as CachedDataset(..., transform=), which is applied to samples that come out of the "
                    "cache; or pass freeze_random=True to keep the first draw of each sample.",
                    PerformanceWarning,
                )
            return samples
        kept = []
        for index, sample in zip(indices, samples, strict=True):
            encoded = encode(sample, pickles=self._pickles)
            for store in (self._memory, self._disk):
                if store is not None and not store.is_full:
                    store.put(index, encoded)
            own = Encoded(bytearray(encoded.data), encoded.is_pickle)
            kept.append(decode(own, pickles=self._pickles))
        return kept

    def stats(self) -> dict[str, int]:
        """Return counters of all workers since this object was created, and the size of the cache.

        `hits` and `misses`; `memory_hits` and `disk_hits`, which add up to `hits`; `damaged`, samples that had to be
        made again; `random`, samples that were not cached because they draw random numbers; samples and bytes in memory
        and on disk.
        """
        self._open()
        totals = self._counters.totals()
        found = {"hits": totals["memory_hits"] + totals["disk_hits"], **totals}
        for where, store in (("memory", self._memory), ("disk", self._disk)):
            if store is not None:
                found[f"{where}_samples"] = store.stored
                found[f"{where}_bytes"] = store.used_bytes
                found[f"{where}_limit"] = store.limit
        return found

    def _form(self) -> str:
        return f"a {type(self.dataset).__name__}"

    def __repr__(self) -> str:
        parts = [f"{len(self)} samples of {self._form()}"]
        if self._memory is not None:
            parts.append(f"memory={self._memory.limit}")
        if self._folder is not None:
            parts.append(f"disk={str(self._folder)!r}")
        if self.transform is not None:
            parts.append(f"transform={self.transform!r}")
        return f"CachedDataset({', '.join(parts)})"


class AsyncCachedDataset(CachedDataset):
    """The `CachedDataset` for a dataset whose `__getitem__` is an `async def`; its own is one too.

    The missing samples of a batch are awaited concurrently. Only `feedline.rng()` is watched.
    """

    async def __getitem__(self, index: object) -> Any:
        listed = self._listed_index(index)
        sample = self._look_up(listed)
        if sample is _MISSING:
            watch = RandomWatch()
            with watch.watching_task():
                sample = await self.dataset[listed]
            sample = self._keep([listed], [sample], watch)[0]
        return sample if self.transform is None else self.transform(sample)

    @property
    def __getitems__(self) -> None:  # type: ignore[override]  # samples are awaited one by one, at the same time
        """None: samples are awaited individually and concurrently."""
        return None


__all__ = ["CachedDataset"]
