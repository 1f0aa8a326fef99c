"""Datasets of real files, each with a disease that a source of ours cures; short, so that a probe makes all samples."""

from __future__ import annotations

import csv
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import DataLoader
from feedline.tools.measure.measured import Lock, SlowImages, SlowRows
from tests.tools.advise.fixes import WORKER, Names, case, created, pasted_class
from tests.tools.advise.measurements import samples

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


def _slow(library: str, source: str, name: str) -> Callable[[Any], Names]:
    """Return what a probe measures of rows in a file of the current folder, which a source reads."""

    def setup(_: Any) -> Names:
        path = str(Path.cwd() / name)
        code = f"dataset = feedline.datasets.{source.format(path)}"
        rows = SlowRows(library, path, 9e-4, source.partition("(")[0], code, row_s=1e-5)
        return {"samples": samples(rows=rows)}

    return setup


def _stacked(code: str, one: Any) -> Any:
    return [np.stack([one[f"x{column}"] for column in range(COLUMNS)], axis=1), one["label"]]


class Rows:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


@case(
    "slow-source",
    needs="pandas",
    setup=_slow("pandas", "CSVDataset({!r})", "rows.csv"),
    fixed=created,
    after=_stacked,
    gain=WORKER,
)
class PandasRows(Rows):
    """Keeps a frame, and takes a row of it for each sample."""

    def __init__(self) -> None:
        import pandas  # type: ignore[import-untyped]  # its stubs are a package of their own

        self.frame = pandas.read_csv(write_csv())

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index]
        return row.drop("label").astype("float64").to_numpy(), int(row["label"])


@case("slow-source", needs="pandas")
class PandasMemory(PandasRows):
    """The same, of a frame that is no file."""

    def __init__(self) -> None:
        import pandas

        values = np.random.default_rng(0).random((COUNT, COLUMNS))
        self.frame = pandas.DataFrame(values, columns=[f"x{column}" for column in range(COLUMNS)])
        self.frame["label"] = np.arange(COUNT)


@case("slow-source", needs="pandas")
class PandasReads(Rows):
    """Reads a row of the file with pandas for each sample."""

    def __init__(self) -> None:
        self.path = write_csv()

    def __getitem__(self, index: int) -> Any:
        import pandas

        row = pandas.read_csv(self.path, skiprows=range(1, index + 1), nrows=1).iloc[0]
        return row.drop("label").to_numpy(), int(row["label"])


@case(needs="pandas")
class PandasLabels(Rows):
    """A frame with labels, beside samples that take much longer: the frame is not what takes the time."""

    def __init__(self) -> None:
        import pandas

        self.frame = pandas.read_csv(write_csv())
        self.values = np.random.default_rng(0).random((400, 400))

    def __getitem__(self, index: int) -> Any:
        return np.linalg.inv(self.values), self.frame["x0"].iat[index]


@case(
    "slow-source",
    needs="h5py",
    setup=_slow("h5py", "HDF5Dataset({!r}, fields=('x', 'labels/y'))", "rows.h5"),
    fixed=created,
    gain=WORKER,
)
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


@case("slow-source", needs="h5py")
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


