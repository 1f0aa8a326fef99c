"""Datasets and functions for these tests, in a module so that spawned workers can import them."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import feedline

Draws = NDArray[np.float64]


def draw_everywhere() -> list[float]:
    """Draw from every generator, leaving half of a pair of normal numbers buffered in each."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.random()),
        float(np.random.normal()),
        torch.rand((), dtype=torch.float64).item(),
        torch.randn((), dtype=torch.float64).item(),
        float(feedline.rng().random()),
        float(feedline.rng().normal()),
    ]


def draw_own() -> list[float]:
    """Draw from the sample's own generator only."""
    return [float(feedline.rng().random()), float(feedline.rng().normal()), float(feedline.rng().integers(1 << 40))]


class Sized(Dataset[Any]):
    """`n` samples, each of them its index."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return index


class Drawing(Sized):
    """Augments with all generators."""

    def __getitem__(self, index: int) -> Draws:
        return np.array([index, *draw_everywhere()])


class DrawingUnevenly(Sized):
    """Draws more often for some samples than for others."""

    def __getitem__(self, index: int) -> Draws:
        for _ in range(index % 4):
            draw_everywhere()
        return np.array([index, *draw_everywhere()])


class DrawingOwn(Sized):
    """Augments with `feedline.rng()` only, which is safe on threads."""

    def __getitem__(self, index: int) -> Draws:
        return np.array([index, *draw_own()])


class DrawingAtOnce(Sized):
    """Makes the samples of a batch in one call."""

    def __getitem__(self, index: int) -> Draws:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Draws]:
        return [np.array([index, *draw_everywhere()]) for index in indices]


class DrawingInside(Sized):
    """Runs a seeded loader of its own between two draws."""

    def __getitem__(self, index: int) -> Draws:
        before = draw_everywhere()
        inner = torch.cat(list(feedline.DataLoader(Drawing(3), batch_size=2, shuffle=True, seed=index)))
        return np.array([index, *before, *inner.flatten().tolist(), *draw_everywhere()])


def drawing_collate(samples: list[Any]) -> Any:
    """Draw for the batch as a whole, as mixup does."""
    return {"samples": np.stack(samples), "batch": np.array(draw_everywhere())}


def drawing_own_collate(samples: list[Any]) -> Any:
    return {"samples": np.stack(samples), "batch": np.array(draw_own())}


def first_fields(samples: list[Any]) -> list[Any]:
    """Keep only the first field of each sample."""
    return [sample[0] for sample in samples]


def first_field(sample: Any) -> Any:
    return sample[0]


def do_nothing(worker: int) -> None:
    """An init function."""


class Failing(Sized):
    """Raises at some indices."""

    def __init__(self, n: int, at: Sequence[int]) -> None:
        super().__init__(n)
        self.at = tuple(at)

    def __getitem__(self, index: int) -> Any:
        if index in self.at:
            random.random()
            raise LookupError(f"sample {index} is damaged")
        return index


class Scaled(Sized):
    """Samples that depend on `set_scale` and `set_epoch`."""

    def __init__(self, n: int, refused: Sequence[int] = ()) -> None:
        super().__init__(n)
        self.epoch = 0
        self.scale = 1
        self.refused = tuple(refused)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def set_scale(self, scale: int) -> None:
        if scale in self.refused and get_worker_info() is not None:
            raise ArithmeticError(f"scale {scale} is refused")
        self.scale = scale

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return index * self.scale, self.epoch, -1 if info is None else info.id


# Iterable datasets


class Stream(IterableDataset[int]):
    """Yields 0 to n-1 in every worker, as a naive user writes it."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.n))


class DrawingStream(Stream):
    """Augments with all generators."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.n):
            yield np.array([index, *draw_everywhere()])


class RandomStream(Stream):
    """Never yields the same value twice, so workers repeat nothing."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.n):
            yield random.random()


class ShuffledStream(Stream):
    """Shuffles itself: in `iter`, as one does with file names, or in a generator with the first sample."""

    def __init__(self, n: int, generator: str, *, eagerly: bool) -> None:
        super().__init__(n)
        self.generator = generator
        self.eagerly = eagerly

    def _order(self) -> list[int]:
        order = list(range(self.n))
        if self.generator == "random":
            random.shuffle(order)
            return order
        if self.generator == "numpy":
            return [int(index) for index in np.random.permutation(order)]
        if self.generator == "torch":
            return [int(index) for index in torch.randperm(self.n)]
        return [int(index) for index in feedline.rng().permutation(order)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order()) if self.eagerly else self._generate()

    def _generate(self) -> Iterator[int]:
        yield from self._order()


