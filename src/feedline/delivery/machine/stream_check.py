"""Compare samples of the workers' streams.

If the loader shards an iterable dataset, every worker must read the same samples; if not, each must read different
ones. The user is warned once if the dataset does otherwise.
"""

from __future__ import annotations

from feedline.errors import DataWarning, FeedlineWarning
from feedline.types import Notes

Message = tuple[str, type[FeedlineWarning]]
"""A warning for the user."""


class StreamCheck:
    """Compare samples of the workers' streams.

    Args:
        is_shared: True if every worker reads the whole stream and keeps its share; False if each has its own stream.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._digests: dict[int, set[bytes]] = {}
        """Digests of samples, by place, without those of datasets that split themselves."""
        self._has_warned = False

    def look_at(self, notes: Notes) -> list[Message]:
        """Return a warning for the first stream that is not as required."""
        text = _SPLIT_TWICE if notes.shards_itself else None
        for place, digest in notes.digests:
            known = self._digests.setdefault(place, set())
            if known and (digest in known) is not self._is_shared:
                text = text or (_UNEQUAL if self._is_shared else _EQUAL)
            known.add(digest)
        if text is None or self._has_warned:
            return []
        self._has_warned = True
        return [(text, DataWarning)]


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
_EQUAL = (
    "Each of the workers delivers the whole dataset: each iterates over a copy of it, and the dataset does not split "
    "itself. Give the loader shard=True to get each sample once, let __iter__ leave out what belongs to other workers "
    "(torch.utils.data.get_worker_info()), or use one worker."
)
