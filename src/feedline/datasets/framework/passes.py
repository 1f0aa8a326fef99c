"""Passes over iterable sources: which part to read, which sample comes next, and where to resume.

A stream is the dataset; `iter()` starts a pass over it, or over the part that this worker of this rank reads. A pass is
a class, not a generator: after an exception it can continue with the next sample or retry the failed one.
"""

from __future__ import annotations

import operator
import os
import sys
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from feedline.abc.source import EpochAware, IterableSource, Repeatable, ShardedSource
from feedline.abc.stateful import check_format
from feedline.datasets.framework.source import Transform
from feedline.datasets.storage.addresses import identity_of
from feedline.datasets.storage.storage import protocol_of
from feedline.errors import BadOption, BadState
from feedline.system.failures import add_note
from feedline.system.ranks import rank_if_known
from feedline.types import State


def register_with_torch() -> None:
    """Make feedline's iterable datasets instances of torch's `IterableDataset`, if the program uses torch."""
    data = sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(IterableSource)


def torch_worker() -> tuple[int, int]:
    """Return the number of this worker of torch's loader and the number of workers; (0, 1) outside of a worker."""
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


Part = tuple[int, int]
"""The number of a part of a stream, and the number of parts."""

T = TypeVar("T")


class Stream(IterableSource):
    """An iterable dataset. torch sees an `IterableDataset`, if the program imported torch before creating it."""

    def __init__(self) -> None:
        register_with_torch()

    # Any: samples are of any kind.
    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Start a pass."""

    def _part(self) -> Part:
        """Return the part of the stream to read here."""
        return 0, 1

    def __getstate__(self) -> dict[str, object]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        register_with_torch()


S = TypeVar("S", bound=Stream)


def copied_stream(stream: S) -> S:
    """Return a shallow copy, as `copy.copy` makes it of a class without a `__copy__`."""
    own = type(stream).__new__(type(stream))
    own.__setstate__(stream.__getstate__())
    return own


class PartedStream(Stream, ShardedSource):
    """A stream that gives every worker of every rank its own part, in torch's own loader too."""

    _worker: Part | None = None
    _ranks: Part | None = None
    """Rank and number of ranks in the process that pickled this: a worker may not know them."""
    _data_rank: Part | None = None
    """The same, if they were given: not all ranks of the job need their own part."""

    def set_worker(self, number: int, count: int) -> None:
        self._worker = number, count

    def set_ranks(self, rank: int, count: int) -> None:
        """Set the data rank and the number of data ranks, in place of those of the process.

        Raises:
            BadOption: other values were set before.
        """
        before = self._data_rank
        if before is not None and before != (rank, count):
            raise BadOption(
                f"This {type(self).__name__} already belongs to a loader of data rank {before[0]} of {before[1]}, and "
                f"this loader has data rank {rank} of {count}. Make another {type(self).__name__} for this loader."
            )
        self._data_rank = rank, count

    def _place(self) -> tuple[Part, Part]:
        """Return (worker, number of workers) and (rank, number of ranks)."""
        return self._worker or torch_worker(), self._data_rank or rank_if_known() or self._ranks or (0, 1)

    def _part(self) -> Part:
        (worker, workers), (rank, ranks) = self._place()
        return worker * ranks + rank, workers * ranks

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_ranks": rank_if_known() or self._ranks}


class Epochs(EpochAware):
    """A dataset with a different order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; each has its own order. feedline's loaders call this automatically."""
        self.epoch = operator.index(epoch)


