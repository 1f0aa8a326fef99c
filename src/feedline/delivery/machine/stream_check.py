"""Whether the streams of workers are what they have to be, as far as their first samples tell.

If the loader shares out the samples of an iterable dataset, every worker has to read the same; if not, each has to read
something else. A user whose dataset does otherwise is told so once.
"""

from __future__ import annotations

from feedline.errors import DataWarning, FeedlineWarning
from feedline.types import Notes

Message = tuple[str, type[FeedlineWarning]]
"""What is to be told to the user."""


class SharedStream:
    """A stream that every worker reads as a whole, and keeps its part of."""

    def __init__(self) -> None:
        self._has_told = False
        self._digest: bytes | None = None
        """Of the first sample."""

    def look_at(self, notes: Notes) -> Message | None:
        """Return what to tell if the dataset splits itself as well, or does not yield the same in every worker."""
        if self._has_told:
            return None
        if notes.splits_itself:
            self._has_told = True
            return _SPLIT_TWICE, DataWarning
        if notes.digest is None:
            return None
        self._digest = self._digest or notes.digest
        if notes.digest == self._digest:
            return None
        self._has_told = True
        return _UNEQUAL, DataWarning


class OwnStreams:
    """Streams of which each worker has its own.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._digests: set[bytes] | None = set()
        """Of the first samples of workers whose dataset does not split itself; None once that was told."""

    def look_at(self, notes: Notes) -> Message | None:
        """Return what to tell if a second worker begins with the same sample, and never asked which worker it is."""
        if self._digests is None or notes.digest is None:
            return None
        if notes.digest not in self._digests:
            self._digests.add(notes.digest)
            return None
        self._digests = None
        return (
            f"Every one of the {self._count} workers delivers the whole dataset: each iterates over a copy "
            "of it, and the dataset does not split itself. Give the loader shard=True to get each sample once, let "
            "__iter__ leave out what belongs to other workers (torch.utils.data.get_worker_info()), or use one worker.",
            DataWarning,
        )


_SPLIT_TWICE = (
    "The dataset asks which worker it is in (get_worker_info()), as those do that split themselves. With "
    "shard= the loader splits what every worker reads, and what is split twice is not delivered in full. Drop "
    "shard=, or let __iter__ yield all samples in every worker."
)
_UNEQUAL = (
    "The dataset does not yield the same samples in every worker, but with shard= each worker reads the whole "
    "and keeps its part: samples may be missing and others come twice. Let its order follow from "
    "feedline.rng(), random, numpy.random or torch, which are seeded alike in all workers (not on threads), or "
    "let the dataset split itself and drop shard=."
)
