"""Acknowledgement of consumed batches to their dataset.

A batch counts as consumed when the training loop requests the next one. So its receipts are held while the loop works
with it, and acknowledged at the start of the next `__next__`, including the one that ends the iteration.
"""

from __future__ import annotations

from feedline.abc.source import Acknowledged


class Acknowledgements:
    """The receipts of the batch that the training loop is working with.

    Args:
        dataset: receives the acknowledgements.
    """

    def __init__(self, dataset: Acknowledged) -> None:
        self._dataset = dataset
        self._held: list[object] = []

    def hold(self, receipts: object) -> None:
        """Keep the receipts of a batch that is being delivered."""
        if receipts is not None:
            self._held.append(receipts)

    def acknowledge(self) -> None:
        """Acknowledge the held receipts. If the dataset raises an exception, they stay held."""
        while self._held:
            self._dataset.acknowledge(self._held[0])
            del self._held[0]
