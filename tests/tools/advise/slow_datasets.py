"""Datasets and loaders that have one problem each, which the doctor has to name, and no other; and healthy ones."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

import feedline
from tests.tools.advise.fixes import case, changed, equal_in_any_order, names_for, pasted, threads_per_s

Array = NDArray[Any]
_TWO = {"num_workers": 2}


def _drawing(code: str, _: Any) -> Any:
    class Drawing(Healthy):
        def __getitem__(self, index: int) -> Any:
            return eval(code, names_for())

    return Drawing()


def _drawn(before: Any, after: Any) -> None:
    """Raise AssertionError if samples draw the same numbers."""
    assert len({float(value) for one in after for value in one}) == 32


def _mixed(before: Any, after: Any) -> None:
    """Raise AssertionError if samples differ, or if a batch still holds one class."""
    classes, mixed = ([one[1].tolist() for one in batches] for batches in (before, after))
    assert sorted(np.concatenate(classes)) == sorted(np.concatenate(mixed))
    assert {len(set(one)) for one in classes} == {1}
    assert max(len(set(one)) for one in mixed) > 1


# -- healthy -----------------------------------------------------------------------------------------------------------


@case()
class Healthy:
    """Rows of an array."""

    length = 5000

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).random((100, 64), np.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {"x": self.rows[index % 100], "y": index}


@case()
class Computing(Healthy):
    """Does its work without the interpreter's lock."""

    data = bytes(1 << 21)

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(hashlib.sha256(self.data).digest(), np.uint8).copy()


@case()
class Streamed:
    """A healthy stream."""

    def __iter__(self) -> Iterator[Array]:
        for number in range(3000):
            yield np.full(64, number / 7, np.float32)


@case()
class Awaited(Healthy):
    """Waits, but for all samples of a batch at once."""

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0.002)
        return self.rows[index % 100]


@case()
def healthy_loader() -> Any:
    return feedline.DataLoader(Healthy(), batch_size=32, num_workers=2, persistent_workers=True, shuffle=True)


@case()
def plain_loader() -> Any:
    return feedline.Loader({"x": np.arange(1000) / 7}, 32)


@case()
def tensors() -> Any:
    return TensorDataset(torch.rand(2000, 32), torch.arange(2000))


@case()
class Texts(Healthy):
    def __getitem__(self, index: int) -> Any:
        return f"This is sentence {index} of a text", index % 3


@case()
class Tokens(Healthy):
    """Samples of nearly the same length, so that padding costs little."""

    def __getitem__(self, index: int) -> Any:
        return {"tokens": list(range(60 + index % 4))}


