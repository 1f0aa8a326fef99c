"""Datasets that read files in a slow way, open them again and again, or share an open one with all workers."""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import feedline
from tests.tools.advise.fixes import WORKER, case, created, pasted, pasted_class

COUNT = 600
COLUMNS = 20
CHUNK = 50
GROUP = 300

# Any, throughout: samples, and objects of other libraries.


def write_csv() -> str:
    """Write a table into the current folder, and return its path."""
    path = Path.cwd() / "rows.csv"
    values = np.random.default_rng(0).random((COUNT, COLUMNS)).round(6)  # pandas rounds the last of 17 digits
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
        values = np.random.default_rng(0).integers(0, 5000, (COUNT, 1000)).astype(np.float32)
        file.create_dataset("x", data=values, chunks=(CHUNK, 1000), compression="gzip")
        file.create_dataset("labels/y", data=np.arange(COUNT))
    return str(path)


def _stacked(code: str, one: Any) -> Any:
    return [np.stack([one[f"x{column}"] for column in range(COLUMNS)], axis=1), one["label"]]


class Rows:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


@case("slow-source", needs="pandas", fixed=created, after=_stacked, gain=WORKER)
class PandasRows(Rows):
    """Keeps a frame, and takes a row of it for each sample."""

    def __init__(self) -> None:
        import pandas  # type: ignore[import-untyped]  # its stubs are a package of their own

        self.frame = pandas.read_csv(write_csv())

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index]
        return row.drop("label").astype("float64").to_numpy(), int(row["label"])


@case(needs="pandas")
class PandasLabels(Rows):
    """A frame with labels, beside samples that take much longer: the frame is not what takes the time."""

    def __init__(self) -> None:
        import pandas

        self.frame = pandas.read_csv(write_csv())
        self.values = np.random.default_rng(0).random((400, 400))

    def __getitem__(self, index: int) -> Any:
        return np.linalg.inv(self.values), self.frame["x0"].iat[index]


@case("slow-source", needs="h5py", fixed=created, gain=WORKER)
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


@case("shared-handle", needs="h5py", also=("slow-source",), fixed=pasted(is_open=False))
class ChunkedInherited(ChunkedRows):
    """The same, from a file that is open before the workers start."""

    def __init__(self, *, is_open: bool = True) -> None:
        import h5py

        self.path = write_hdf5() if is_open else ""
        self.file = h5py.File(self.path, "r") if is_open else None


@case("slow-source", fixed=created, after=_stacked, gain=WORKER)
class CSVAgain(Rows):
    """Reads all rows of the file with Python's csv module for each sample."""

    def __init__(self) -> None:
        self.path = write_csv()

    def __getitem__(self, index: int) -> Any:
        with open(self.path, newline="") as file:
            rows = list(csv.reader(file))
        return np.array(rows[index + 1][:-1], float), int(rows[index + 1][-1])


@case("slow-source", fixed=created, gain=WORKER)
class LinesAgain(Rows):
    """Reads all lines of a file of JSON lines for each sample."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.jsonl"
        note = 3000 * "-"
        lines = [json.dumps({"x": [number / 7] * COLUMNS, "y": number, "note": note}) for number in range(COUNT)]
        self.path.write_text("\n".join(lines) + "\n")

    def __getitem__(self, index: int) -> Any:
        with open(self.path) as file:
            line = file.readlines()[index]
        return json.loads(line)


def write_parquet() -> str:
    """Write a table of several row groups into the current folder, and return its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path.cwd() / "rows.parquet"
    values = np.random.default_rng(0).random((COUNT, COLUMNS))
    columns = {f"x{column}": values[:, column] for column in range(COLUMNS)}
    pq.write_table(pa.table({**columns, "label": np.arange(COUNT)}), path, row_group_size=GROUP, compression="gzip")
    return str(path)


@case("slow-source", needs="pyarrow", fixed=created, gain=WORKER)
class ParquetAgain(Rows):
    """Reads the whole table for each sample."""

    def __init__(self) -> None:
        self.path = write_parquet()

    def __getitem__(self, index: int) -> Any:
        import pyarrow.parquet as pq

        (row,) = pq.read_table(self.path).slice(index, 1).to_pylist()
        return row


# -- images ------------------------------------------------------------------------------------------------------------

SIDE = 224


def _decoded(code: str, _: Any) -> Any:
    """Paste the code with the path of the sample instead of the file that it names."""
    return pasted_class(Photos, re.sub(r"open\('[^']*'", "open(self.paths[index % 4]", code), "image")


def _alike(before: Any, after: Any) -> None:
    """Raise AssertionError if images differ by more than another way to resize explains."""
    for one, other in zip(before, after, strict=True):
        assert one.shape == other.shape
        assert (one.float() - other.float()).abs().mean() < one.float().std() / 20


@case("slow-source", needs="PIL", fixed=_decoded, same=_alike, gain=WORKER)
class Photos(Rows):
    """JPEG files of 1600 x 1200 pixels, decoded in full and resized."""

    shape = (1600, 1200)

    def __init__(self) -> None:
        from PIL import Image

        self.paths = [Path.cwd() / f"{number}.jpg" for number in range(4)]
        for number, path in enumerate(self.paths):
            pixels = np.random.default_rng(number).integers(0, 255, (12, 16, 3)).astype(np.uint8)
            Image.fromarray(pixels).resize(self.shape).save(path)

    def __getitem__(self, index: int) -> NDArray[Any]:
        from PIL import Image

        return np.asarray(Image.open(self.paths[index % 4]).convert("RGB").resize((SIDE, SIDE)))


