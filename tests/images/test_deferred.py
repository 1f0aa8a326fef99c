from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data._utils import collate as torch_collate

import feedline
from feedline import images
from feedline.abc.memory import Placement, on_this_thread
from feedline.datasets.framework.source import Source
from feedline.errors import CollateError
from feedline.images.deferred import DeferredImage, collate_images
from feedline.images.finishing import DeferredImages
from feedline.images.geometry import Finish
from feedline.images.steps.tables import brightness
from feedline.loader.base import config_of
from tests.images.pictures import encoded, finished, photo, placed

pytestmark = pytest.mark.sample(3)

FILES = [encoded(photo(seed=seed), "PNG" if seed % 3 == 0 else "JPEG") for seed in range(12)]
FILES[7] = encoded(photo(119, 90, seed=7))
TRAIN = images.Compose(
    [
        images.RandomResizedCrop(64),
        images.HorizontalFlip(),
        images.ColorJitter(0.4, 0.4, 0.4, 0.1),
        images.RandAugment(),
        images.Normalize(),
        images.RandomErasing(value="random"),
    ]
)
PLAIN = images.Compose([images.RandomResizedCrop((20, 24)), images.HorizontalFlip()])


class Files(Source):
    """Files and their numbers, JPEG and PNG."""

    def __len__(self) -> int:
        return len(FILES)

    def _read(self, indices: Any) -> list[Any]:
        return [(FILES[index], index) for index in indices.tolist()]

    def close(self) -> None:
        pass

    def _form(self) -> str:
        return "(file, number)"


def numpy_loader(*, place_at: Placement | None = None, **options: Any) -> Any:
    kind = feedline.Loader if place_at is None else placed(feedline.Loader, place_at)
    return kind(Files(TRAIN), 4, seed=7, **options)


def torch_loader(*, place_at: Placement | None = None, workers: int = 0, **options: Any) -> Any:
    kind = feedline.DataLoader if place_at is None else placed(feedline.DataLoader, place_at)
    return kind(Files(TRAIN), 4, seed=7, num_workers=workers, **options)


def batches(loader: Any) -> list[Any]:
    return [[image, np.asarray(number)] for image, number in loader]


def arrays(loader: Any) -> NDArray[Any]:
    found = [finished(image) if isinstance(image, DeferredImages) else np.asarray(image) for image, _ in loader]
    return np.concatenate(found)


def test_a_user_collate_function_receives_finished_images() -> None:
    seen: list[type] = []

    def collate(samples: Any) -> Any:
        seen.extend(type(image) for image, _ in samples)
        return 0

    list(feedline.Loader(Files(TRAIN), 4, collate_fn=collate))
    list(feedline.Loader(Files(TRAIN), None))
    assert set(seen) == {np.ndarray}


def test_a_loader_within_a_dataset_does_not_change_the_outer_one() -> None:
    class Nested(Files):
        def _read(self, indices: Any) -> list[Any]:
            inner = next(iter(feedline.Loader(Files(TRAIN), 2, collate_fn=list)))
            assert isinstance(inner[0][0], np.ndarray)
            return super()._read(indices)

    found = batches(feedline.Loader(Nested(PLAIN), 4))
    assert [image.shape for image, _ in found] == [(4, 20, 24, 3)] * 3


def test_registrations_with_torch_do_not_lose_images(monkeypatch: pytest.MonkeyPatch) -> None:
    list(torch_loader())  # registers them
    monkeypatch.setattr(torch_collate, "default_collate_fn_map", dict(torch_collate.default_collate_fn_map))
    torch_collate.default_collate_fn_map[complex] = lambda batch, collate_fn_map=None: batch
    assert (arrays(torch_loader()) == arrays(torch_loader(place_at=Placement.DATASET))).all()


def test_bfloat16_needs_tensors() -> None:
    pipeline = images.Compose([images.Resize((8, 8)), images.Normalize(dtype="bfloat16")])
    batch, _ = next(iter(feedline.DataLoader(Files(pipeline), 4)))
    assert batch.dtype is torch.bfloat16
    assert batch.shape == (4, 3, 8, 8)
    with pytest.raises(CollateError, match="NumPy lacks"):
        next(iter(feedline.Loader(Files(pipeline), 4)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (DeferredImage(Finish(3, 3), pixels=photo(3, 3)), "4 x 3 .* and 3 x 3"),
        (None, "sample 1 of the batch has a NoneType|Sample 1 of the batch has a NoneType"),
    ],
)
def test_the_error_for_images_that_differ_says_how(other: Any, message: str) -> None:
    on_this_thread.placement = Placement.COLLATE
    try:
        with pytest.raises(CollateError, match=message):
            collate_images([DeferredImage(Finish(4, 3), pixels=photo(3, 4)), other])
    finally:
        on_this_thread.placement = Placement.DATASET


@pytest.mark.parametrize("where", [Placement.COLLATE, Placement.DEVICE])
def test_images_with_and_without_steps_can_share_a_batch(where: Placement) -> None:
    on_this_thread.placement = where
    try:
        plain = DeferredImage(Finish(4, 3), pixels=photo(3, 4))
        changed = DeferredImage(Finish(4, 3), steps=(brightness(2),), pixels=photo(3, 4))
        alone: Any = collate_images([plain])
        both: Any = collate_images([plain, changed])
    finally:
        on_this_thread.placement = Placement.DATASET
    if where is Placement.DEVICE:
        assert alone.steps is None
        assert both.steps == [(), (brightness(2),)]
        both = finished(both)
    assert (both[0] == photo(3, 4)).all()
    assert (both[1] == np.minimum(255, 2 * photo(3, 4).astype(int))).all()


def test_the_error_names_samples_whose_images_differ() -> None:
    loader = feedline.Loader(Files(images.Compose([Cut()])), 4, sampler=[5, 6, 7, 8])
    with pytest.raises(CollateError, match="Samples 0 and 2 of the batch have images of 90 x 120") as caught:
        next(iter(loader))
    assert any("is sample 7 of the dataset" in note for note in caught.value.__notes__)


class Cut(images.Resize):
    """Makes the image of sample 7 smaller."""

    def __init__(self) -> None:
        super().__init__(8)

    def draw(self, view: Any) -> None:
        if view.width == 119:
            super().draw(view)


class Own:
    """A user dataset that declares that it passes on the pipeline's images unchanged."""

    hands_on_images = True
    pipeline = TRAIN.deferring()

    def __len__(self) -> int:
        return len(FILES)

    def __getitem__(self, index: int) -> Any:
        return self.pipeline(FILES[index]), index


def test_a_user_dataset_can_pass_on_deferred_images() -> None:
    loader = feedline.Loader(Own(), 4, seed=7)
    assert config_of(loader).placement is Placement.COLLATE
    assert arrays(loader).shape == (12, 3, 64, 64)
    assert isinstance(Own()[0][0], np.ndarray)


@pytest.mark.parametrize("place_at", [Placement.COLLATE, Placement.DEVICE, Placement.DECODE])
def test_concatenated_datasets_may_normalise_differently(place_at: Placement) -> None:
    half = images.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    sources: list[Any] = [Files(images.Compose([images.Resize((32, 32)), last])) for last in (images.Normalize(), half)]
    batches = list(placed(feedline.DataLoader, place_at)(torch.utils.data.ConcatDataset(sources), 8))
    assert isinstance(batches[0][0], DeferredImages) == (place_at is not Placement.COLLATE)
    expected = [source[index][0] for source, index in ((sources[0], 11), (sources[1], 0))]
    np.testing.assert_allclose(np.asarray(batches[1][0][3:5]), expected, atol=0.1)