def _images() -> Path:
    """Write JPEG files that are hardly larger than the samples made from them."""
    from PIL import Image

    folder = Path.cwd() / "images" / "class"
    folder.mkdir(parents=True)
    dice = np.random.default_rng(0)
    for number in range(40):
        pixels = dice.integers(0, 255, (32, 32, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((160, 160)).save(folder / f"{number}.jpg")
    return folder.parent


# Decoding small images as torchvision does, or Arrow rows, holds the lock for a share close to the threshold.
@case(needs="PIL", also=("serialised",))
def image_folder() -> Any:
    return feedline.datasets.ImageFolder(_images())


@case(needs="h5py")
def hdf5() -> Any:
    import h5py

    with h5py.File("rows.h5", "w") as file:
        file["rows"] = np.random.default_rng(0).random((1000, 64))
    return feedline.datasets.HDF5Dataset("rows.h5")


@case(needs="datasets", also=("serialised",))
def hugging_face() -> Any:
    import datasets

    rows = {"x": np.random.default_rng(0).random((1000, 16)).tolist(), "label": list(range(1000))}
    return datasets.Dataset.from_dict(rows).with_format("torch")


# -- samples that are wrong --------------------------------------------------------------------------------------------


@case(
    "failing-samples",
    before=lambda dataset: [[index for index in range(32) if index % 10 != 3]],
    same=lambda before, after: np.testing.assert_equal([int(y) for one in after for y in one["y"]], before[0]),
)
class Failing(Healthy):
    def __getitem__(self, index: int) -> Any:
        if index % 10 == 3:
            raise ValueError(f"number {index} is damaged")
        return super().__getitem__(index)


@case("reused-samples", fixed=changed, before=lambda _: feedline.DataLoader(Healthy(), batch_size=8, sampler=range(32)))
class Reused(Healthy):
    """Fills one array, and returns it for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.row = np.empty(64, np.float32)

    def __getitem__(self, index: int) -> Any:
        self.row[:] = self.rows[index % 100]
        return {"x": self.row, "y": index}


class Sorted(Healthy):
    """Has the samples of one class after the other, as folders of images have."""

    def __init__(self, length: int = 5000) -> None:
        super().__init__()
        self.length = length

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 100], index * 10 // self.length


@case("sorted-labels", of=lambda: Sorted(80), own_arguments={"sampler": None}, same=_mixed)
def sorted_classes() -> Any:
    return feedline.DataLoader(Sorted(), batch_size=32, num_workers=2, persistent_workers=True)


@case("copied-random", fixed=_drawing, same=_drawn)
class OwnRandom(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def draw(self) -> float:
        return self.rng.random()

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 100] * self.draw()


@case("copied-random", fixed=_drawing, same=_drawn)
class GlobalPython(OwnRandom):
    def draw(self) -> float:
        return random.random()


# -- objects that processes cannot share -------------------------------------------------------------------------------


@case("unpicklable", own_arguments=_TWO)
class Unpicklable(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.transform = lambda value: value


def _one_by_one(samples: list[Any]) -> Iterator[Any]:
    return (sample for sample in samples)


@case(
    "unpicklable",
    of=Healthy,
    own_arguments={**_TWO, "collate_fn": _one_by_one},
    before=lambda dataset: [[dataset[place] for place in range(first, first + 8)] for first in range(0, 32, 8)],
    after=lambda code, one: list(one),
)
def unsendable() -> Any:
    return feedline.DataLoader(Healthy(), 8, num_workers=2, persistent_workers=True, collate_fn=_one_by_one)


@case("copied-objects", of=lambda: LargeList(1000), fixed=pasted(length=1000))
class LargeList(Healthy):
    def __init__(self, length: int = 300_000) -> None:
        self.length = length
        self.files = [(f"train/class_{number % 100}/{number:08d}.jpg", number % 100) for number in range(length)]

    def __getitem__(self, index: int) -> Any:
        path, label = self.files[index]
        return np.full(8, len(path), np.float32), label


# -- time --------------------------------------------------------------------------------------------------------------


@case(
    "waiting",
    gain=(threads_per_s, {"batch_size": 32, "persistent_workers": True, "num_workers": 1, "engine": "thread"}),
)
class Waiting(Healthy):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return super().__getitem__(index)


@case("serialised")
class Locked(Healthy):
    def __getitem__(self, index: int) -> Any:
        total = 0
        for number in range(20_000):
            total += number % 7
        return np.array([total + index])


@case("serialised", also=("unpicklable",))
class OwnLock(Healthy):
    """Holds a lock of its own while it makes a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            time.sleep(2e-3)
            return self.rows[index % 100]


@case(also=("unpicklable", "waiting"))
class FreeLock(OwnLock):
    """Has a lock, and hardly ever holds it."""

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            found = self.rows[index % 100]
        time.sleep(2e-3)
        return found


@case("stragglers", own_arguments=_TWO, same=equal_in_any_order)
class Stragglers(Healthy):
    def __getitem__(self, index: int) -> Any:
        if index % 50 == 0:
            time.sleep(0.02)
        return super().__getitem__(index)


class OwnThread(Healthy):
    """Can be read only by the thread that created it."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def __getitem__(self, index: int) -> Any:
        time.sleep(1e-4)
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        return super().__getitem__(index)


@case("fails-on-threads", of=OwnThread, own_arguments=_TWO, only_slow={"num_workers": 0})
def failing_on_threads() -> Any:
    return feedline.DataLoader(OwnThread(), batch_size=4, num_workers=2, engine="thread")


# -- loaders -----------------------------------------------------------------------------------------------------------


class Few(Healthy):
    length = 64


@case("workers-restarted", of=Few)
def restarting() -> Any:
    return feedline.DataLoader(Few(), batch_size=8, num_workers=2)


@case("too-many-workers", of=Healthy, own_arguments=_TWO)
def too_many_workers() -> Any:
    return feedline.Loader(Computing(), 4, workers=16, persistent=True)


@case("too-few-workers", of=Healthy, own_arguments=_TWO, is_probed=False)
def too_few_workers() -> Any:
    return feedline.DataLoader(Computing(), 8, num_workers=1, persistent_workers=True)


def _wrong(samples: list[Any]) -> Any:
    return np.stack([sample["z"] for sample in samples])


@case("failing-loader")
def failing_loader() -> Any:
    return torch.utils.data.DataLoader(Healthy(), 8, collate_fn=_wrong)  # type: ignore[arg-type]
