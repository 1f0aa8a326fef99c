"""The visible region of an image, its size, and the steps that follow: numbers only, no pixels.

Every transform changes a `View`, given only the size of the image. So the result of a whole pipeline is known before a
pixel is decoded, and is the same wherever it is rendered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from feedline.images.steps.geometric import Erase, Flip, Window
from feedline.images.steps.step import GeometricStep, Matrix, Step, after
from feedline.images.steps.tables import Lookup, for_worker

Box = tuple[float, float, float, float]
"""Left, top, width and height, in pixels."""


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


@dataclass(slots=True, eq=False)
class View:
    """The result of a pipeline for one image."""

    width: int
    """Width of the result, at first of the image; likewise `height`."""
    height: int
    image_size: tuple[int, int] = field(init=False)
    """Width and height of the image."""
    box: Box = field(init=False)
    """The part of the image to crop."""
    flip: bool = False
    """True if the part is flipped horizontally, before any step."""
    steps: list[Step] = field(default_factory=list)
    """What happens to the pixels after the crop, in this order."""
    erasures: list[Erase] = field(default_factory=list)
    """What is erased after normalising. For the attributes below, see `Finish`."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dtype: str = "uint8"
    channels_first: bool = False
    _cut: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.image_size = self.width, self.height
        self.box = 0, 0, self.width, self.height

    @property
    def cut_size(self) -> tuple[int, int]:
        """Width and height that the part is resized to, before any step."""
        return (self.width, self.height) if self._cut is None else self._cut

    def crop(self, left: int, top: int, width: int, height: int) -> None:
        """Keep only a part of the current view."""
        if self.steps:
            self.add(Window(left, top, width, height))
            return
        if self.flip:
            left = self.width - left - width
        x, y, box_width, box_height = self.box
        across, down = box_width / self.width, box_height / self.height
        self.box = (x + left * across, y + top * down, width * across, height * down)
        self.width, self.height = width, height

    def resize(self, width: int, height: int) -> None:
        """Show the same part with another number of pixels. `Compose` does not let steps come before."""
        assert not self.steps
        self.width, self.height = width, height

    def mirror(self) -> None:
        """Flip the current view horizontally."""
        self.erasures = [one.mirrored(self.width) for one in self.erasures]
        if all(step.is_symmetric for step in self.steps):
            self.flip = not self.flip
        else:
            self.add(Flip())

    def add(self, step: Step) -> None:
        """Add a step. Adjacent tables become one."""
        if self._cut is None:
            self._cut = self.width, self.height
        if isinstance(step, GeometricStep):
            self.width, self.height = step.size(self.width, self.height)
        last = self.steps[-1] if self.steps else None
        if isinstance(step, Lookup) and isinstance(last, Lookup):
            self.steps[-1] = last.then(step)
        else:
            self.steps.append(step)

    def moves(self) -> Iterator[tuple[Matrix, int, int]]:
        """Yield the map of each move of pixels, and width and height after it. What lies outside of them is lost."""
        left, top, across, down = self.box
        width, height = self.cut_size
        x, y = width / across, height / down
        matrix: Matrix = (x, 0.0, -left * x, 0.0, y, -top * y)
        yield after(matrix, Flip().matrix(width, height)) if self.flip else matrix, width, height
        for step in self.steps:
            if isinstance(step, GeometricStep):
                matrix = step.matrix(width, height)
                width, height = step.size(width, height)
                yield matrix, width, height

    @property
    def is_for_device(self) -> bool:
        """True if a device can do all steps."""
        return not for_worker(self.steps, resize=self.cut_size != (self.width, self.height))

    @property
    def factor(self) -> int:
        """The factor by which the image may be decoded smaller: 1, 2, 4 or 8."""
        width, height = self.cut_size
        least = min(self.box[2] / width, self.box[3] / height)
        return 8 if least >= 8 else 4 if least >= 4 else 2 if least >= 2 else 1

    def finish(self) -> Finish:
        """Return the final form of the image."""
        return Finish(self.height, self.width, self.mean, self.std, self.dtype, self.channels_first)
