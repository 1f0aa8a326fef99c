"""Datasets that share an open file with all workers, or open it again for each sample."""

from __future__ import annotations

import io
import json
import os
import socket
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import feedline
from feedline.tools.measure.measured import OpenHandle, Reopened, State
from tests.tools.advise.fixes import (
    WORKER,
    Names,
    case,
    pasted,
)
from tests.tools.advise.measurements import loader, samples
from tests.tools.advise.slow_datasets import Healthy


def _handle(library: str) -> Names:
    handle = OpenHandle("dataset.handle", f"an open {library}", "All share it.", "Open it later.")
    return {"state": State(handles=(handle,))}


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


@case()
class OpenedLater(Healthy):
    """Opens its file on first use, and keeps it: each worker has its own."""

    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = _file()
        return np.frombuffer(os.pread(self.file.fileno(), 64, index % 900), np.uint8).copy()


class ReadsHandle(Holding):
    def __init__(self, handle: Any = None) -> None:
        super().__init__(handle)

    def __getitem__(self, index: int) -> Any:
        self.handle.seek(index % 900)
        return np.frombuffer(self.handle.read(64), np.uint8).copy()


def _written(_: Any) -> Path:
    """Return a file with the content of `_file`."""
    path = Path.cwd() / "handle.bin"
    path.write_bytes(bytes(1000))
    return path


@case("shared-handle", setup=_handle("file (io.BufferedRandom)"), fixed=pasted("", None, path=_written))
def plain_file() -> Healthy:
    return ReadsHandle(_file())


@case(
    "shared-handle",
    of=plain_file,
    setup={
        "state": State(thread_handles=(OpenHandle("dataset.handle", "an open file", "They share it.", "..."),)),
        "loader": loader(engine="thread"),
    },
    fixed=pasted("(handle.seek(index % 900), np.frombuffer(handle.read(64), np.uint8).copy())[1]", None, path=_written),
)
def handle_on_threads() -> Any:
    return feedline.DataLoader(plain_file(), batch_size=4, num_workers=2, engine="thread")


@case("shared-handle", setup=_handle("sqlite3.Connection"), fixed=pasted("", None, path=lambda _: ":memory:"))
def sqlite_handle() -> Healthy:
    return Holding(sqlite3.connect(":memory:"))


@case(
    "shared-handle",
    of=lambda: Holding(socket.create_server(("127.0.0.1", 0))),
    setup=_handle("socket.socket"),
    fixed=pasted("", None, address=lambda dataset: dataset.handle.getsockname()),
)
def socket_handle() -> Healthy:
    return Holding(socket.socket())


@case(
    "shared-handle",
    needs="h5py",
    setup=_handle("h5py.File"),
    fixed=pasted("", None, path=lambda _: ReopeningHDF5().path),
)
def hdf5_handle() -> Healthy:
    import h5py

    return Holding(h5py.File(io.BytesIO(), "w"))


def _closed(dataset: Any) -> str:
    """LMDB can be open only once per process: each worker opens its own, and the first is closed."""
    path: str = dataset.handle.path()
    dataset.handle.close()
    return path


@case("shared-handle", needs="lmdb", setup=_handle("lmdb.Environment"), fixed=pasted("", None, path=_closed))
def lmdb_handle() -> Healthy:
    import lmdb

    return Holding(lmdb.open(tempfile.mkdtemp(dir=Path.cwd())))


# -- files that are opened again ---------------------------------------------------------------------------------------


def _reopened(way: str) -> Any:
    return lambda dataset: {"samples": samples(reopened=(Reopened(str(dataset.path), 200, 80_000, way, again_s=9e-4),))}


def _reopening(way: str, rest: str, needs: str | None = None) -> Any:
    return case("reopened-file", setup=_reopened(way), fixed=pasted(rest), needs=needs, gain=WORKER)


@_reopening("npy", "rows[index % 1000]")
class Reopening(Healthy):
    """Reads a whole file for each of its rows."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.npy"
        np.save(self.path, np.random.default_rng(0).random((1000, 256)))

    def __getitem__(self, index: int) -> Any:
        return np.load(self.path)[index % 1000]


@_reopening("lines", "np.array([float(value) for value in lines[index % 1000].split()])")
class ReopeningLines(Healthy):
    """Reads all lines of a file of 78 KiB to deliver one of them."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.txt"
        self.path.write_text("".join(f"{index} {index / 7:.30f} {index / 3:.30f}\n" for index in range(1000)))

    def __getitem__(self, index: int) -> Any:
        with open(self.path) as file:
            lines = file.readlines()
        return np.array([float(value) for value in lines[index % 1000].split()])


@_reopening("json", "np.array(items[index % 1000])")
class ReopeningJSON(Healthy):
    """Parses a whole file for each of its rows."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.json"
        self.path.write_text(json.dumps([[index, index / 7] for index in range(1000)]))

    def __getitem__(self, index: int) -> Any:
        with open(self.path) as file:
            rows = json.load(file)
        return np.array(rows[index % 1000])


@_reopening("bytes", "np.frombuffer(content)[index % 1000 * 64 :][:64].copy()")
class ReopeningWhole(Healthy):
    """Reads all bytes of a file for each of its rows."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.bin"
        np.random.default_rng(0).random((1000, 64)).tofile(self.path)

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            return np.frombuffer(file.read())[index % 1000 * 64 :][:64].copy()


@_reopening("part", "np.frombuffer((file.seek(index % 1000 * 512), file.read(512))[1]).copy()")
class ReopeningParts(ReopeningWhole):
    """Reopens a file for each part that it reads."""

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            file.seek(index % 1000 * 512)
            return np.frombuffer(file.read(512)).copy()


@_reopening("h5py", "file['rows'][index % 1000]", needs="h5py")
class ReopeningHDF5(Healthy):
    def __init__(self) -> None:
        import h5py

        self.path: Path = Path.cwd() / "rows.h5"
        with h5py.File(self.path, "w") as file:
            file["rows"] = np.random.default_rng(0).random((1000, 64))

    def __getitem__(self, index: int) -> Any:
        import h5py

        with h5py.File(self.path, "r") as file:
            return file["rows"][index % 1000]


@_reopening("sqlite3", "np.array(list(file.execute('SELECT value FROM rows WHERE id = 1'))[0])")
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
