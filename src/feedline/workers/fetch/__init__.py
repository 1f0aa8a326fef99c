"""From indices to a batch."""

from feedline.workers.fetch.fetcher import Fetcher, fetcher_for

__all__ = ["Fetcher", "fetcher_for"]
