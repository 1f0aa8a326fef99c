from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import torch.utils.data

from feedline import images, split
from feedline.datasets import ArrayDataset, CachedDataset, mix
from feedline.datasets.source import Source
from feedline.images.placement import Placement, hands_on_images, place, placement


def test_each_thread_has_its_own() -> None:
    seen = []
    before = place(Placement.COLLATE)
    thread = threading.Thread(target=lambda: seen.append(placement()))
    thread.start()
    thread.join()
    assert place(before) is Placement.COLLATE
    assert seen == [Placement.DATASET]


class Pictures(Source):
    def __len__(self) -> int:
        return 8

    def _read(self, indices: Any) -> list[Any]:
        return [np.full((4, 4, 3), index, np.uint8) for index in indices.tolist()]

    def close(self) -> None:
        pass

    def _form(self) -> str:
        return "pixels"


class OwnSamples(Pictures):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) + 1


def test_only_datasets_that_hand_images_on_may_leave_something_to_do() -> None:
    source = Pictures(images.Resize(2))
    assert hands_on_images(source)
    assert hands_on_images(split(source, [0.5, 0.5])[0])
    assert hands_on_images(mix([source, source]))
    assert not hands_on_images(mix([source, Pictures()]))
    assert not hands_on_images(CachedDataset(source, memory="1MB", freeze_random=True))
    assert not hands_on_images(Pictures())
    assert not hands_on_images(Pictures(np.negative))
    assert not hands_on_images(OwnSamples(images.Resize(2)))
    assert not hands_on_images([source[0]])
    assert not hands_on_images(ArrayDataset(np.zeros((3, 4, 4, 3), np.uint8)))


def test_torchs_own_datasets_hand_on_too() -> None:
    pictures: Any = Pictures(images.Resize(2))
    assert hands_on_images(torch.utils.data.Subset(pictures, [1, 2]))
    assert hands_on_images(torch.utils.data.ConcatDataset([pictures, pictures]))
    assert not hands_on_images(torch.utils.data.ConcatDataset([pictures, cast("Any", [1, 2])]))
