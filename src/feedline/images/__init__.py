"""Image decoding and training transforms."""

from feedline.images.compose import Compose
from feedline.images.decoding import decode_image
from feedline.images.targets.boxes import Boxes
from feedline.images.targets.keypoints import Keypoints
from feedline.images.targets.mask import Mask
from feedline.images.transform import Decode
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
from feedline.images.views import Views

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Boxes",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Decode",
    "HorizontalFlip",
    "Keypoints",
    "Mask",
    "Normalize",
    "RandomResizedCrop",
    "Resize",
    "ToChannelsFirst",
    "Views",
    "decode_image",
]
