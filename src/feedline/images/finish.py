"""The form that the images of a batch have in the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finish:
    """The final form of the images of a batch, the same for all of them."""

    height: int
    width: int
    mean: tuple[float, ...] | None = None
    """Subtracted from each channel after scaling it to 0 to 1; None to keep the values as they are."""
    std: tuple[float, ...] | None = None
    """Divides each channel after the mean is subtracted."""
    dtype: str = "uint8"
    """"uint8", or, after normalising, "float32", "float16" or "bfloat16"."""
    channels_first: bool = False
    """True for the axes channel, height, width."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a finished image."""
        return (3, self.height, self.width) if self.channels_first else (self.height, self.width, 3)