@case("slow-source", needs="cv2", is_fixed=False)
class PhotosByOpenCV(Photos):
    """Larger ones with OpenCV, whose calls no hook of Python sees."""

    shape = (3200, 2400)

    def __init__(self) -> None:
        import cv2  # noqa: F401  # not in the first sample, which would take all of the time

        super().__init__()

    def __getitem__(self, index: int) -> NDArray[Any]:
        import cv2

        image: NDArray[Any] = cv2.resize(cv2.imread(str(self.paths[index % 4])), (SIDE, SIDE))
        return image


@case(needs="PIL")
class Drafts(Photos):
    """Sound: the decoder already scales them."""

    def __getitem__(self, index: int) -> NDArray[Any]:
        from PIL import Image

        with Image.open(self.paths[index % 4]) as image:
            image.draft("RGB", (SIDE, SIDE))
            return np.asarray(image.resize((SIDE, SIDE)))


@case()
class Mapped(Rows):
    """Sound: rows of an array in a file that is mapped."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).random((COUNT, 5000))
        np.save("rows.npy", values)
        self.rows = np.load("rows.npy", mmap_mode="r")

    def __getitem__(self, index: int) -> NDArray[Any]:
        return np.sort(self.rows[index])


# -- open files --------------------------------------------------------------------------------------------------------


class Bytes(Rows):
    """Rows of 64 bytes in a file."""

    def __init__(self) -> None:
        self.path = str(Path.cwd() / "rows.bin")
        np.random.default_rng(0).integers(0, 256, (COUNT, 1000)).astype(np.uint8).tofile(self.path)
        self.handle: Any = None


@case()
class OpenedLater(Bytes):
    """Sound: opens its file on first use, and keeps it, so each worker has its own."""

    def __getitem__(self, index: int) -> NDArray[Any]:
        if self.handle is None:
            self.handle = open(self.path, "rb")  # noqa: SIM115  # it has to stay open
        return np.frombuffer(os.pread(self.handle.fileno(), 64, index), np.uint8).copy()


@case("shared-handle", fixed=pasted(is_open=False))
class OpenBefore(Bytes):
    """Opens it before the workers start."""

    def __init__(self, *, is_open: bool = True) -> None:
        super().__init__()
        if is_open:
            self.handle = open(self.path, "rb")  # noqa: SIM115  # it has to stay open

    def __getitem__(self, index: int) -> NDArray[Any]:
        self.handle.seek(index)
        return np.frombuffer(self.handle.read(64), np.uint8).copy()


@case(
    "shared-handle",
    of=OpenBefore,
    fixed=pasted("(handle.seek(index), np.frombuffer(handle.read(64), np.uint8).copy())[1]", is_open=False),
)
def handle_on_threads() -> Any:
    return feedline.DataLoader(OpenBefore(), batch_size=4, num_workers=2, engine="thread")


# -- files that are opened again ---------------------------------------------------------------------------------------


class Reread(Rows):
    """Has more samples than its file has rows, so that no source has as many."""

    def __len__(self) -> int:
        return 8 * COUNT


@case("reopened-file", fixed=pasted("rows[index % 600]"), gain=WORKER)
class Reopening(Reread):
    """Reads a whole file for each of its rows."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.npy"
        np.save(self.path, np.random.default_rng(0).random((COUNT, 400)))

    def __getitem__(self, index: int) -> Any:
        return np.load(self.path)[index % COUNT]


@case("reopened-file", fixed=pasted("np.array([float(value) for value in lines[index % 600].split()])"), gain=WORKER)
class ReopeningLines(Reread):
    """Reads all lines of a file to deliver one of them."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.txt"
        self.path.write_text("".join(f"{index} {index / 7:.30f} {index / 3:.30f}\n" for index in range(1000)))

    def __getitem__(self, index: int) -> Any:
        with open(self.path) as file:
            lines = file.readlines()
        return np.array([float(value) for value in lines[index % COUNT].split()])


@case("reopened-file", fixed=pasted("np.array(items[index % 600])"), gain=WORKER)
class ReopeningJSON(Reread):
    """Parses a whole file for each of its rows."""

    def __init__(self) -> None:
        self.path = Path.cwd() / "rows.json"
        self.path.write_text(json.dumps([[index, index / 7] for index in range(1000)]))

    def __getitem__(self, index: int) -> Any:
        with open(self.path) as file:
            rows = json.load(file)
        return np.array(rows[index % COUNT])


@case(
    "reopened-file", fixed=pasted("np.frombuffer(content, np.uint8)[index % 600 * 1000 :][:1000].copy()"), gain=WORKER
)
class ReopeningWhole(Bytes, Reread):
    """Reads all bytes of a file for each of its rows."""

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            return np.frombuffer(file.read(), np.uint8)[index % COUNT * 1000 :][:1000].copy()


@case(
    "reopened-file", fixed=pasted("np.frombuffer((file.seek(index), file.read(64))[1], np.uint8).copy()"), gain=WORKER
)
class ReopeningParts(Bytes, Reread):
    """Reopens a file for each part that it reads."""

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            file.seek(index)
            return np.frombuffer(file.read(64), np.uint8).copy()


@case(
    "reopened-file", fixed=pasted("np.array(list(file.execute('SELECT value FROM rows WHERE id = 1'))[0])"), gain=WORKER
)
class ReopeningSQLite(Reread):
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
