"""The colours of a batch of images, changed as `feedline.images.ColorJitter` drew it for each."""

from __future__ import annotations

import torch

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)


def jittered(images: torch.Tensor, jitter: torch.Tensor) -> torch.Tensor:
    """Change the colours of images with values from 0 to 255 (image, color, height, width), in place.

    Args:
        images: of float32.
        jitter: for each image four factors, and in which order they come; in ordinary memory.
    """
    factors, order = jitter[:, :4], jitter[:, 4:].long()
    for step in range(order.shape[1]):
        for change in range(4):
            chosen = (order[:, step] == change).nonzero().flatten()
            neutral = 0.0 if change == _HUE else 1.0
            chosen = chosen[factors[chosen, change] != neutral]
            if len(chosen):
                rows = chosen.to(images.device, non_blocking=True)
                factor = factors[chosen, change].view(-1, 1, 1, 1).to(images.device, non_blocking=True)
                images[rows] = _changed(images[rows], change, factor)
    return images


def _changed(images: torch.Tensor, change: int, factor: torch.Tensor) -> torch.Tensor:
    if change == _HUE:
        return _turned(images, factor)
    if change == _BRIGHTNESS:
        return (images * factor).clamp_(0, 255)
    grey = 0.2989 * images[:, 0:1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:3]
    other = grey.mean((2, 3), keepdim=True) if change == _CONTRAST else grey
    return (images * factor).add_((1 - factor) * other).clamp_(0, 255)


def _turned(images: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Add to the hue, which is from 0 to 1. The largest and the least of a pixel's values stay what they are."""
    red, green, blue = images.unbind(1)
    most = images.amax(1)
    spread = most - images.amin(1)
    is_red = most == red
    is_green = ~is_red & (most == green)
    hue = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    hue = torch.where(spread > 0, hue / spread, 0.0)
    hue += torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0)) + 6 * turn.view(
        -1, 1, 1
    )  # in sixths of the circle
    planes = []
    for offset in (5, 3, 1):
        sixth = torch.remainder(hue + offset, 6)
        planes.append(most - torch.minimum(sixth, 4 - sixth).clamp_(0, 1) * spread)
    return torch.stack(planes, 1)
