"""Batches that the training loop has consumed are acknowledged to their dataset.

A batch counts as consumed when the next one is asked for. So receipts are held while the loop works with the batch, and
handed over at the beginning of the next `__next__`, the one that ends the iteration included.
"""

from __future__ import annotations

from typing import Any

from feedline.abc.source import Acknowledged


class Acknowledgements:
    """The receipts of the batch that the training loop works with.

    Args:
        dataset: acknowledges them, if it is one that does.
    """

    # Any: a dataset, and its receipts, are its own affair.
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset if isinstance(dataset, Acknowledged) else None
        self._held: list[Any] = []

    @property
    def are_held(self) -> bool:
        """True if there is something to acknowledge."""
        return bool(self._held)

    def hold(self, receipts: Any) -> None:
        """Keep the receipts of a batch that is being delivered."""
        if receipts is not None:
            self._held.append(receipts)

    def release(self, receipts: Any) -> None:
        """Keep the receipts of a batch no longer: it was not delivered after all."""
        self._held = [held for held in self._held if held is not receipts]

    def acknowledge(self) -> None:
        """Acknowledge what is held. If the dataset raises an exception, it stays held."""
        while self._held:
            assert self._dataset is not None
            self._dataset.acknowledge(self._held[0])
            del self._held[0]
