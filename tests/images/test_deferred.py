"""Images are finished as late as possible, but no code of the user sees one that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils import collate as torch_collate

import feedline
from feedline import images
from feedline.abc.memory import Placement, on_this_thread
from feedline.errors import CollateError
from feedline.images.deferred import DeferredImage, collate_images
from feedline.images.finishing import DeferredImages
from feedline.images.geometry import Finish
from feedline.images.steps.tables import brightness
from feedline.loader.base import config_of
from tests.images.pictures import Scenes, finished, photo, placed, scene

TRAIN = images.Compose([images.RandomResizedCrop(64), images.HorizontalFlip(), images.Normalize()]).on("image")


# Any, throughout: loaders, and batches of any form.
def pixels(loader: Any) -> Any:
    return np.concatenate([np.asarray(batch["image"]) for batch in loader])


def test_the_users_own_code_receives_finished_images() -> None:
    seen: list[type] = []

    def collate(samples: Any) -> Any:
        seen.extend(type(sample["image"]) for sample in samples)
        return 0

    list(feedline.Loader(Scenes(TRAIN), 4, collate_fn=collate))
    seen.extend(type(sample["image"]) for sample in feedline.Loader(Scenes(TRAIN), None))
    assert set(seen) == {np.ndarray}


def test_a_loader_within_a_dataset_does_not_change_the_outer_one() -> None:
    class Nested(Scenes):
        def _read(self, indices: Any) -> list[Any]:
            inner = next(iter(feedline.Loader(Scenes(TRAIN), 2, collate_fn=list)))
            assert isinstance(inner[0]["image"], np.ndarray)
            return super()._read(indices)

    assert pixels(feedline.Loader(Nested(TRAIN), 4)).shape == (12, 3, 64, 64)


def test_registrations_with_torch_do_not_lose_images(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pixels(feedline.DataLoader(Scenes(TRAIN), 4, seed=7))  # registers them
    monkeypatch.setattr(torch_collate, "default_collate_fn_map", dict(torch_collate.default_collate_fn_map))
    torch_collate.default_collate_fn_map[complex] = lambda batch, collate_fn_map=None: batch
    assert (pixels(feedline.DataLoader(Scenes(TRAIN), 4, seed=7)) == expected).all()


def test_bfloat16_needs_tensors() -> None:
    pipeline = images.Compose([images.Resize((8, 8)), images.Normalize(dtype="bfloat16")]).on("image")
    batch = next(iter(feedline.DataLoader(Scenes(pipeline), 4)))["image"]
    assert (batch.dtype, batch.shape) == (torch.bfloat16, (4, 3, 8, 8))
    with pytest.raises(CollateError, match="bfloat16"):
        next(iter(feedline.Loader(Scenes(pipeline), 4)))


def collated(where: Placement, *found: Any) -> Any:
    on_this_thread.placement = where
    try:
        return collate_images(found)
    finally:
        on_this_thread.placement = Placement.DATASET


def test_the_error_for_images_that_differ_says_how() -> None:
    first, smaller = DeferredImage(Finish(4, 3), pixels=photo(3, 4)), DeferredImage(Finish(3, 3), pixels=photo(3, 3))
    for other, message in ((smaller, "4 x 3 .* and 3 x 3"), (None, "Sample 1 .*NoneType")):
        with pytest.raises(CollateError, match=message):
            collated(Placement.COLLATE, first, other)
    loader = feedline.Loader(Scenes(images.Compose([]).on("image")), 4, sampler=[0, 4, 7, 8])
    with pytest.raises(CollateError, match=r"Samples 0 and 2 .* 90 x 120") as caught:
        next(iter(loader))
    assert any("is sample 7 of the dataset" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("where", [Placement.COLLATE, Placement.DEVICE])
def test_images_with_and_without_steps_can_share_a_batch(where: Placement) -> None:
    plain = DeferredImage(Finish(4, 3), pixels=photo(3, 4))
    changed = DeferredImage(Finish(4, 3), steps=(brightness(2),), pixels=photo(3, 4))
    both = collated(where, plain, changed)
    if where is Placement.DEVICE:
        assert collated(where, plain).steps is None
        assert both.steps == [(), (brightness(2),)]
        both = finished(both)
    assert (both[0] == photo(3, 4)).all()
    assert (both[1] == np.minimum(255, 2 * photo(3, 4).astype(int))).all()


class Own:
    """A user dataset that declares that it passes on the pipeline's images unchanged."""

    hands_on_images = True
    pipeline = TRAIN.deferring()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.pipeline({"image": scene(index)["image"]})


def test_a_user_dataset_can_pass_on_deferred_images() -> None:
    loader = feedline.Loader(Own(), 4, seed=7)
    assert config_of(loader).placement is Placement.COLLATE
    assert pixels(loader).shape == (12, 3, 64, 64)
    assert isinstance(Own()[0]["image"], np.ndarray)


@pytest.mark.parametrize("where", [Placement.COLLATE, Placement.DEVICE, Placement.DECODE])
def test_concatenated_datasets_may_normalise_differently(where: Placement) -> None:
    finishes = (images.Normalize(), images.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
    sources: list[Any] = [Scenes(images.Compose([images.Resize((60, 70)), last]).on("image")) for last in finishes]
    batches = list(placed(feedline.DataLoader, where)(torch.utils.data.ConcatDataset(sources), 8))
    assert isinstance(batches[0]["image"], DeferredImages) == (where is not Placement.COLLATE)
    expected = [sources[0][11]["image"], sources[1][0]["image"]]
    np.testing.assert_allclose(np.asarray(batches[1]["image"][3:5]), expected, atol=0.1)
