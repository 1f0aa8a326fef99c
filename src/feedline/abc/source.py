"""Contracts of feedline's own datasets that loaders treat differently from any other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class StreamSource(ABC):
    """An iterable dataset that leaves it to the loader to share out its samples over workers and ranks.

    Every worker iterates over the whole and keeps what is its own, so `__iter__` must yield the same samples in the
    same order everywhere. With `state_dict` and `load_state_dict`, on the source or on its iterator, it is resumed
    without being read again.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of an epoch."""


class EpochAware(ABC):
    """A dataset whose samples depend on the epoch, and which loaders tell by themselves when one begins.

    Other datasets with a `set_epoch` are told by `loader.set_epoch`, or by whoever calls it.
    """

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins."""
