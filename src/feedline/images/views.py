"""Several views of one image, which is decoded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from feedline.abc.memory import Placement
from feedline.errors import BadOption
from feedline.images.compose import Compose
from feedline.images.geometry import View
from feedline.images.original import Original
from feedline.images.pipeline import Pipeline
from feedline.images.transforms.geometry import CenterCrop, CornerCrop


class Views(Pipeline):
    """Several views of one image, each with a pipeline of its own: for SimCLR, DINO and similar methods.

    The image is decoded once, no larger than its views need. It becomes a tuple with one image for each view, so that
    a batch has one array or tensor for each view.

    Args:
        pipelines: a `Compose`, or its transforms, for each view.
        decode: "auto" or "cpu": a worker decodes the image. Views of one file are not decoded on a GPU, which would
            have to receive the file once for each of them.

    Raises:
        BadOption: there is no pipeline, or one of them cannot share the image with others.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> large = images.Compose([images.RandomResizedCrop(32, scale=(0.4, 1)), images.Normalize()])
        >>> small = images.Compose([images.RandomResizedCrop(12, scale=(0.05, 0.4)), images.Normalize()])
        >>> views, label = Views([large, large, small])((np.zeros((60, 80, 3), np.uint8), 7))
        >>> [view.shape for view in views]
        [(3, 32, 32), (3, 32, 32), (3, 12, 12)]
    """

    def __init__(self, pipelines: Iterable[Compose | Iterable[object]], *, decode: str = "auto") -> None:
        self.pipelines = tuple(one if isinstance(one, Compose) else Compose(one) for one in pipelines)
        if not self.pipelines:
            raise BadOption("Views() needs a pipeline for each view, but there are none.")
        for one in self.pipelines:
            if one.targets:
                raise BadOption(f"{one!r} has targets=, which Views() does not move. Use one Compose for each view.")
        if len({one.mode for one in self.pipelines}) > 1:
            raise BadOption("All pipelines of Views() decode the same image: pass the same mode to each Decode().")
        super().__init__(decode=decode)

    def _check_gpu(self, required: bool) -> None:
        if required or any(one.decode == "gpu" for one in self.pipelines):
            raise BadOption(
                'Views() cannot use decode="gpu": workers decode the image, once for all views. The device only '
                'finishes them. Use decode="auto".'
            )

    def _image(self, image: object, where: Placement) -> tuple[object, Sequence[View]]:
        original = Original(image, self.pipelines[0].mode)
        views = [one.draw(original) for one in self.pipelines]
        original.decode_for(views)
        where = Placement.DEVICE if where is Placement.DECODE else where
        pairs = zip(self.pipelines, views, strict=True)
        return tuple(one.rendered(original, view, where)[0] for one, view in pairs), views

    def __repr__(self) -> str:
        return f"Views([{', '.join(map(repr, self.pipelines))}]){self._shown_field()}"


class FiveCrop(Views):
    """The four corners and the centre of an image, as five views: for testing with several crops per image.

    Args:
        size: the side of a square, or height and width.
        before: transforms of the image before it is cropped, such as `Resize`.
        after: transforms of each crop, such as `Normalize`.

    Raises:
        BadOption: `size` is not a size. For an image that is smaller than the crops, when it is loaded.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> crops = FiveCrop(8, before=[images.Resize(12)], after=[images.Normalize()])(np.zeros((30, 45, 3), np.uint8))
        >>> [crop.shape for crop in crops]
        [(3, 8, 8), (3, 8, 8), (3, 8, 8), (3, 8, 8), (3, 8, 8)]
    """

    def __init__(
        self, size: int | tuple[int, int], *, before: Sequence[object] = (), after: Sequence[object] = ()
    ) -> None:
        crops = [
            *(CornerCrop(size, right=right, bottom=bottom) for bottom in (0, 1) for right in (0, 1)),
            CenterCrop(size),
        ]
        super().__init__([*before, crop, *after] for crop in crops)
