"""Who reads the files of `w8_stores`: datasets as people write them, those of other libraries, and feedline's.

They live in a module of their own because workers started by spawn or forkserver import them by name.
"""

from __future__ import annotations

import bisect
import csv
import functools
import importlib.util
import io
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from feedline.datasets import (
    ArrayDataset,
    CSVDataset,
    FileDataset,
    HDF5Dataset,
    LMDBDataset,
    ParquetDataset,
    TarDataset,
)
from feedline.tools.measure.harness import Loading

SHAPE = (3, 64, 64)
FIELDS = ("image", "label")
NUMBERS = [f"x{number}" for number in range(16)]
BUFFER = 1000

# Any, throughout: datasets and loaders of several libraries; samples of several kinds.
Make = Callable[[Loading], Any]
"""Makes a dataset, or a loader if that is what a library has."""


def readers(store: str, form: str, path: Path) -> dict[str, Make]:
    """Return who reads a store: torch's loader first, then feedline's, then those of other libraries."""
    if store == "tar":
        return readers_of_tar(form, path)
    if store == "parquet":
        return readers_of_parquet(form, path)
    by_hand: dict[str, Make] = {}
    ours: Callable[[], Any]
    if store == "npy":
        ours = partial(ArrayDataset, {field: path / f"{field}.npy" for field in FIELDS})
    elif store == "hdf5":
        ours = partial(HDF5Dataset, path, fields=FIELDS)
        if form != "picture":
            by_hand = {"torch by hand": lambda _: HDF5ByHand(path)}
    elif store == "lmdb":
        decode = {"decode": {"dtype": "float32", "shape": SHAPE}} if form == "raw" else {"fields": FIELDS}
        ours = partial(LMDBDataset, path, **decode)
        values = path if form == "raw" else path.with_suffix(".pickles")
        by_hand = {"torch by hand": lambda _: LMDBByHand(values, pickled=form != "raw")}
    elif store == "csv":
        ours = partial(parsed_csv, path)
        by_hand = {"torch by hand": lambda _: Frame(path), "torch by hand, csv": lambda _: Lines(path)}
    else:
        ours = partial(FileDataset, path, read="npy" if form == "array" else "bytes", fields="data")
    return {**by_hand, "torch same": lambda _: ours(), "feedline": lambda _: ours()}


class HDF5ByHand(Dataset[Any]):
    """An HDF5 file as people read it: opened when the first sample is asked for, one sample per index."""

    def __init__(self, path: Path) -> None:
        import h5py

        self.path = str(path)
        self.file: Any = None
        with h5py.File(self.path, "r") as file:
            self.length = len(file["label"])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            import h5py

            self.file = h5py.File(self.path, "r")
            self.images, self.labels = self.file["image"], self.file["label"]
        return torch.from_numpy(self.images[index]), int(self.labels[index])


class LMDBByHand(Dataset[Any]):
    """An LMDB database as people read it: opened when the first sample is asked for, one sample per index."""

    def __init__(self, path: Path, *, pickled: bool) -> None:
        import lmdb

        self.path = str(path)
        self.pickled = pickled
        self.database: Any = None
        with lmdb.open(self.path, readonly=True, lock=False) as database:
            self.length = database.stat()["entries"]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.database is None:
            import lmdb

            self.database = lmdb.open(self.path, readonly=True, lock=False, readahead=False, meminit=False)
        with self.database.begin(buffers=True) as transaction:
            value = transaction.get(b"%012d" % index)
            if self.pickled:
                return pickle.loads(value)
            return torch.from_numpy(np.frombuffer(value, np.float32).reshape(SHAPE).copy())


class Frame(Dataset[Any]):
    """A data frame, row by row."""

    def __init__(self, path: Path) -> None:
        import pandas

        self.frame = pandas.read_csv(path)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index].to_numpy()
        return torch.tensor(row[:-1], dtype=torch.float32), int(row[-1])


class Lines(Dataset[Any]):
    """The rows of the csv module, whose cells become numbers when a sample is requested."""

    def __init__(self, path: Path) -> None:
        with open(path, newline="") as file:
            self.rows = list(csv.reader(file))[1:]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return torch.tensor([float(cell) for cell in row[:-1]]), int(row[-1])


def parsed_csv(path: Path) -> Any:
    ours = CSVDataset(path, types=dict.fromkeys(NUMBERS, "float32"))
    ours.__getitems__(range(len(ours)))  # which workers go on with, as they do with the peers' tables
    return ours


