"""The form that the images of a batch have in the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finish:
    """What the images of a batch become: the same for all of them."""

    height: int
    width: int
    mean: tuple[float, ...] | None = None
    """Taken off each channel, whose values are from 0 to 1 then; None for values as they are."""
    std: tuple[float, ...] | None = None
    """What each channel is divided by afterwards."""
    dtype: str = "uint8"
    """"uint8", or, after normalising, "float32", "float16" or "bfloat16"."""
    channels_first: bool = False
    """True for the axes channel, height, width."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of each finished image."""
        return (3, self.height, self.width) if self.channels_first else (self.height, self.width, 3)
