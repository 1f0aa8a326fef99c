"""What a saved state looks like, and which ones fit."""

from feedline.delivery.state.snapshot import VERSION, Snapshot

__all__ = ["VERSION", "Snapshot"]
