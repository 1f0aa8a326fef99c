"""What a saved state looks like, and which ones fit."""

from feedline.state.snapshot import VERSION, Snapshot

__all__ = ["VERSION", "Snapshot"]
