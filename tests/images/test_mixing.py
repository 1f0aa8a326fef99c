from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, default_collate

from feedline import DataLoader, images
from feedline.datasets import ArrayDataset
from feedline.errors import BadOption

pytestmark = pytest.mark.usefixtures("fixed_draws")


def numpy_batch(count: int = 6, *, last: bool = False) -> tuple[Any, Any]:
    shape = (count, 10, 12, 3) if last else (count, 3, 10, 12)
    pixels = np.broadcast_to(np.arange(count, dtype=np.float32).reshape(-1, 1, 1, 1), shape).copy()
    return pixels, np.arange(count) % 3


def torch_batch(count: int = 6, *, last: bool = False) -> tuple[Any, Any]:
    pixels, labels = numpy_batch(count, last=last)
    return torch.from_numpy(pixels), torch.from_numpy(labels)


@pytest.mark.parametrize("make", [numpy_batch, torch_batch])
def test_mixup_blends_images_and_labels_with_the_same_share(make: Callable[..., Any]) -> None:
    pixels, labels = make()
    mixed, soft = images.MixUp(num_classes=3)((pixels, labels))
    assert type(mixed) is type(pixels)
    mixed, soft = np.asarray(mixed), np.asarray(soft)
    share = float(soft[1, 1])  # the share of image 1, whose label is 1; image 0 before it has the label 0
    assert 0 < share < 1
    for row, before in enumerate([5, 0, 1, 2, 3, 4]):
        assert np.allclose(mixed[row], share * row + (1 - share) * before, atol=1e-5)
        expected = np.zeros(3)
        expected[row % 3] += share
        expected[before % 3] += 1 - share
        assert np.allclose(soft[row], expected, atol=1e-6)
    assert soft.dtype == np.float32
    assert (np.asarray(pixels) == numpy_batch()[0]).all()


