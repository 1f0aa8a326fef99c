"""The format of a saved state, and which states are compatible."""

from feedline.delivery.state.snapshot import VERSION, Snapshot

__all__ = ["VERSION", "Snapshot"]
