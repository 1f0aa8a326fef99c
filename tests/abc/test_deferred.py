from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch.utils.data

import feedline
from feedline import images, split
from feedline.abc.deferred import hands_on_images
from feedline.abc.memory import Placement
from feedline.datasets import ArrayDataset, CachedDataset, Feed, Message, SQLDataset, StreamDataset, mix
from feedline.datasets.framework.source import Source
from feedline.errors import BadOption
from feedline.images.finishing import DeferredImages
from feedline.loader.loader import NumpyConfig
from tests.images.files import files


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


def test_hands_on_images_is_true_only_for_datasets_that_return_images_unchanged() -> None:
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


def test_torchs_subset_and_concat_dataset_hand_on_images_too() -> None:
    pictures: Any = Pictures(images.Resize(2))
    assert hands_on_images(torch.utils.data.Subset(pictures, [1, 2]))
    assert hands_on_images(torch.utils.data.ConcatDataset([pictures, pictures]))
    assert not hands_on_images(torch.utils.data.ConcatDataset([pictures, cast("Any", [1, 2])]))


class Photos(Feed):
    def subscribe(self, number: int, count: int) -> None:
        self.left = 4 if number == 0 else 0

    def receive(self, most: int, wait_s: float) -> list[Message]:
        count, self.left = self.left, 0
        return [Message(files()["jpeg"], receipt) for receipt in range(count)]

    def acknowledge(self, receipts: list[Any]) -> None:
        pass

    def close(self) -> None:
        pass


def of_kind(kind: str, transform: images.Compose, folder: Path) -> Any:
    if kind == "cache":
        return CachedDataset([files()["jpeg"]] * 4, memory="1MB", transform=transform)
    if kind == "messages":
        return StreamDataset(Photos(), idle_s=0.0, transform=transform)
    with sqlite3.connect(folder / "photos.db") as database:
        database.execute("CREATE TABLE photos (id INTEGER PRIMARY KEY, image BLOB)")
        database.executemany("INSERT INTO photos VALUES (?, ?)", [(number, files()["jpeg"]) for number in range(4)])
    database.close()
    query = "SELECT id, image FROM photos"
    rows = SQLDataset(f"sqlite:///{folder / 'photos.db'}", query, "image", key="id", transform=transform)
    return rows.stream() if kind == "database stream" else rows


@pytest.mark.parametrize("kind", ["cache", "messages", "database stream", "database"])
def test_sources_that_cannot_defer_decoding_decode_themselves_or_raise(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = images.Compose([images.Resize((6, 8))])
    monkeypatch.setattr(NumpyConfig, "device_placement", Placement.DECODE)
    (batch,) = feedline.Loader(of_kind(kind, pipeline, tmp_path), 4)
    if kind == "database":
        assert type(batch) is DeferredImages
        assert len(batch.encoded_rows) == 4
        return
    assert np.array_equal(batch, np.stack([pipeline(files()["jpeg"])] * 4))
    (tmp_path / "photos.db").unlink(missing_ok=True)
    insisting = feedline.Loader(of_kind(kind, pipeline.decoding("gpu"), tmp_path), 4)
    with pytest.raises(BadOption, match="pass it the source itself"):
        next(iter(insisting))