def readers_of_parquet(form: str, path: Path) -> dict[str, Make]:
    random = partial(ParquetDataset, path)
    ours: dict[str, Make] = {"feedline": lambda _: random()}
    by_hand: dict[str, Make] = {"torch same": lambda _: random()}
    if form in ("array", "picture"):
        return {**by_hand, **ours}
    if form == "flat":
        by_hand = {"torch by hand": lambda _: RowGroups(path), **by_hand}
        ours["feedline unpacked"] = lambda _: random(cache=path.with_suffix(".unpacked"))
    else:
        by_hand = {"torch by hand": lambda _: DictOfArrays(path), "torch by hand, stream": lambda _: Shuffled(path)}
        texts = {"name": "name"} if form == "table" else {}
        vector = {"features": NUMBERS, "label": "label", **texts}
        ours |= {
            "feedline by hand": lambda _: DictOfArrays(path),
            "feedline vector": lambda _: random(vector),
            "feedline stream": lambda _: random().stream(shuffle=True),
        }
    hugging_face = {
        "torch datasets": lambda _: of_hugging_face(path),
        "feedline datasets": lambda _: of_hugging_face(path),
    }
    return {**by_hand, **ours, **(hugging_face if importlib.util.find_spec("datasets") else {})}


class RowGroups:
    """What people write: a row group is read when a sample of it is asked for, and all are kept."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        metadata = pq.read_metadata(path)
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()

    @functools.cached_property
    def group(self) -> Any:
        import pyarrow.parquet as pq

        return functools.cache(pq.ParquetFile(self.path).read_row_group)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = bisect.bisect_right(self.starts, index) - 1
        table = self.group(number)
        row = index - self.starts[number]
        cells = {name: table.column(name)[row] for name in table.column_names}
        return {
            name: cell.as_py() if name == "label" else cell.values.to_numpy().copy() for name, cell in cells.items()
        }


class DictOfArrays:
    """What people write for a table: all columns in memory, and one value of each for a sample."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        self.columns = {name: table.column(name).to_numpy() for name in table.column_names}

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}


class Shuffled(IterableDataset[dict[str, Any]]):
    """What people write for a table larger than memory: row groups in random order, and the rows of each shuffled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as pq

        file, generator = pq.ParquetFile(self.path), np.random.default_rng()
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for group in generator.permutation(file.metadata.num_row_groups)[first::step].tolist():
            table = file.read_row_group(group)
            columns = {name: table.column(name).to_numpy() for name in table.column_names}
            for row in generator.permutation(table.num_rows).tolist():
                yield {name: column[row] for name, column in columns.items()}


def of_hugging_face(path: Path) -> Any:
    import datasets as theirs

    theirs.disable_progress_bars()
    return theirs.Dataset.from_parquet(str(path), cache_dir=str(path.with_suffix(".cache"))).with_format("torch")


def readers_of_tar(form: str, path: Path) -> dict[str, Make]:
    shards = sorted(map(str, path.glob("*.tar")))
    fields = ("image.npy" if form == "array" else "jpg", "cls")
    decode: bool | str = {"array": True, "picture": False}.get(form, "rgb8")
    ours = partial(TarDataset, shards, fields, decode=decode, cache=path / "index")
    return {
        "torch webdataset": lambda _: of_webdataset(form, shards, fields),
        "torch same": lambda _: ours(),
        "feedline": lambda _: ours(),
        "feedline stream": lambda _: ours().stream(shuffle=True, buffer=BUFFER, seed=1),
        "litdata": partial(of_litdata, form, shards, fields),
    }


def of_webdataset(form: str, shards: list[str], fields: tuple[str, str]) -> Any:
    import webdataset

    found = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=1, empty_check=False).shuffle(BUFFER)
    decoded = {"array": lambda: found.decode(), "picture": lambda: found, "jpeg": lambda: found.decode("rgb8")}[form]()
    return decoded.to_tuple(*fields)


def of_litdata(form: str, shards: list[str], fields: tuple[str, str], loading: Loading) -> Any:
    """Return litdata's loader over the same samples in its own format, which is written from the shards if need be."""
    import litdata
    from litdata.streaming.writer import BinaryWriter

    folder = Path(shards[0]).parent / "litdata"
    if not (folder / "index.json").exists():
        folder.mkdir(exist_ok=True)
        samples = TarDataset(shards, fields, decode=form == "array")
        writer = BinaryWriter(str(folder), chunk_size=-(-len(samples) // len(shards)))
        for number, (value, label) in enumerate(samples.stream()):
            writer[number] = value, int(label)
        writer.done()
        writer.merge(1)
    transform = decode_jpeg if form == "jpeg" else None
    dataset = litdata.StreamingDataset(str(folder), shuffle=True, seed=1, transform=transform)
    return litdata.StreamingDataLoader(dataset, **loading.options)


def decode_jpeg(sample: Any) -> Any:
    """Decode as the other sides do."""
    from PIL import Image

    data, label = sample
    return np.array(Image.open(io.BytesIO(data)).convert("RGB")), label
