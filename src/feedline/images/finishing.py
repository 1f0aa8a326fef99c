"""The unfinished images of a batch, which a device finishes: nvJPEG decodes, then one kernel crops, resizes and flips.

That kernel also normalises, unless some image has steps. These come in between: one operation for all images that need
it.

nvJPEG runs on streams of its own, which do not wait for ours. So its outputs are kept until our kernels have read them:
memory that is free again on our stream could otherwise be overwritten while they read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.abc.deferred import DeferredBatch, Sources
from feedline.errors import CorruptSource
from feedline.images.decoding import decode_image
from feedline.images.geometry import Finish
from feedline.images.steps.geometric import Erase
from feedline.images.steps.step import Step
from feedline.images.steps.tables import apply_steps_to_batch
from feedline.system.failures import words

if TYPE_CHECKING:
    import torch

    from feedline.images.resampling import RaggedImages


@dataclass(slots=True)
class DeferredImages(DeferredBatch):
    """The images of a batch, in two groups: those with pixels, and those that are still encoded."""

    finish: Finish
    flips: NDArray[np.generic] | torch.Tensor
    """For each image of the batch, 1 if it has to be flipped horizontally (uint8)."""
    steps: list[tuple[Step, ...]] | None
    """For each image, see `DeferredImage`; None if there are none."""
    erasures: list[tuple[Erase, ...]] | None
    """The same for what is erased after normalising."""
    pixel_rows: NDArray[np.generic] | torch.Tensor
    """The rows of the batch that `pixels` holds (int64)."""
    pixels: NDArray[np.generic] | torch.Tensor
    """uint8 with the axes image, height, width, color."""
    encoded_rows: NDArray[np.generic] | torch.Tensor
    """The rows of the batch that are encoded (int64)."""
    data: NDArray[np.generic] | torch.Tensor
    """The encoded files, concatenated (uint8)."""
    offsets: NDArray[np.generic] | torch.Tensor
    """The offset of each file in `data`, and the end of the last one (int64)."""
    sizes: NDArray[np.generic] | torch.Tensor
    """Width and height of each encoded image (int64)."""
    boxes: NDArray[np.generic] | torch.Tensor
    """Left, top, width and height for each encoded image (float32)."""

    def __len__(self) -> int:
        return len(self.flips)

    @property
    def is_encoded(self) -> bool:
        return len(self.encoded_rows) > 0

    def finish_on(self, device: torch.device, sources: Sources) -> torch.Tensor:
        import torch

        from feedline.images.resampling import normalised

        final = self.finish
        dtype = getattr(torch, final.dtype)
        shape = len(self), 3, final.height, final.width
        if self.steps is None:
            out = torch.empty(shape, dtype=dtype, device=device)
            self._cut_into(out, final, sources)
        else:
            cut = torch.empty(shape, dtype=torch.float32, device=device)
            self._cut_into(cut, None, sources)
            out = normalised(apply_steps_to_batch(cut.round_(), self.steps), final, dtype)
        for image, erasures in zip(out, self.erasures or (), strict=False):
            for erasure in erasures:
                erasure.apply_finished(image.permute(1, 2, 0))
        return out if final.channels_first else out.permute(0, 2, 3, 1).contiguous()

    def _cut_into(self, out: torch.Tensor, finish: Finish | None, sources: Sources) -> None:
        """Crop, resize and flip the images into their rows of `out`."""
        import torch

        from feedline.images.resampling import RaggedImages, resample

        flips = torch.as_tensor(self.flips)
        if len(self.pixel_rows):
            pixels, rows = torch.as_tensor(self.pixels), torch.as_tensor(self.pixel_rows)
            sources.addresses.append(pixels.data_ptr())
            on_device = pixels.to(out.device, non_blocking=True)
            sources.held.append(on_device)
            resample(RaggedImages.of_pixels(on_device), rows, None, flips[rows], out, finish)
        if len(self.encoded_rows):
            data, rows = torch.as_tensor(self.data), torch.as_tensor(self.encoded_rows)
            sources.addresses.append(data.data_ptr())
            decoded = decode(data, np.asarray(self.offsets), np.asarray(self.sizes), out.device)
            sources.held.append(decoded)
            resample(decoded, rows, torch.as_tensor(self.boxes), flips[rows], out, finish)


def decode(
    data: torch.Tensor, offsets: NDArray[np.int64], sizes: NDArray[np.int64], device: torch.device
) -> RaggedImages:
    """Decode concatenated JPEG files, given their offsets, and the width and height of each.

    Raises:
        CorruptSource: one of them is damaged.
    """
    from feedline.device import nvjpeg
    from feedline.images.resampling import RaggedImages

    images = RaggedImages.of_planes(sizes, device)
    for failed in nvjpeg.decode(data, offsets, images.memory, images.layout[:, 0], sizes):
        file = data[int(offsets[failed]) : int(offsets[failed + 1])]
        images.image(failed).copy_(_decode_on_cpu(file.numpy().tobytes(), failed, images.image(failed).shape))
    return images


def _decode_on_cpu(file: bytes, number: int, shape: torch.Size) -> torch.Tensor:
    import torch

    try:
        planes = torch.from_numpy(decode_image(file)).permute(2, 0, 1)
    except CorruptSource as error:
        raise CorruptSource(
            f"Encoded image {number} of a batch ({len(file)} bytes) is damaged: {words(error)}. Neither the GPU nor "
            "the CPU can decode it. With decode='cpu', the error names the file, and on_error= can skip it."
        ) from error
    assert planes.shape == shape, (planes.shape, shape)  # both are from the header
    return planes