class Pass(Repeatable, Iterator[Any], Generic[T]):
    """One pass over a stream, or over a part of it.

    Subclasses choose the next item, such as a row or a place, and make a sample from it.
    """

    def __init__(self, part: Part = (0, 1), transform: Transform | None = None) -> None:
        self._part = part
        self._transform = transform
        self._failed: T | None = None
        """The item that raised the last exception."""
        self._again: T | None = None
        """The item to retry."""

    @abstractmethod
    def _take(self) -> T:
        """Return the next item; StopIteration at the end. After another exception, the next call continues after it."""

    @abstractmethod
    def _make(self, item: T) -> object:
        """Make a sample, before the transform; may be called again for the same item."""

    def _name_of(self, item: T) -> str:
        """Name an item, for errors of the transform; "" if nothing is known about it."""
        return ""

    def _transformed(self, sample: object, item: T) -> object:
        assert self._transform is not None
        try:
            return self._transform(sample)
        except StopIteration as exc:  # which would end the stream
            raise RuntimeError(f"the transform raised StopIteration for {self._name_of(item) or 'a sample'}") from exc
        except Exception as exc:
            if name := self._name_of(item):
                add_note(exc, f"It is {name}.")
            raise

    def __next__(self) -> Any:
        item, self._again, self._failed = self._again, None, None
        if item is None:
            item = self._take()
        try:
            sample = self._make(item)
            return sample if self._transform is None else self._transformed(sample, item)
        except StopIteration as exc:
            self._failed = item
            raise RuntimeError("a function that makes samples raised StopIteration") from exc
        except Exception:
            self._failed = item
            raise
        except BaseException:  # an interrupt: return this sample next time
            self._again = item
            self._forget_made()
            raise

    def _forget_made(self) -> None:
        """Drop samples that were made ahead: a transform may have modified them."""

    def try_again(self) -> bool:
        self._forget_made()
        if self._failed is not None:
            self._again, self._failed = self._failed, None
        return self._again is not None


def names_sum(addresses: Iterable[str]) -> list[int]:
    """Return the number of files and a checksum of their names, by which a state recognises its data.

    Folders, buckets and signatures are left out: data that was moved is the same data.

    Example:
        >>> names_sum(["/data/a.tar", "/data/b.tar"]) == names_sum(["s3://bucket/new/a.tar", "s3://bucket/new/b.tar"])
        True
        >>> names_sum(["/data/a.tar", "/data/b.tar"]) == names_sum(["/data/a.tar", "/data/c.tar"])
        False
    """
    names = [
        identity_of(address).rpartition("/")[2] if protocol_of(address) else os.path.basename(address)
        for address in addresses
    ]
    return [len(names), zlib.crc32("\n".join(names).encode("utf-8", "surrogateescape"))]


class ResumablePass(Pass[T]):
    """A pass that saves and restores its position."""

    _name = ""
    """What the pass reads, for errors."""

    @abstractmethod
    def _position(self) -> dict[str, object]:
        """Return the position: after the last sample that the pass returned."""

    @abstractmethod
    def _options(self) -> dict[str, object]:
        """Return the options that must match for a state to be valid."""

    @abstractmethod
    def _enter(self, state: dict[str, object]) -> None:
        """Resume at a position."""

    def state_dict(self) -> State:
        """Return the position as a few plain values, regardless of how much is held in memory."""
        return {**self._position(), **self._options(), "part": list(self._part)}

    # object: a state may come from anywhere.
    def load_state_dict(self, state: object) -> None:
        """Resume at a state, with the sample that would have come next."""
        own = self.state_dict()
        if isinstance(state, dict):
            check_format(state, f"a pass over {self._name}")
        if not isinstance(state, dict) or state.keys() != own.keys():
            raise BadState(
                f"This is not the state of a pass over {self._name} that this version of feedline can load: it was "
                "saved by another version, or with another dataset. Use those again, or start the epoch over without "
                f"the state. It is {state!r:.200}"
            )
        for name in (*self._options(), "part"):
            saved = state[name]
            saved = list(saved) if isinstance(saved, tuple) else saved  # JSON turns a tuple into a list
            if saved != own[name]:
                if name == "files":
                    raise self._other_files(saved, own[name])
                what = "part (worker of a rank, number of them)" if name == "part" else name
                raise BadState(
                    f"The state was saved with {what} {saved}, but now it is {own[name]}, so "
                    f"the remaining samples of {self._name} cannot be determined. Use the same data, options and "
                    "number of workers and ranks as when it was saved."
                )
        self._again = self._failed = None
        self.has_broken_off = False
        self._enter(state)

    def _other_files(self, saved: object, own: list[int]) -> BadState:
        """Return the error for a state that belongs to files with other names, as `names_sum` compares them."""
        count = saved[0] if isinstance(saved, list) and saved else "other"
        how = " of other names" if count == own[0] else f", and now there are {own[0]}"
        return BadState(
            f"The state was saved with {count} files{how}: the remaining samples of {self._name} cannot be "
            "determined. Use the same data. It may have been moved: the names of files are compared without their "
            "folders."
        )
