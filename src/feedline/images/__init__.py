"""Image decoding and training transforms."""

from feedline.images.compose import Compose, Decode
from feedline.images.decoding import decode_image
from feedline.images.mixing import CutMix, MixUp, RandomBatchChoice
from feedline.images.targets.boxes import Boxes
from feedline.images.targets.keypoints import Keypoints
from feedline.images.targets.mask import Mask
from feedline.images.transforms.choice import RandomApply, RandomChoice
from feedline.images.transforms.color import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ColorJitter,
    GaussianBlur,
    Normalize,
    RandomErasing,
    RandomGrayscale,
    RandomSolarize,
    ToChannelsFirst,
)
from feedline.images.transforms.geometry import (
    CenterCrop,
    HorizontalFlip,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from feedline.images.transforms.policies import AutoAugment, RandAugment, TrivialAugmentWide
from feedline.images.transforms.warping import RandomAffine, RandomRotation
from feedline.images.views import FiveCrop, Views
from feedline.system import cuda_queues

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "AutoAugment",
    "Boxes",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Decode",
    "FiveCrop",
    "GaussianBlur",
    "HorizontalFlip",
    "Keypoints",
    "Mask",
    "MixUp",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomAffine",
    "RandomApply",
    "RandomBatchChoice",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "Resize",
    "ToChannelsFirst",
    "TrivialAugmentWide",
    "VerticalFlip",
    "Views",
    "decode_image",
]


def __dir__() -> list[str]:
    return __all__


cuda_queues.widen()  # before the training script puts its model on the GPU: afterwards it would be too late
