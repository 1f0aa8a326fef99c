"""Datasets and loaders that have one problem each. The doctor has to name it and no other."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import json
import os
import random
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray

import feedline

Array = NDArray[Any]


class Healthy:
    """Rows of an array."""

    length = 5000

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).random((100, 64), np.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {"x": self.rows[index % 100], "y": index}


class Anything(Healthy):
    def __getitem__(self, index: int) -> Any:
        return object()


class Computing(Healthy):
    """Does its work without the interpreter's lock."""

    data = bytes(1 << 21)

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(hashlib.sha256(self.data).digest(), np.uint8).copy()


class Multiplying(Healthy):
    """Uses a library that has its own threads."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = np.random.default_rng(0).random((200, 200))

    def __getitem__(self, index: int) -> Any:
        return np.linalg.eigvalsh(self.factor @ self.factor.T)


class Streamed:
    """A healthy stream."""

    def __iter__(self) -> Iterator[Array]:
        for number in range(3000):
            yield np.full(64, number / 7, np.float32)


class Locked(Healthy):
    def __getitem__(self, index: int) -> Any:
        total = 0
        for number in range(20_000):
            total += number % 7
        return np.array([total + index])


class Waiting(Healthy):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return super().__getitem__(index)


class Awaited(Healthy):
    """Waits, but for all samples of a batch at once."""

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0.002)
        return self.rows[index % 100]


class OpenedLater(Healthy):
    """Opens its file on first use, and keeps it: each worker has its own."""

    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = _file()
        return np.frombuffer(os.pread(self.file.fileno(), 64, index % 900), np.uint8).copy()


class Objects(Healthy):
    def __init__(self) -> None:
        self.words = [[f"word {index} {number}" for number in range(300)] for index in range(200)]

    def __getitem__(self, index: int) -> Any:
        return {"words": self.words[index % 200]}


class Numbers(Healthy):
    """Has lists of numbers where an array would do."""

    def __init__(self) -> None:
        self.lists = np.random.default_rng(0).random((200, 300)).tolist()

    def __getitem__(self, index: int) -> Any:
        return {"values": self.lists[index % 200]}


class Unpicklable(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.transform = lambda value: value


class LargeList(Healthy):
    length = 300_000

    def __init__(self) -> None:
        self.files = [(f"train/class_{number % 100}/{number:08d}.jpg", number % 100) for number in range(self.length)]

    def __getitem__(self, index: int) -> Any:
        path, label = self.files[index]
        return np.full(8, len(path), np.float32), label


class GlobalRandom(Healthy):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 100] * self.draw()


def _draw_torch() -> float:
    return torch.rand(()).item()


global_python = functools.partial(GlobalRandom, random.random)
global_numpy = functools.partial(GlobalRandom, np.random.random)
global_torch = functools.partial(GlobalRandom, _draw_torch)


class OwnRandom(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 100] * self.rng.random()


class Reused(Healthy):
    """Fills one array, and returns it for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.row = np.empty(64, np.float32)

    def __getitem__(self, index: int) -> Any:
        self.row[:] = self.rows[index % 100]
        return {"x": self.row, "y": index}


class ReusedStream:
    """The same, of one sample after the other."""

    def __iter__(self) -> Iterator[Array]:
        row = np.empty(64, np.float32)
        for number in range(3000):
            row[:] = number / 7
            yield row


class Sorted(Healthy):
    """Has the samples of one class after the other, as folders of images have."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 100], index // 500


class Failing(Healthy):
    def __getitem__(self, index: int) -> Any:
        if index % 10 == 3:
            raise ValueError(f"number {index} is damaged")
        return super().__getitem__(index)


class Holding(Healthy):
    """Has an open handle from the beginning."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self.handle = handle


def _file() -> Any:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # it has to stay open
    file.write(bytes(1000))
    file.flush()
    return file


class ReadsHandle(Holding):
    def __getitem__(self, index: int) -> Any:
        self.handle.seek(index % 900)
        return np.frombuffer(self.handle.read(64), np.uint8).copy()


def plain_file() -> Healthy:
    return ReadsHandle(_file())


def sqlite_handle() -> Healthy:
    return Holding(sqlite3.connect(":memory:"))


def socket_handle() -> Healthy:
    return Holding(socket.socket())


def hdf5_handle() -> Healthy:
    import h5py

    return Holding(h5py.File(io.BytesIO(), "w"))


def lmdb_handle() -> Healthy:
    import lmdb

    return Holding(lmdb.open(tempfile.mkdtemp(dir=Path.cwd())))


class Reopening(Healthy):
    """Reads a whole file for each of its rows."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.npy"
        np.save(self.path, np.random.default_rng(0).random((1000, 256)))

    def __getitem__(self, index: int) -> Any:
        return np.load(self.path)[index % 1000]


class ReopeningHDF5(Healthy):
    def __init__(self) -> None:
        import h5py

        self.path = Path.cwd() / "rows.h5"
        with h5py.File(self.path, "w") as file:
            file["rows"] = np.random.default_rng(0).random((1000, 64))

    def __getitem__(self, index: int) -> Any:
        import h5py

        with h5py.File(self.path, "r") as file:
            return file["rows"][index % 1000]


class ReopeningSQLite(Healthy):
    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.db"
        self.path.unlink(missing_ok=True)
        connection = sqlite3.connect(self.path)
        connection.execute("CREATE TABLE rows AS SELECT 1 AS id, 2.5 AS value")
        connection.commit()
        connection.close()

    def __getitem__(self, index: int) -> Any:
        connection = sqlite3.connect(self.path)
        (row,) = connection.execute("SELECT value FROM rows WHERE id = 1")
        connection.close()
        return np.array(row)


class ReopeningLines(Healthy):
    """Reads all lines of a file of 78 KiB to deliver one of them."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.txt"
        self.path.write_text("".join(f"{index} {index / 7:.30f} {index / 3:.30f}\n" for index in range(1000)))

    def __getitem__(self, index: int) -> Any:
        with open(self.path) as file:
            lines = file.readlines()
        return np.array([float(value) for value in lines[index % 1000].split()])


