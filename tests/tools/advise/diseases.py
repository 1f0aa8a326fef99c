"""Datasets of real files, each with a disease that a source of ours cures; short, so that a probe makes all samples."""

from __future__ import annotations

import csv
import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import DataLoader

COUNT = 60
COLUMNS = 20
CHUNK = 30

# Any, throughout: samples, and objects of other libraries.


def write_csv() -> str:
    """Write a table into the current folder, and return its path."""
    path = Path.cwd() / "rows.csv"
    values = np.random.default_rng(0).random((COUNT, COLUMNS))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(COLUMNS)), "label"])
        writer.writerows([*row, index] for index, row in enumerate(values.tolist()))
    return str(path)


def write_hdf5() -> str:
    """Write two compressed datasets into the current folder, and return the path of their file."""
    import h5py

    path = Path.cwd() / "rows.h5"
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(0).integers(0, 5000, (COUNT, 5000)).astype(np.float32)
        file.create_dataset("x", data=values, chunks=(CHUNK, 5000), compression="gzip")
        file.create_dataset("labels/y", data=np.arange(COUNT))
    return str(path)


class Rows:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


class PandasRows(Rows):
    """Keeps a frame, and takes a row of it for each sample."""

    def __init__(self) -> None:
        import pandas  # type: ignore[import-untyped]  # its stubs are a package of their own

        self.frame = pandas.read_csv(write_csv())

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index]
        return row.drop("label").astype("float64").to_numpy(), int(row["label"])


class PandasMemory(PandasRows):
    """The same, of a frame that is no file."""

    def __init__(self) -> None:
        import pandas

        values = np.random.default_rng(0).random((COUNT, COLUMNS))
        self.frame = pandas.DataFrame(values, columns=[f"x{column}" for column in range(COLUMNS)])
        self.frame["label"] = np.arange(COUNT)


class PandasReads(Rows):
    """Reads a row of the file with pandas for each sample."""

    def __init__(self) -> None:
        self.path = write_csv()

    def __getitem__(self, index: int) -> Any:
        import pandas

        row = pandas.read_csv(self.path, skiprows=range(1, index + 1), nrows=1).iloc[0]
        return row.drop("label").to_numpy(), int(row["label"])


class PandasLabels(Rows):
    """A frame with labels, beside samples that take much longer: the frame is not what takes the time."""

    def __init__(self) -> None:
        import pandas

        self.frame = pandas.read_csv(write_csv())
        self.values = np.random.default_rng(0).random((400, 400))

    def __getitem__(self, index: int) -> Any:
        return np.linalg.inv(self.values), self.frame["x0"].iat[index]


class ChunkedRows(Rows):
    """Unpacks a chunk of many rows for each row."""

    def __init__(self) -> None:
        self.path = write_hdf5()
        self.file: Any = None

    def __getitem__(self, index: int) -> Any:
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return self.file["x"][index], self.file["labels/y"][index]

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class ChunkedAgain(ChunkedRows):
    """The same, from a file that is opened for each sample."""

    def __getitem__(self, index: int) -> Any:
        import h5py

        with h5py.File(self.path, "r") as file:
            return file["x"][index], file["labels/y"][index]


class ChunkedInherited(ChunkedRows):
    """The same, from a file that is open before the workers start."""

    def __init__(self) -> None:
        import h5py

        self.file = h5py.File(write_hdf5(), "r")


LOCK = threading.Lock()


class OwnLock(Rows):
    """Holds a lock of its own while it makes a sample."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __getitem__(self, index: int) -> NDArray[Any]:
        with self.lock:
            time.sleep(2e-3)
            return np.full(4, index)


class ModuleLock(Rows):
    """Holds a lock of its module."""

    def __getitem__(self, index: int) -> NDArray[Any]:
        with LOCK:
            time.sleep(2e-3)
            return np.full(4, index)


class FreeLock(OwnLock):
    """Has a lock, and hardly ever holds it."""

    def __getitem__(self, index: int) -> NDArray[Any]:
        with self.lock:
            found = np.full(4, index)
        time.sleep(2e-3)
        return found


def lock_on_threads() -> Any:
    """Return a loader whose threads wait for a lock."""
    return DataLoader(OwnLock(), batch_size=4, num_workers=2, engine="thread")


class Crops(Rows):
    """JPEG files, of which a crop is used, as torchvision's RandomResizedCrop takes it."""

    def __init__(self) -> None:
        from PIL import Image

        data = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 255, (30, 40, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((800, 600)).save(data, "JPEG")
        self.data = data.getvalue()

    def __getitem__(self, index: int) -> NDArray[Any]:
        from PIL import Image

        image = Image.open(io.BytesIO(self.data))
        return np.asarray(image.crop((100, 100, 300, 250)).resize((64, 48)))


class ResizedCrops(Crops):
    """The same in one call of Pillow."""

    def __getitem__(self, index: int) -> NDArray[Any]:
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.data)).resize((64, 48), box=(100, 100, 300, 250)))
