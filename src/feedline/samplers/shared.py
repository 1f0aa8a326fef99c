"""Which share of an order belongs to this rank, as far as that is known yet."""

from __future__ import annotations

from feedline.ranks import own_share
from feedline.types import Share


class Shared:
    """Base of samplers that yield one rank's share of an order.

    Ranks may come to be after the sampler: frameworks start them, and send the sampler there. So if nobody has said
    which rank this is, and there was one only, it is looked up again whenever the share is needed. torch's
    DistributedSampler is an error in that case.

    Args:
        share: what is known when the sampler is made.
        is_found: True if nobody has said it.
    """

    def __init__(self, share: Share, *, is_found: bool) -> None:
        self._share = share
        self._is_found = is_found

    @property
    def share(self) -> Share:
        """The part that belongs to this rank."""
        if self._is_found and self._share.world_size == 1:
            self._share = own_share(None, None, self._share.tail)
        return self._share

    @property
    def rank(self) -> int:
        """The rank whose share this is."""
        return self.share.rank

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self.share.world_size
