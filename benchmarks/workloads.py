"""The datasets and consumers that the benchmarks share.

They live in a module of their own because workers started by spawn or forkserver import them by name. Every dataset
is plain: nothing in it knows which loader reads it.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from feedline.tools.measure.jpegs import write_jpegs
from feedline.tools.measure.steady import touch as touch


class Nothing(Dataset[int]):
    """Samples that cost nothing: all that is left is the loader."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return 0


class Integers(IterableDataset[int]):
    """A stream of integers, as people write one: the whole of it for everybody who iterates."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


class PlainIntegers(Integers):
    """The same stream, whose iterator is that of a range: reading it runs no code of the dataset."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class SplitIntegers(Integers):
    """The same stream, of which every worker of torch's makes its own part."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from range(first, self.length, step)


class TokenBlocks(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What people write for tokens: a memory map, from which a sample is cut and converted."""

    def __init__(self, tokens: NDArray[np.uint16], block: int) -> None:
        self.tokens = tokens
        self.block = block

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, last = index * self.block, (index + 1) * self.block
        tokens = torch.from_numpy(self.tokens[first:last].astype(np.int64))
        labels = torch.from_numpy(self.tokens[first + 1 : last + 1].astype(np.int64))
        return tokens, labels


class Stragglers(Dataset[int]):
    """Samples that sleep: most briefly, a fixed few for long. Which ones depends on the index alone."""

    def __init__(self, length: int, *, usual_s: float, slow_s: float, slow_share: float) -> None:
        self.length = length
        self.usual_s = usual_s
        self.slow_s = slow_s
        self.slow = frozenset(random.Random(0).sample(range(length), round(length * slow_share)))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(self.sleep_s(index))
        return index

    def sleep_s(self, index: int) -> float:
        """Tell how long this sample sleeps."""
        return self.slow_s if index in self.slow else self.usual_s


def path_strings(count: int) -> list[str]:
    """Make a list of paths as an image dataset holds it."""
    return [f"/data/train/class-{number % 1000:04d}/image-{number:09d}.jpeg" for number in range(count)]


class HeldArrays(Dataset[torch.Tensor]):
    """A dataset that holds `megabytes` of NumPy arrays in memory; a sample is a copy of one row of 1,024 bytes.

    It can hold a list of `strings` path strings as well, which no sample looks at.
    """

    ROWS_PER_ARRAY = 65536  # 64 MB each

    def __init__(self, megabytes: int, *, length: int | None = None, strings: int = 0) -> None:
        rows = megabytes * 1024
        counts = [self.ROWS_PER_ARRAY] * (rows // self.ROWS_PER_ARRAY)
        if rest := rows % self.ROWS_PER_ARRAY:
            counts.append(rest)
        # Written to, so that the memory is really there: untouched zeros would be one shared page.
        self.arrays = [np.full((count, 256), number + 1, dtype=np.float32) for number, count in enumerate(counts)]
        self.paths = path_strings(strings)
        self.rows = rows
        self.length = rows if length is None else length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        array, row = divmod(index % self.rows, self.ROWS_PER_ARRAY)
        return torch.from_numpy(self.arrays[array][row].copy())


class LabelledImages(Dataset[Any]):
    """Sample i is an image full of i, or several that together are as large, and i as its label."""

    def __init__(self, length: int, megabytes: float, *, tensors: int = 1) -> None:
        self.length = length
        self.sizes = [int(megabytes * 1e6) // tensors] * tensors

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return (*(torch.full((size,), index % 256, dtype=torch.uint8) for size in self.sizes), index)


class Spiky(Dataset[Any]):
    """Images of which the first one of two batches needs much memory while it is made, in pieces of 4 MB."""

    def __init__(self, images: LabelledImages, first: int, last: int, megabytes: float) -> None:
        self.images = images
        self.spikes = (first, (first + last) // 2)
        self.pieces = max(1, int(megabytes / 4))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        if index in self.spikes:
            frames = [np.ones(4_000_000, np.uint8) for _ in range(self.pieces)]
            assert len(frames) == self.pieces
        return self.images[index]


class Uneven(Dataset[Any]):
    """Images of which those of two batches are so large that each of these batches has `megabytes`."""

    def __init__(self, images: LabelledImages, first: int, last: int, megabytes: float) -> None:
        self.images = images
        self.large = range(first, last)
        self.large_images = LabelledImages(len(images), 2 * megabytes / (last - first))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return (self.large_images if index in self.large else self.images)[index]


class HeldStrings(Dataset[int]):
    """A dataset that holds a Python list of path strings, as image datasets do; a sample looks at one of them."""

    def __init__(self, count: int) -> None:
        self.paths: Sequence[str] = path_strings(count)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        path = self.paths[index]  # taking the reference writes the string's count, which unshares its page
        return len(path)


def stored(data: Path | None, name: str, write: Callable[[Path], None]) -> Path:
    """Have `write` make a file or folder, unless it is there; return its path.

    It is made beside and renamed when complete: an interrupted run leaves nothing half-written for the next one.
    """
    root = data or Path(tempfile.gettempdir()) / f"feedline-benchmarks-{os.getuid()}"
    path = root / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{os.getpid()}-{path.name}")
        write(part)
        part.rename(path)
    return path


def jpeg_files(count: int, data: Path | None = None) -> list[Path]:
    """Write `count` synthetic JPEGs of 500x375, about 100 KB each, unless they are there; return their paths."""
    folder = stored(data, f"jpeg-500x375-{count}", partial(write_jpegs, count))
    return sorted(folder.iterdir())


class SharedStrings(HeldStrings):
    """The same strings, in what `feedline.share` makes of their list."""

    def __init__(self, count: int) -> None:
        from feedline import share

        self.paths = share(path_strings(count))
