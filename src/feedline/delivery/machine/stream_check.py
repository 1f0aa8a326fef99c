"""Check that workers' streams are as required, judging by their first samples.

If the loader shards an iterable dataset, every worker must read the same samples; if not, each must read different
ones. The user is warned once if the dataset does otherwise.
"""

from __future__ import annotations

from feedline.errors import DataWarning, FeedlineWarning
from feedline.types import Notes

Message = tuple[str, type[FeedlineWarning]]
"""A warning for the user."""


class SharedStream:
    """A stream that every worker reads completely, keeping only its share."""

    def __init__(self) -> None:
        self._has_warned = False
        self._digest: bytes | None = None
        """Digest of the first sample."""

    def look_at(self, notes: Notes) -> Message | None:
        """Return a warning if the dataset also splits itself, or does not yield the same samples in every worker."""
        if self._has_warned:
            return None
        if notes.shards_itself:
            self._has_warned = True
            return _SPLIT_TWICE, DataWarning
        if notes.digest is None:
            return None
        self._digest = self._digest or notes.digest
        if notes.digest == self._digest:
            return None
        self._has_warned = True
        return _UNEQUAL, DataWarning


class OwnStreams:
    """Streams of workers that each have their own.

    Args:
        count: number of streams.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._digests: set[bytes] | None = set()
        """Digests of the first samples of workers whose dataset does not split itself; None once the user was warned.
        """

    def look_at(self, notes: Notes) -> Message | None:
        """Return a warning if two workers begin with the same sample without having asked for their worker id."""
        if self._digests is None or notes.digest is None:
            return None
        if notes.digest not in self._digests:
            self._digests.add(notes.digest)
            return None
        self._digests = None
        return (
            f"Each of the {self._count} workers delivers the whole dataset: each iterates over a copy of it, and the "
            "dataset does not split itself. Give the loader shard=True to get each sample once, let __iter__ leave out "
            "what belongs to other workers (torch.utils.data.get_worker_info()), or use one worker.",
            DataWarning,
        )


_SPLIT_TWICE = (
    "The dataset asks which worker it is in (get_worker_info()), so it seems to split itself. With shard= the loader "
    "splits it as well, and samples that are split twice are not all delivered. Drop shard=, or let __iter__ yield "
    "all samples in every worker."
)
_UNEQUAL = (
    "The dataset does not yield the same samples in every worker, but with shard= each worker reads the whole "
    "dataset and keeps its share: some samples may be missing, and others come twice. Draw its order from "
    "feedline.rng(), random, numpy.random or torch, which are seeded alike in all workers (not on threads), or "
    "let the dataset split itself and drop shard=."
)