class ReopeningJSON(Healthy):
    """Parses a whole file for each of its rows."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.json"
        self.path.write_text(json.dumps([[index, index / 7] for index in range(1000)]))

    def __getitem__(self, index: int) -> Any:
        with open(self.path) as file:
            rows = json.load(file)
        return np.array(rows[index % 1000])


class ReopeningWhole(Healthy):
    """Reads all bytes of a file for each of its rows."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.bin"
        np.random.default_rng(0).random((1000, 64)).tofile(self.path)

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            return np.frombuffer(file.read())[index % 1000 * 64 :][:64].copy()


class ReopeningParts(Healthy):
    """Reopens a file for each part that it reads."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.bin"
        np.random.default_rng(0).random((1000, 64)).tofile(self.path)

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            file.seek(index % 1000 * 512)
            return np.frombuffer(file.read(512)).copy()


class Floats(Healthy):
    def __init__(self) -> None:
        self.images = np.random.default_rng(0).integers(0, 256, (20, 3, 96, 96), np.uint8)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.images[index % 20]).float() / 255


class WholeFloats(Floats):
    def __getitem__(self, index: int) -> Any:
        return self.images[index % 20].astype(np.float64)


class Lengths(Healthy):
    def __getitem__(self, index: int) -> Any:
        return np.full(8 + (index * 7919) % 503 ** (1 + index % 2), 0.5, np.float32)[:2000]


class Stragglers(Healthy):
    def __getitem__(self, index: int) -> Any:
        if index % 50 == 0:
            time.sleep(0.02)
        return super().__getitem__(index)


# -- loaders -----------------------------------------------------------------------------------------------------------


def healthy_loader() -> Any:
    return feedline.DataLoader(Healthy(), batch_size=32, num_workers=2, persistent_workers=True, shuffle=True)


def sorted_classes() -> Any:
    return feedline.DataLoader(Sorted(), batch_size=32, num_workers=2, persistent_workers=True)


def shuffled_classes() -> Any:
    return feedline.Loader(Sorted(), 32, workers=2, persistent=True, shuffle=True)


def plain_loader() -> Any:
    return feedline.Loader({"x": np.arange(1000) / 7}, 32)


def _by_value(samples: list[Any]) -> Array:
    return np.array([[float(value) for value in sample["x"]] for sample in samples])


class Wide(Healthy):
    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).random((100, 1024), np.float32)


def slow_collate() -> Any:
    return feedline.DataLoader(Wide(), batch_size=128, collate_fn=_by_value)


def _as_by_default(samples: list[Any]) -> Any:
    """Do what the default does, value by value."""
    rows = [[float(value) for value in sample["x"]] for sample in samples]
    return {"x": torch.tensor(rows, dtype=torch.float32), "y": torch.tensor([sample["y"] for sample in samples])}


def needless_collate() -> Any:
    return feedline.DataLoader(Wide(), batch_size=128, collate_fn=_as_by_default)


class ManyFields(Healthy):
    """Has a separate field for each number."""

    def __getitem__(self, index: int) -> Any:
        return {f"column {number}": float(index + number) for number in range(200)}


class Few(Healthy):
    length = 64


def restarting() -> Any:
    return feedline.DataLoader(Few(), batch_size=8, num_workers=2)


def restarting_torch() -> Any:
    return torch.utils.data.DataLoader(Few(), batch_size=8, num_workers=2)  # type: ignore[arg-type]


def too_many_workers() -> Any:
    return feedline.Loader(Computing(), 4, workers=16, persistent=True)


def locked_on_threads() -> Any:
    return feedline.DataLoader(Locked(), batch_size=4, num_workers=2, engine="thread")


def handle_on_threads() -> Any:
    return feedline.DataLoader(plain_file(), batch_size=4, num_workers=2, engine="thread")


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


def failing_on_threads() -> Any:
    return feedline.DataLoader(OwnThread(), batch_size=4, num_workers=2, engine="thread")


def _one_by_one(samples: list[Any]) -> Iterator[Any]:
    return (sample for sample in samples)


def unsendable() -> Any:
    return feedline.DataLoader(Healthy(), 8, num_workers=2, persistent_workers=True, collate_fn=_one_by_one)


def _wrong(samples: list[Any]) -> Any:
    return np.stack([sample["z"] for sample in samples])


def failing_loader() -> Any:
    return torch.utils.data.DataLoader(Healthy(), 8, collate_fn=_wrong)  # type: ignore[arg-type]


def too_few_workers() -> Any:
    return feedline.DataLoader(Computing(), 8, num_workers=1, persistent_workers=True)


def three_workers() -> Any:
    return feedline.DataLoader(Computing(), 8, num_workers=3, persistent_workers=True)