@case("serialised", also=("unpicklable",), setup={"samples": samples(locks=(Lock("dataset.lock", 1.0),))})
class OwnLock(Rows):
    """Holds a lock of its own while it makes a sample."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __getitem__(self, index: int) -> NDArray[Any]:
        with self.lock:
            time.sleep(2e-3)
            return np.full(4, index)


@case("serialised", also=("unpicklable",))
class ModuleLock(Rows):
    """Holds a lock of its module."""

    def __getitem__(self, index: int) -> NDArray[Any]:
        with LOCK:
            time.sleep(2e-3)
            return np.full(4, index)


@case(also=("unpicklable", "waiting"))
class FreeLock(OwnLock):
    """Has a lock, and hardly ever holds it."""

    def __getitem__(self, index: int) -> NDArray[Any]:
        with self.lock:
            found = np.full(4, index)
        time.sleep(2e-3)
        return found


@case("serialised", also=("unpicklable",))
def lock_on_threads() -> Any:
    """Return a loader whose threads wait for a lock."""
    return DataLoader(OwnLock(), batch_size=4, num_workers=2, engine="thread")


@case(
    "slow-source",
    setup=_slow("", "CSVDataset({!r})", "rows.csv"),
    fixed=created,
    after=_stacked,
    gain=WORKER,
)
class CSVAgain(PandasReads):
    """Reads all rows of the file with Python's csv module for each sample."""

    def __getitem__(self, index: int) -> Any:
        with open(self.path, newline="") as file:
            rows = list(csv.reader(file))
        return np.array(rows[index + 1][:-1], float), int(rows[index + 1][-1])


@case(
    "slow-source",
    setup=_slow("", "JSONLines({!r})", "rows.jsonl"),
    fixed=created,
    gain=WORKER,
)
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


@case(
    "slow-source",
    needs="pyarrow",
    setup=_slow("pyarrow", "ParquetDataset({!r})", "rows.parquet"),
    fixed=created,
    gain=WORKER,
)
class ParquetAgain(Rows):
    """Reads the whole table for each sample."""

    def __init__(self) -> None:
        self.path = write_parquet()

    def __getitem__(self, index: int) -> Any:
        import pyarrow.parquet as pq

        (row,) = pq.read_table(self.path).slice(index, 1).to_pylist()
        return row


@case("slow-source", needs="pyarrow", also=("fails-on-threads",))  # threads crash it
class RowGroups(Rows):
    """Keeps the file open, and reads a group of rows for each row."""

    def __init__(self) -> None:
        self.path = write_parquet()
        self.file: Any = None

    def __getitem__(self, index: int) -> Any:
        import pyarrow.parquet as pq

        if self.file is None:
            self.file = pq.ParquetFile(self.path)
        (row,) = self.file.read_row_group(index // GROUP).slice(index % GROUP, 1).to_pylist()
        return row

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


# -- images ------------------------------------------------------------------------------------------------------------

SIDE = 224


def _oversized(dataset: Any) -> Names:
    return {"samples": samples(images=SlowImages("Pillow", str(dataset.paths[0]), 1.92e6, (SIDE, SIDE), 9e-4, 2e-4))}


def _decoded(code: str, _: Any) -> Any:
    """Paste the code with the path of the sample instead of the file that it names."""
    return pasted_class(Photos, re.sub(r"open\('[^']*'", "open(self.paths[index % 4]", code), "image")


def _alike(before: Any, after: Any) -> None:
    """Raise AssertionError if images differ by more than another way to resize explains."""
    for one, other in zip(before, after, strict=True):
        assert one.shape == other.shape
        assert (one.float() - other.float()).abs().mean() < one.float().std() / 20


@case("slow-source", needs="PIL", setup=_oversized, fixed=_decoded, same=_alike, gain=WORKER)
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


@case("slow-source", needs="cv2")
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


class Crops(Photos):
    """Files of which a crop is used, as torchvision's RandomResizedCrop takes it."""

    shape = (800, 600)

    def __getitem__(self, index: int) -> NDArray[Any]:
        from PIL import Image

        with Image.open(self.paths[index % 4]) as image:
            return np.asarray(image.crop((100, 100, 300, 250)).resize((64, 48)))


class ResizedCrops(Crops):
    """The same in one call of Pillow."""

    def __getitem__(self, index: int) -> NDArray[Any]:
        from PIL import Image

        with Image.open(self.paths[index % 4]) as image:
            return np.asarray(image.resize((64, 48), box=(100, 100, 300, 250)))


@case(needs="PIL")
class SmallPhotos(Photos):
    """Sound: files that are hardly larger than the samples."""

    shape = (256, 256)


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
