"""Videos in folders and in other sources, through the loader on every engine."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("av")

import feedline
from feedline import images, video
from feedline.datasets import ParquetDataset, TarDataset
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from tests.datasets.contract import SourceContract
from tests.video.files import encoded, every_frame

COUNT = 24
CENTER = video.Compose([video.CenterClip(3, stride=2), images.Resize(16)])
RANDOM = video.Compose(
    [video.RandomClip(4, stride=2), images.RandomResizedCrop(16), images.HorizontalFlip(), images.Normalize()],
    axes="CTHW",
)


def content(number: int) -> bytes:
    return encoded(count=12 + 2 * (number % 8))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    for number in range(COUNT):
        path = folder / f"{number % 2}" / f"{number:02d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    (folder / "0" / "notes.txt").write_text("no video")
    return folder


class TestContract(SourceContract):
    takes_transform = False  # it always has one: without a transform, samples are videos that are not decoded

    @pytest.fixture(autouse=True)
    def store(self, root: Path) -> None:
        self.root = root

    def make_source(self, **options: Any) -> video.VideoFolder:
        return video.VideoFolder(self.root, transform=CENTER, **options)

    def samples(self) -> list[Any]:
        return [(CENTER(content(number)), label) for label in range(2) for number in range(label, COUNT, 2)]


# Any, throughout: batches of any form.
def batches(dataset: Any, engine: str, *, workers: int = 2, epochs: int = 1, **options: Any) -> list[Any]:
    options = {"shuffle": True, "seed": 3, **options}
    options |= {} if engine == "inline" else {"num_workers": workers, "engine": engine}
    loader = feedline.DataLoader(dataset, 4, **options)
    return [batch for _ in range(epochs) for batch in loader]


def same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected) == 2
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_samples_and_classes(root: Path) -> None:
    dataset = video.VideoFolder(root)
    assert repr(dataset) == "VideoFolder(24 samples of (file, class of 2), 1 other file left out)"
    assert dataset.classes == ["0", "1"]
    one, label = dataset[13]
    assert (label, len(one)) == (1, 12 + 2 * (3 % 8))
    assert np.array_equal(one.frames([5]), every_frame(content(3))[[5]])
    assert [*video.VideoFolder(root, "label", index=False)] == dataset.targets.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("fields", ["video", ("label", "video"), ["path", "video"]])
def test_the_transform_finds_the_video(root: Path, fields: Any) -> None:
    sample = video.VideoFolder(root, fields, transform=CENTER)[0]
    found = sample if fields == "video" else sample["video"] if isinstance(sample, dict) else sample[1]
    assert found.shape == (3, 16, 24, 3)


def test_any_function_can_be_a_transform(root: Path) -> None:
    assert video.VideoFolder(root, transform=lambda sample: (len(sample[0]), sample[1]))[0] == (12, 0)
    assert video.VideoFolder(root, labels=None, transform=len)[0] == 12


def test_batches_are_the_same_on_every_engine(root: Path) -> None:
    dataset = video.VideoFolder(root, transform=RANDOM)
    expected = batches(dataset, "inline", epochs=2)
    clips, _ = expected[0]
    assert clips.shape == (4, 3, 4, 16, 16)
    assert not torch.equal(expected[0][0], expected[6][0])  # another epoch has other clips
    for engine, workers in (("thread", 2), ("process", 2), ("process", 3)):
        for found, right in zip(batches(dataset, engine, workers=workers, epochs=2), expected, strict=True):
            same(found, right)


def test_clips_are_the_same_without_an_index(root: Path) -> None:
    with_index, without = (video.VideoFolder(root, transform=RANDOM, index=index) for index in (True, False))
    for found, right in zip(batches(without, "inline"), batches(with_index, "inline"), strict=True):
        same(found, right)


@pytest.mark.sample(3)
@pytest.mark.parametrize("engine", ["inline", "thread", "process"])
def test_resumes_after_every_batch(root: Path, engine: str) -> None:
    dataset = video.VideoFolder(root, transform=RANDOM)
    expected = batches(dataset, "inline")
    options: dict[str, Any] = {} if engine == "inline" else {"num_workers": 2, "engine": engine}

    def fresh() -> Any:
        return feedline.DataLoader(dataset, 4, shuffle=True, seed=3, **options)

    for taken in range(1, len(expected)):
        first = fresh()
        iterator = iter(first)
        for _ in range(taken):
            next(iterator)
        state = pickle.loads(pickle.dumps(first.state_dict()))
        del iterator
        second = fresh()
        second.load_state_dict(state)
        rest = list(second)
        assert len(rest) == len(expected) - taken
        for found, right in zip(rest, expected[taken:], strict=True):
            same(found, right)


@pytest.mark.parametrize("engine", ["inline", "thread", "process"])
def test_bad_videos_can_be_skipped(root: Path, engine: str) -> None:
    (root / "1" / "05.mp4").write_bytes(content(5)[:4000])
    (root / "1" / "07.mp4").write_bytes(b"")
    dataset = video.VideoFolder(root, transform=RANDOM)
    with pytest.raises(CorruptSource, match=r"0[57]\.mp4"):
        batches(dataset, engine)
    found = batches(dataset, engine, on_error="skip")
    assert sum(len(labels) for _, labels in found) == COUNT - 2


def test_a_video_that_changes_while_in_use_is_detected(root: Path) -> None:
    dataset = video.VideoFolder(root, transform=RANDOM)
    (root / "0" / "00.mp4").write_bytes(content(1))
    with pytest.raises(SourceChanged, match=r"00\.mp4"):
        dataset[0]
    os.unlink(root / "0" / "00.mp4")
    with pytest.raises(SourceError, match=r"00\.mp4"):
        dataset[0]


def test_bad_options_are_rejected(root: Path) -> None:
    with pytest.raises(BadOption, match="index=3"):
        video.VideoFolder(root, index=3)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="root="):
        video.VideoFolder([root])  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="has no files"):
        video.VideoFolder(root, extensions=".mov", labels=None)


@pytest.fixture
def shards(tmp_path: Path) -> str:
    for shard in range(2):
        with tarfile.open(tmp_path / f"videos-{shard}.tar", "w") as archive:
            for number in range(shard, COUNT, 2):
                for ending, data in (("mp4", content(number)), ("cls", b"%d" % (number % 2))):
                    info = tarfile.TarInfo(f"{number:04d}.{ending}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    return str(tmp_path / "videos-{0..1}.tar")


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_videos_in_tar_shards(shards: str, engine: str) -> None:
    dataset = TarDataset(shards, ("mp4", "cls"), transform=RANDOM)
    expected = batches(dataset, "inline")
    assert expected[0][0].shape == (4, 3, 4, 16, 16)
    for found, right in zip(batches(dataset, engine), expected, strict=True):
        same(found, right)
    streamed = batches(dataset.stream(), engine, shuffle=False)
    assert sum(len(labels) for _, labels in streamed) == COUNT


def test_videos_in_parquet_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = {"video": [content(number) for number in range(8)], "label": list(range(8))}
    parquet.write_table(pa.table(rows), tmp_path / "videos.parquet")
    dataset = ParquetDataset(tmp_path / "videos.parquet", ("video", "label"), transform=CENTER)
    for number in range(8):
        clip, label = dataset[number]
        assert label == number
        assert np.array_equal(clip, CENTER(content(number)))
    stream = ParquetDataset(tmp_path / "videos.parquet", ["video", "label"], transform=CENTER).stream()
    assert [sample["video"].shape for sample in stream] == [(3, 16, 24, 3)] * 8