@pytest.mark.parametrize("make", [numpy_batch, torch_batch])
@pytest.mark.parametrize("last", [False, True])
def test_cutmix_pastes_a_rectangle_and_weights_labels_by_its_area(make: Callable[..., Any], last: bool) -> None:
    areas = set()
    for _ in range(20):
        pixels, labels = make(last=last)
        mixed, soft = map(np.asarray, images.CutMix(num_classes=3)((pixels, labels)))
        mixed = mixed[..., 0] if last else mixed[:, 0]
        pasted = mixed[1] == 0
        assert np.isin(mixed[1], [0, 1]).all()
        assert all(((mixed[row] == (row - 1) % 6) == pasted).all() for row in range(6))
        rows, columns = np.flatnonzero(pasted.any(1)), np.flatnonzero(pasted.any(0))
        if len(rows):
            assert pasted[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
            assert pasted.sum() == (rows[-1] + 1 - rows[0]) * (columns[-1] + 1 - columns[0])
        assert soft[1, 0] == pytest.approx(pasted.mean(), abs=1e-6)
        assert soft.sum(1) == pytest.approx(1)
        areas.add(int(pasted.sum()))
        assert (np.asarray(pixels) == numpy_batch(last=last)[0]).all()
    assert len(areas) > 8


def test_shares_come_from_the_beta_distribution() -> None:
    for alpha in (0.2, 1.0, 4.0):
        shares = [float(images.MixUp(alpha=alpha, num_classes=3)(numpy_batch(2))[1][1, 1]) for _ in range(800)]
        variance = 1 / (4 * (2 * alpha + 1))
        assert abs(np.mean(shares) - 0.5) < 5 * math.sqrt(variance / 800)
        assert np.var(shares) == pytest.approx(variance, rel=0.1)


CLEAR, VECTORS = np.zeros((2, 3, 4, 4), np.float32), np.zeros((2, 8), np.float32)


class Named(NamedTuple):
    pixels: Any
    name: list[str]
    label: Any


@pytest.mark.parametrize(
    ("shape", "channels"), [((4, 3, 5, 8, 12), 1), ((4, 5, 3, 8, 12), 2), ((4, 3, 8, 12, 3), 4)], ids=str
)
def test_all_frames_of_a_clip_are_mixed_in_the_same_way(shape: tuple[int, ...], channels: int) -> None:
    clips = np.broadcast_to(np.arange(4.0, dtype=np.float32).reshape(4, 1, 1, 1, 1), shape)
    for mix in (images.MixUp(num_classes=4), images.CutMix(num_classes=4)):
        mixed, labels = mix((clips, np.arange(4)))
        frames = np.moveaxis(mixed, channels, 0)[0]  # clip, frame, height, width
        assert (frames == frames[:, :1]).all()
        assert frames.mean((1, 2, 3)) == pytest.approx(labels @ np.arange(4), abs=1e-5)


def test_batches_keep_their_type_and_their_other_fields() -> None:
    pixels, labels = numpy_batch()
    mixup = images.MixUp(num_classes=3)
    assert isinstance(mixup([pixels, labels]), list)
    found = mixup({"x": pixels, "y": labels, "name": ["a"] * 6, "weight": np.ones(6)})
    assert found["name"] == ["a"] * 6
    assert found["y"].shape == (6, 3)
    assert mixup(Named(pixels, ["a"] * 6, labels)).label.shape == (6, 3)
    chosen = images.MixUp(num_classes=3, image=1, label=3)((pixels, pixels, labels, labels))
    assert [np.shape(one) for one in chosen] == [(6, 3, 10, 12), (6, 3, 10, 12), (6,), (6, 3)]
    again = images.CutMix(num_classes=3)(images.MixUp(num_classes=3)(torch_batch()))
    assert torch.allclose(again[1].sum(1), torch.ones(6)), "soft labels can be mixed again"


def mixup(batch: Any, num_classes: int | None = 3, **options: Any) -> None:
    images.MixUp(num_classes=num_classes, **options)(batch)


@pytest.mark.parametrize(
    ("mix", "named"),
    [
        (lambda: mixup(numpy_batch(), None), "num_classes="),
        (lambda: mixup(numpy_batch(), 2), "num_classes=2"),
        (lambda: mixup(torch_batch(), 2), "num_classes=2"),
        (lambda: mixup((numpy_batch()[0].astype(np.uint8), numpy_batch()[1])), "Normalize"),
        (lambda: mixup(numpy_batch()[0]), "labels"),
        (lambda: mixup(numpy_batch()[:1]), "label="),
        (lambda: mixup(numpy_batch(), image="x"), "image='x'"),
        (lambda: mixup((numpy_batch()[0], numpy_batch(5)[1])), "6 .*5"),
        *(
            (lambda labels=labels: mixup((CLEAR, labels), 2, label=1), "labels")
            for labels in (np.array([0.0, 1.0]), torch.tensor([0.0, 1.5]), [0, 1])
        ),
        (lambda: images.CutMix(num_classes=2, image="x")({"x": VECTORS, "label": np.arange(2)}), r"\(2, 8\)"),
    ],
)
def test_rejects_batches_that_cannot_be_mixed(mix: Callable[[], object], named: str) -> None:
    with pytest.raises(BadOption, match=named):
        mix()


def test_one_of_several_transforms_is_chosen_for_each_batch() -> None:
    choice = images.RandomBatchChoice([lambda batch: "a", lambda batch: "b"], p=[1, 3])
    found = [choice(0) for _ in range(2000)]
    assert abs(found.count("a") / 2000 - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 2000)


MIXING = images.RandomBatchChoice([images.MixUp(alpha=0.4, num_classes=40), images.CutMix(num_classes=40)])
PLACES: dict[str, dict[str, Any]] = {
    "device": {"device": "cpu", "device_transform": MIXING},
    "collate": {"collate_fn": MIXING.after(default_collate)},
}


class Numbers(IterableDataset[Any]):
    """A stream that the loader splits."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*pictures(), strict=True)


def pictures() -> tuple[Any, Any]:
    numbers = np.arange(24)
    return np.broadcast_to(numbers.astype(np.float32).reshape(-1, 1, 1, 1), (24, 3, 8, 8)).copy(), numbers


def mixed(loader: Any) -> list[list[Any]]:
    return [[np.asarray(field).copy() for field in batch] for batch in loader]


def check_equal(found: list[list[Any]], expected: list[list[Any]]) -> None:
    pairs = zip(found, expected, strict=True)
    assert all(np.array_equal(one, other) for mine, theirs in pairs for one, other in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    ("place", "kind", "engine"),
    [("device", "samples", "process"), ("collate", "samples", "thread"), ("device", "stream", "thread")],
)
def test_mixing_is_the_same_on_every_engine_and_after_resuming(place: str, kind: str, engine: Any) -> None:
    dataset: Any = ArrayDataset(pictures()) if kind == "samples" else Numbers()

    def loader(engine: Any = engine) -> Any:
        workers = 0 if engine == "inline" else 2
        options: dict[str, Any] = {"shuffle": True} if kind == "samples" else {"shard": True}
        return DataLoader(dataset, 8, seed=3, engine=engine, num_workers=workers, **options, **PLACES[place])

    whole = loader()
    epochs = [mixed(whole), mixed(whole)]
    assert not np.array_equal(epochs[0][0][1], epochs[1][0][1])
    assert len({round(float(batch[1].max()), 6) for batch in epochs[0]}) > 1  # drawn for each batch
    first, second = loader("inline"), loader()
    batches = iter(first)
    check_equal(mixed([next(batches)]), epochs[0][:1])
    second.load_state_dict(first.state_dict())
    check_equal(mixed(second), epochs[0][1:])
    check_equal(mixed(second), epochs[1])