class SplitStream(Stream):
    """Splits itself over the workers."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.n, step))


class UnevenStream(IterableDataset[Any]):
    """Worker i yields `lengths[i]` samples."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter([100 * worker + number for number in range(self.lengths[worker])])


class CountingIterator:
    """An iterator with a state; samples hold the position it was restored from."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = values
        self.at = 0
        self.origin = 0

    def __iter__(self) -> "CountingIterator":
        return self

    def __next__(self) -> Any:
        if self.at >= len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1], self.origin

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = self.origin = state["at"]


class StatefulIteratorStream(Stream):
    """Its iterator has a state. Each sample holds the position its iterator was restored from."""

    def __iter__(self) -> Iterator[Any]:
        return CountingIterator(range(self.n))


class StatefulSplitStream(Stream):
    """Splits itself over the workers, and its iterators have states."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return CountingIterator(range(first, self.n, step))


class StatefulStream(SplitStream):
    """Has a state itself, and its iterator is a generator. Each sample holds the position it was restored from."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.at = 0
        self.origin = 0
        self.resumed = False

    def __iter__(self) -> Iterator[Any]:
        if not self.resumed:
            self.at = self.origin = 0
        self.resumed = False
        values = list(super().__iter__())
        while self.at < len(values):
            self.at += 1
            yield values[self.at - 1], self.origin

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = self.origin = state["at"]
        self.resumed = True


class RestartingStream(Stream):
    """The example of torchdata's README: its state goes back to the beginning when it ends."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        values = list(super().__iter__())
        while self.at < len(values):
            self.at += 1
            yield values[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class RestartingSplitStream(RestartingStream, SplitStream):
    """The same, and splits itself over the workers."""


class TurnstileStream(Stream):
    """Continues where the last epoch ended, like a queue: its state outlives an epoch."""

    def __init__(self, per_epoch: int) -> None:
        super().__init__(per_epoch)
        self.taken = 0
        self.left = 0

    def __iter__(self) -> Iterator[Any]:
        if self.left == 0:
            self.left = self.n
        return self

    def __next__(self) -> int:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        self.taken += 1
        return self.taken - 1

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken, self.left = state["taken"], state["left"]


class EpochStream(SplitStream):
    """Shuffles itself by its epoch, as Hugging Face's datasets do."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter([value + 1000 * self.epoch for value in super().__iter__()])


class StatefulMap(Sized):
    """A map-style dataset with a state: it counts requests."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.asked = 0

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return index, self.asked

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked = state["asked"]


# Custom samplers


class Backwards:
    """A sampler as most users write one: a generator, and no state."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        yield from range(self.n - 1, -1, -1)

    def __len__(self) -> int:
        return self.n


class Stairs:
    """A batch sampler whose batches grow: it has neither state nor length."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[list[int]]:
        start, size = 0, 1
        while start < self.n:
            yield list(range(start, min(start + size, self.n)))
            start, size = start + size, size + 1


class StatefulSampler:
    """Shuffles anew in every epoch and keeps its own state, which must be saved after each batch."""

    def __init__(self, n: int, batch_size: int | None = None) -> None:
        self.n = n
        self.batch_size = batch_size
        self.epoch = 0
        self.at = 0

    def __len__(self) -> int:
        return self.n if self.batch_size is None else -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(self.epoch).permutation(self.n).tolist()
        while self.at < self.n:
            start, self.at = self.at, min(self.n, self.at + (self.batch_size or 1))
            yield order[start] if self.batch_size is None else order[start : self.at]
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class StatefulIteratorSampler:
    """A sampler whose iterator has the state."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Any]:
        return Zigzag(self.n)


class Zigzag:
    """An iterator with a state: the first, the last, the second index and so on."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.at = 0

    def __iter__(self) -> "Zigzag":
        return self

    def __next__(self) -> int:
        if self.at >= self.n:
            raise StopIteration
        self.at += 1
        place = self.at - 1
        return place // 2 if place % 2 == 0 else self.n - 1 - place // 2

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
