"""`CachedDataset`: samples are made once and kept, in memory that all workers share, on disk, or both."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.abc.selection import Derived
from feedline.abc.source import EpochAware
from feedline.datasets.cache import counts, folder
from feedline.datasets.cache.chance import Watch
from feedline.datasets.cache.check import affordable, check_dataset
from feedline.datasets.cache.codec import decode, encode
from feedline.datasets.cache.counts import Counts
from feedline.datasets.cache.fingerprint import fingerprint
from feedline.datasets.cache.ground import MemoryGround
from feedline.datasets.cache.turns import one_at_a_time
from feedline.datasets.cache.vault import Found, Head, Missing, Vault
from feedline.datasets.source import Indices, Source, Transform
from feedline.errors import BadOption, CacheDropped, CorruptSource, NotCached, tell
from feedline.sizes import byte_count


class CachedDataset(Source, EpochAware, Derived):
    """Keeps the samples of a map-style dataset.

    All workers, threads and processes alike, share one copy. What is full stays as it is: the samples that came first
    are kept, which in random order is the best that can be done. Samples are kept as `feedline.records`, each with a
    checksum; one that is damaged is made again.

    A sample that draws random numbers while it is made is not kept, and a warning tells: give what is random as
    `transform=`, which is applied to what comes out of the cache.

    Args:
        dataset: whose samples. Map-style; if its `__getitem__` is an `async def`, that of the cache is one as well.
        memory: how much shared memory they may take: bytes, or a text such as "4GB".
        disk: a folder for them, which outlives the program and which several programs may use at once. New, empty, or
            one that held a cache before. One folder per dataset: what a cache of another dataset, or of another
            transform, has left there is dropped.
        disk_limit: how much disk they may take; half of what is free on it, if not given.
        version: anything with a `repr`; a cache on disk of another version is dropped. Without it these changes are
            noticed: of the dataset's attributes, of the code of its class and of functions that it holds, and of size
            or time of files that its attributes name. Change it when anything else does: functions that this code
            calls, constants of a module, the rows of a database.
        transform: applied to each sample that is delivered, and not cached.
        pickle: True to pickle samples that a record cannot hold. Only for folders that nobody else can write to.
        freeze_random: True to keep samples that draw random numbers, which then are the same in all epochs.
        copy: False to get arrays that are read-only views of the shared memory.

    Raises:
        BadOption: an argument, or a combination of arguments, that cannot work.

    Example:
        >>> cached = CachedDataset([1.5, 2.5, 3.5], memory="1MB")
        >>> [cached[0], cached[0], cached[2]], cached.stats()["hits"]
        ([1.5, 1.5, 3.5], 1)
    """

    _lazy = ("_ground", "_counts", "_memory", "_disk", "_head", "_maker", "_has_told")

    # Any: a dataset, a version and a sample are any objects.
    def __new__(cls, dataset: Any = None, **options: Any) -> Any:
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
        version: Any = None,
        transform: Transform | None = None,
        pickle: bool = False,
        freeze_random: bool = False,
        copy: bool = True,
    ) -> None:
        super().__init__(transform)
        check_dataset(dataset, freeze_random=freeze_random)
        if memory is None and disk is None:
            raise BadOption("A cache needs room: give memory='4GB', disk='some/folder', or both.")
        if disk is None and disk_limit is not None:
            raise BadOption(f"disk_limit={disk_limit!r} was given without disk=, the folder that it limits.")
        self.dataset = dataset
        self._version = version
        self._pickles = pickle
        self._freezes = freeze_random
        self._copies = copy
        size = None if memory is None else affordable(byte_count("memory", memory))
        self._ground = MemoryGround(max(counts.BYTES, size or 0))
        self._counts = Counts(self._ground)
        self._memory = None if size is None else Vault(self._ground, base=counts.BYTES, limit=size, trusts=True)
        self._folder = None if disk is None else Path(disk).absolute()
        if self._folder is not None:
            folder.check_own(self._folder)
        self._disk_limit = byte_count("disk_limit", disk_limit)
        self._disk: Vault | None = None
        self._head: Head | None = None
        self._maker = os.getpid()
        self._has_told = False

    # -- getting ready -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.dataset) if self._head is None else self._head.count

    def origin(self, index: Any) -> tuple[Any, Any]:
        return self.dataset, index

    def _head_now(self) -> Head:
        return Head(fingerprint(self.dataset, repr(self._version), self._pickles), len(self.dataset))

    def _open(self, head: Head | None = None) -> None:
        """Open the cache of a dataset; of the one that this is now, if nothing else is said."""
        head = self._head_now() if head is None else head
        if self._memory is not None:
            least = counts.BYTES + Vault.least_bytes(head.count)
            if least >= self._memory.limit:
                raise BadOption(
                    f"memory={self._memory.limit} bytes are too few: the index of {head.count} samples alone takes "
                    f"{least}. Give more, or use disk=."
                )
            self._memory.open(head)
        if self._folder is not None:
            self._open_disk(self._folder, head)
        self._head = head

    def _open_disk(self, place: Path, head: Head) -> None:
        if not folder.ensure_vault(place, head, keeps_whole=True):
            tell(
                f"The cache in {place} was damaged, of another version, or of a dataset or transform that is not this "
                "one any more. It was dropped, and is filled again. If two datasets share the folder by mistake, give "
                "each its own.",
                CacheDropped,
            )
        limit = self._disk_limit
        if limit is None:
            usage = os.stat(place / folder.FILE).st_blocks * 512
            limit = usage + shutil.disk_usage(place).free // 2
        self._disk = folder.open_vault(place, limit)
        self._disk.open(head)

    def set_epoch(self, epoch: int) -> None:
        """Notice that the dataset has changed since the last epoch, and drop what was kept. Loaders call this."""
        with one_at_a_time():  # threads of a loader have copies of this object, and only the first is to drop anything
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        if self._head is None:
            return self._open()
        head = self._head_now()
        if os.getpid() != self._maker:
            return self._follow(head)
        if head == self._head:
            return
        if self._is_of(head):  # another thread has dropped what was kept, or another program
            return self._open(head)
        tell(
            "The dataset inside of a CachedDataset has changed, so that the samples that were kept are dropped. If it "
            "changes whenever it is read (a counter, an open file), give it a method fingerprint() that returns a "
            "string of what its samples depend on.",
            CacheDropped,
        )
        self.clear()

    def _is_of(self, head: Head) -> bool:
        return (self._memory is None or self._memory.head() == head) and (
            self._folder is None or (folder.has_vault(self._folder) and folder.head_of(self._folder) == head)
        )

    def _follow(self, head: Head) -> None:
        """In a worker that was kept: use what others have made of the cache meanwhile, and nothing that they dropped.

        The worker may have an old dataset: to it a cache of the new one has no samples and no room.
        """
        if self._memory is not None:
            self._memory.open(head)
        if self._disk is not None and self._folder is not None and folder.has_vault(self._folder):
            self._disk.reopen(head)
        self._head = head

    def clear(self) -> None:
        """Drop all samples that are kept, in memory and on disk."""
        head = self._head_now()
        if self._memory is not None:
            self._memory.empty(head)
        self.close()
        if self._folder is not None:
            folder.make_vault(self._folder, head, keeps_whole=True)
            self._open_disk(self._folder, head)
        self._head = head

    def close(self) -> None:
        """Close the file on disk in this process. What is in memory stays as long as this object, or a worker, does."""
        if self._disk is not None:
            self._disk.close()

    # -- samples -----------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        listed = self._listed_index(index)
        sample = self._look_up(listed)
        if type(sample) is _Nothing:
            sample = self._made([listed], [sample])[0]
        return sample if self.transform is None else self.transform(sample)

    @property
    def __getitems__(self) -> Callable[[Iterable[Any]], list[Any]] | None:  # type: ignore[override]  # may be absent
        """Returns the samples of several indices. None unless the dataset can do that: loaders look for it."""
        return super().__getitems__ if callable(getattr(self.dataset, "__getitems__", None)) else None

    def _read(self, indices: Indices) -> list[Any]:
        if self._head is None:
            self._open()
        return self._read_listed(indices.tolist())

    def _read_listed(self, listed: list[int]) -> list[Any]:
        samples = [self._look_up(index) for index in listed]
        missing = [place for place, sample in enumerate(samples) if type(sample) is _Nothing]
        if missing:
            made = self._made([listed[place] for place in missing], [samples[place] for place in missing])
            for place, sample in zip(missing, made, strict=True):
                samples[place] = sample
        return samples

    def _made(self, indices: list[int], nothings: list[_Nothing]) -> list[Any]:
        """Make samples that are missing, and keep them."""
        self._counts.add("misses", len(indices))
        made, generators = self._make(indices)
        if generators and not self._freezes:
            self._tell_random(generators, len(indices))
            return made
        return [self._keep(*one) for one in zip(indices, made, nothings, strict=True)]

    def _listed_index(self, index: Any) -> int:
        """Return an index, checked; opens the cache if need be."""
        if self._head is None:
            self._open()
        assert self._head is not None
        if type(index) is int and 0 <= index < self._head.count:
            return index
        return int(self._checked([index])[0])

    def _look_up(self, index: int) -> Any:
        """Return a sample that is kept; `_Nothing` otherwise."""
        nothing = _NOTHING
        if self._memory is not None:
            found = self._memory.get(index, view=not self._copies)
            sample = self._decoded(found, nothing, "memory")
            if type(sample) is not _Nothing:
                self._counts.add("memory_hits")
                return sample
            nothing = sample
        if self._disk is not None:
            found = self._disk.get(index)
            sample = self._decoded(found, nothing, "disk")
            if type(sample) is _Nothing:
                nothing = sample
            else:
                self._counts.add("disk_hits")
                if self._memory is not None and isinstance(found, Found) and not self._memory.is_full:
                    self._memory.put(index, found.kind, bytes(found.data), again="memory" in nothing.damaged)
                return sample
        return nothing

    def _decoded(self, found: Found | Missing, nothing: _Nothing, where: str) -> Any:
        if isinstance(found, Found):
            try:
                return decode(found, pickles=self._pickles)
            except CorruptSource:
                found = Missing.DAMAGED
        if found is Missing.DAMAGED:
            self._counts.add("damaged")
            return _Nothing((*nothing.damaged, where))
        return nothing

    def _make(self, indices: list[int]) -> tuple[list[Any], list[str]]:
        """Have the dataset make samples; returns them, and the generators from which that has drawn."""
        watch = Watch()
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
        return samples, watch.generators

    def _keep(self, index: int, sample: Any, nothing: _Nothing) -> Any:
        """Store a sample wherever there is room; returns it as it will come out again."""
        kind, data = encode(sample, pickles=self._pickles)
        for where, vault in (("memory", self._memory), ("disk", self._disk)):
            if vault is not None and not vault.is_full:
                vault.put(index, kind, data, again=where in nothing.damaged)
        return decode(Found(kind, bytearray(data)), pickles=self._pickles)

    def _tell_random(self, generators: list[str], count: int) -> None:
        self._counts.add("random", count)
        if self._has_told:
            return
        self._has_told = True
        tell(
            f"Samples of {type(self.dataset).__name__} are not cached: making them draws random numbers (from "
            f"{', '.join(generators)}), and a sample that is kept would be the same in every epoch. Give the random "
            "part as CachedDataset(..., transform=), which is applied to what comes out of the cache; or "
            "freeze_random=True, if each sample is to keep what it drew first.",
            NotCached,
        )

    # -- what people see ---------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return counters of all workers since this object was made, and how much is kept.

        `hits` and `misses`; of the hits `memory_hits` and `disk_hits`; `damaged`, samples that had to be made again;
        `random`, samples that were not kept because they draw random numbers; samples and bytes in memory and on disk.
        """
        if self._head is None:
            self._open()
        totals = self._counts.totals()
        found: dict[str, Any] = {"hits": totals["memory_hits"] + totals["disk_hits"], **totals}
        for where, vault in (("memory", self._memory), ("disk", self._disk)):
            if vault is not None:
                found[f"{where}_samples"] = vault.stored
                found[f"{where}_bytes"] = vault.used_bytes
                found[f"{where}_limit"] = vault.limit
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
    """What `CachedDataset` makes of a dataset whose `__getitem__` is an `async def`: it is one itself.

    Samples that are missing are awaited, all of a batch at once. Only `feedline.rng()` is watched.
    """

    async def __getitem__(self, index: Any) -> Any:
        listed = self._listed_index(index)
        sample = self._look_up(listed)
        if type(sample) is _Nothing:
            sample = await self._awaited(listed, sample)
        return sample if self.transform is None else self.transform(sample)

    @property
    def __getitems__(self) -> None:  # type: ignore[override]  # samples are awaited one by one, at the same time
        """None: samples are awaited one by one, at the same time."""
        return None

    async def _awaited(self, index: int, nothing: _Nothing) -> Any:
        self._counts.add("misses")
        watch = Watch()
        with watch.watching_task():
            sample = await self.dataset[index]
        if watch.generators and not self._freezes:
            self._tell_random(watch.generators, 1)
            return sample
        return self._keep(index, sample, nothing)


@dataclass(frozen=True)
class _Nothing:
    """Stands in for a sample that is not kept."""

    damaged: tuple[str, ...] = ()
    """Where there is one that is damaged."""


_NOTHING = _Nothing()


__all__ = ["CachedDataset"]
