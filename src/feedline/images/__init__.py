"""Images: decoding, and the transforms that training uses."""

from feedline.images.center_crop import CenterCrop
from feedline.images.color_jitter import ColorJitter
from feedline.images.compose import Compose, Decode
from feedline.images.decoding import decode_image
from feedline.images.horizontal_flip import HorizontalFlip
from feedline.images.normalize import IMAGENET_MEAN, IMAGENET_STD, Normalize, ToChannelsFirst
from feedline.images.random_resized_crop import RandomResizedCrop
from feedline.images.resize import Resize

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
