"""Image decoding and training transforms."""

from feedline.images.compose import Compose, Decode
from feedline.images.decoding import decode_image
from feedline.images.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    ColorJitter,
    HorizontalFlip,
    Normalize,
    RandomResizedCrop,
    Resize,
    ToChannelsFirst,
)
from feedline.system import cuda_queues

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Decode",
    "HorizontalFlip",
    "Normalize",
    "RandomResizedCrop",
    "Resize",
    "ToChannelsFirst",
    "decode_image",
]

cuda_queues.widen()  # before the training script puts its model on the GPU: afterwards it would be too late
