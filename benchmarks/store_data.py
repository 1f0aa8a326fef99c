"""The same samples in the formats of several libraries, as objects in a bucket, for `w20_object_storage`.

`jpeg`: a JPEG file of about 48 KB, as bytes, and its number. `tokens`: a window of uint16 tokens, which begins with its
number in two tokens. So a benchmark can check that every sample arrived once.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import workloads

BUCKET = "object-storage"
KINDS = ("jpeg", "tokens")
DISTINCT = 64
"""JPEG files that are made; samples repeat them."""


@dataclass(frozen=True)
class Data:
    """Samples of a kind, in objects of equal numbers of samples."""

    kind: str
    shards: int
    samples: int
    window: int
    """Tokens in a sample."""

    @property
    def per_shard(self) -> int:
        """Samples in a shard."""
        return -(-self.samples // self.shards)

    @property
    def name(self) -> str:
        size = f"-{self.window}" if self.kind == "tokens" else ""
        return f"{self.kind}-{self.shards}-{self.samples}{size}"

    # Any: bytes and a number, or an array.
    def __iter__(self) -> Iterator[Any]:
        return _jpegs(self.samples) if self.kind == "jpeg" else _windows(self.samples, self.window)


def _jpegs(count: int) -> Iterator[tuple[bytes, int]]:
    """Make JPEG files."""
    from PIL import Image

    generator = np.random.default_rng(0)
    files = []
    for _ in range(min(count, DISTINCT)):
        coarse = Image.fromarray(generator.integers(0, 256, (72, 96, 3), np.uint8))
        file = io.BytesIO()
        coarse.resize((400, 300), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        files.append(file.getvalue())
    return ((files[number % DISTINCT], number) for number in range(count))


def _windows(count: int, window: int) -> Iterator[NDArray[np.uint16]]:
    generator = np.random.default_rng(0)
    for number in range(count):
        tokens = generator.integers(0, 50_000, window, np.uint16)
        tokens[:2] = number % (1 << 16), number >> 16
        yield tokens


def write(data: Data, form: str, root: Path | None) -> Path:
    """Write the samples in a format, unless they are there; return the folder."""
    return workloads.stored(root, f"{BUCKET}/{data.name}/{form}", partial(_FORMS[form], data))


def object_bytes(folder: Path) -> dict[str, int]:
    """Return the size of each shard; of objects that hold one sample each, that of all."""
    if folder.name == "objects":
        return {"*": sum(path.stat().st_size for path in folder.iterdir())}
    endings = (".tar", ".mds", ".bin")
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.suffix in endings}


def write_tar(data: Data, folder: Path) -> None:
    folder.mkdir()
    samples = iter(data)
    for shard in range(data.shards):
        first = shard * data.per_shard
        with tarfile.open(folder / f"{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as file:
            for number in range(first, min(first + data.per_shard, data.samples)):
                for suffix, content in _members(data.kind, next(samples)):
                    member = tarfile.TarInfo(f"{number:08d}.{suffix}")
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))


# Any: a sample.
def _members(kind: str, sample: Any) -> Sequence[tuple[str, bytes]]:
    if kind == "jpeg":
        return [("jpg", sample[0]), ("cls", str(sample[1]).encode())]
    file = io.BytesIO()
    np.save(file, sample)
    return [("npy", file.getvalue())]


def write_packed(data: Data, folder: Path) -> None:
    """Write tar shards with `feedline.pack`, which adds an index of each shard and a manifest."""
    import feedline

    names = ("jpg", "cls") if data.kind == "jpeg" else ("npy",)
    samples = [dict(zip(names, one if data.kind == "jpeg" else (one,), strict=True)) for one in data]
    feedline.pack(samples, folder, format="tar", samples_per_shard=data.per_shard, workers=0)


def write_mds(data: Data, folder: Path) -> None:
    """Write shards with MosaicML's writer, which cuts them by size."""
    from streaming import MDSWriter

    columns = {"jpg": "bytes", "cls": "int"} if data.kind == "jpeg" else {"npy": f"ndarray:uint16:{data.window}"}
    largest = max(len(sample[0]) if data.kind == "jpeg" else sample.nbytes for sample in data)
    limit = data.per_shard * (largest + 20)
    with MDSWriter(out=str(folder), columns=columns, size_limit=limit) as writer:
        for sample in data:
            values = sample if data.kind == "jpeg" else (sample,)
            writer.write(dict(zip(columns, values, strict=True)))


def write_litdata(data: Data, folder: Path) -> None:
    """Write chunks with litdata's writer; tokens one after the other, as its documentation advises."""
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir()
    if data.kind == "jpeg":
        writer = BinaryWriter(str(folder), chunk_size=data.per_shard)
    else:
        loader = TokensLoader(block_size=data.window)
        writer = BinaryWriter(str(folder), chunk_size=data.per_shard * data.window, item_loader=loader)
    for number, sample in enumerate(data):
        writer[number] = sample
    writer.done()
    writer.merge(1)


def write_objects(data: Data, folder: Path) -> None:
    """Write an object for each sample."""
    folder.mkdir()
    for number, sample in enumerate(data):
        (folder / str(number)).write_bytes(sample[0] if data.kind == "jpeg" else sample.tobytes())


_FORMS: dict[str, Callable[[Data, Path], None]] = {
    "tar": write_tar,
    "packed": write_packed,
    "mds": write_mds,
    "litdata": write_litdata,
    "objects": write_objects,
}
