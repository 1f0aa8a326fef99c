"""Resume in the middle of an epoch with SpeechBrain.

SpeechBrain's checkpointer sets `_speechbrain_recovery_skip_to` on a loader, and patches torch's iterators to read and
drop that many batches. Here the attribute is a property, and the loader skips the batches without making them.
"""

from __future__ import annotations

from feedline.abc.framework import Rebuilding


def keep_loaders(rebuilding: Rebuilding) -> None:
    """Make loaders resume where SpeechBrain's checkpoint was saved."""

    def skipped(loader: object) -> int | None:
        return rebuilding.skipped(loader) or None

    def skip(loader: object, count: int | None) -> None:
        rebuilding.skip(loader, count or 0)

    rebuilding.kind._speechbrain_recovery_skip_to = property(skipped, skip)
