"""Bad options are rejected when a transform is made, by name and value; what was made can be printed and pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from feedline import images
from feedline.errors import BadOption
from feedline.images.transforms.geometry import CornerCrop

NAN, INF = float("nan"), float("inf")
FLIP = images.HorizontalFlip()

# Any: the class of a transform or target; its arguments by name, the first of which is wrong.
WRONG: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    *((images.Resize, {"size": size}) for size in (0, True, (1, 2, 3), "a", -1, 2.5, None)),
    *((images.CenterCrop, {"size": size}) for size in (0, True, (1, 2, 3), (1,), "224", 2.5, (0, 3), None)),
    (images.RandomCrop, {"size": 0}),
    *((images.RandomResizedCrop, {"scale": scale, "size": 8}) for scale in ((0, 1), (0.5, 0.1), 0.5, (1,), "ab", None)),
    (images.RandomResizedCrop, {"ratio": (-1, 1), "size": 8}),
    *((images.HorizontalFlip, {"p": p}) for p in (2, -1, NAN, "x")),
    (images.RandomGrayscale, {"p": -1}),
    (images.RandomErasing, {"p": 1.5}),
    (images.RandomErasing, {"scale": (0.5, 1.5)}),
    (images.RandomErasing, {"ratio": (0, 1)}),
    *((images.RandomErasing, {"value": value}) for value in ("noise", (1, 2))),
    (images.RandomSolarize, {"threshold": 256}),
    *((images.Pad, {"padding": padding}) for padding in (-1, (1, 2, 3))),
    (images.Pad, {"padding_mode": "wrap", "padding": 1}),
    (images.Pad, {"fill": 300, "padding": 1}),
    *((images.ColorJitter, wrong) for wrong in ({"brightness": -1}, {"hue": 0.6}, {"hue": (-0.6, 0)})),
    *((images.ColorJitter, wrong) for wrong in ({"contrast": (2, 1)}, {"brightness": (0, INF)})),
    *((images.GaussianBlur, {"kernel_size": size}) for size in (4, (3, 3, 3))),
    *((images.GaussianBlur, {"sigma": sigma, "kernel_size": 3}) for sigma in (0, (2, 1))),
    *((images.RandomRotation, {"degrees": degrees}) for degrees in (-1, (2, 1), NAN, INF)),
    (images.RandomRotation, {"center": (1,), "degrees": 1}),
    (images.RandomAffine, {"translate": (0.5, 1.5), "degrees": 0}),
    (images.RandomAffine, {"scale": (0, 1), "degrees": 0}),
    (images.RandomAffine, {"shear": (1, 2, 3), "degrees": 0}),
    (images.RandomAffine, {"interpolation": "lanczos", "degrees": 0}),
    *((images.Normalize, {"mean": mean}) for mean in ((0.5,), ("a", "b", "c"), (NAN, 0, 0))),
    *((images.Normalize, {"std": std}) for std in ((0, 1, 1), 1.0)),
    (images.Normalize, {"dtype": "float64"}),
    (images.RandAugment, {"magnitude": 31}),
    (images.RandAugment, {"num_ops": -1}),
    (images.RandAugment, {"interpolation": "bicubic"}),
    *((images.RandAugment, {"fill": fill}) for fill in ((1, 2), 256)),
    (images.TrivialAugmentWide, {"num_magnitude_bins": 1}),
    (images.AutoAugment, {"policy": "mnist"}),
    *((images.RandomChoice, {"p": p, "transforms": [FLIP]}) for p in ([1, 2], [-1], [0], [NAN])),
    *((images.RandomBatchChoice, {"p": p, "transforms": [len]}) for p in ([1, 2], [NAN])),
    (images.RandomBatchChoice, {"transforms": []}),
    (images.MixUp, {"alpha": 0}),
    *((images.MixUp, {"num_classes": count}) for count in (0, 2.5, "2")),
    (images.Decode, {"mode": "F"}),
    (images.Boxes, {"format": "yxyx"}),
    (images.Boxes, {"min_size": -1}),
    (images.Boxes, {"min_visible": 2}),
    *((images.Keypoints, {"flip_pairs": pairs}) for pairs in ([(0, 1), (1, 2)], [(-1, 0)])),
]


@pytest.mark.parametrize(("make", "options"), WRONG, ids=lambda one: getattr(one, "__name__", repr(one)))
def test_bad_options_are_rejected_by_name(make: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=f"{next(iter(options))}="):
        make(**options)


@pytest.mark.parametrize("make", [images.RandomApply, images.RandomChoice])
@pytest.mark.parametrize("transforms", [[], FLIP, [images.RandomResizedCrop(8)], [images.Normalize()], [len]])
def test_transforms_that_cannot_be_applied_to_some_images_only(make: Callable[..., Any], transforms: Any) -> None:
    wrong = transforms[0] if isinstance(transforms, list) and transforms else transforms
    with pytest.raises(BadOption, match=getattr(wrong, "__name__", type(wrong).__name__) if wrong else "one"):
        make(transforms)


def test_numbers_of_numpy_are_numbers() -> None:
    counted: Any = np.int64(3)
    assert images.MixUp(num_classes=counted).num_classes == 3
    assert images.CenterCrop((counted, 6)).size == (3, 6)


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (images.Boxes("xywh"), "Boxes(format='xywh', normalized=False, min_size=1.0, min_visible=0.0"),
        (images.Keypoints(flip_pairs=[(1, 2)]), "Keypoints(flip_pairs=((1, 2),))"),
        (images.Mask(fill=255), "Mask(fill=255)"),
        (CornerCrop(8, right=1, bottom=0), "CornerCrop(size=(8, 8), right=1, bottom=0)"),
        (images.TrivialAugmentWide(fill=128), "TrivialAugmentWide(num_magnitude_bins=31, interpolation='near"),
        (images.MixUp(alpha=0.4, num_classes=4), "MixUp(alpha=0.4, num_classes=4, image=None, label=None)"),
        (images.RandomBatchChoice([images.CutMix(num_classes=4)]), "RandomBatchChoice(transforms=(CutMix(alpha=1.0"),
        (images.Views([[images.Resize(8)]]).on("x"), "Views([Compose([Resize(size=8)])]).on('x')"),
        (
            images.Compose([images.Compose([images.Resize(8)]), images.CenterCrop(4)]).on("jpg"),
            "Compose([Resize(size=8), CenterCrop(size=(4, 4))]).on('jpg')",
        ),
        (images.Compose([], targets={"m": images.Mask()}), "Compose([], targets={'m': Mask(fill=0)})"),
    ],
)
def test_what_was_made_can_be_printed_and_pickled(made: object, shown: str) -> None:
    assert repr(made).startswith(shown)
    assert repr(pickle.loads(pickle.dumps(made))) == repr(made)
