"""Targets to damage: one for every format that feedline reads.

Files written by `feedline pack` have checksums: any damage is an error or harmless. In formats without checksums a
changed value cannot be detected. For those, truncation must be detected, all errors must be feedline's and name the
file, and no more bytes may be read than there are.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import importlib.util
import io
import json
import lzma
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import cbor2
import h5py
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
import torch
import zstandard
from PIL import Image
from webdataset import tenbin

import feedline
from feedline import audio
from feedline.datasets import (
    ArrayDataset,
    ArrowDataset,
    CachedDataset,
    CSVDataset,
    FileDataset,
    HDF5Dataset,
    ImageFolder,
    JSONLines,
    LitDataDataset,
    LMDBDataset,
    MDSDataset,
    MegatronDataset,
    ParquetDataset,
    PrecomputedDataset,
    SQLDataset,
    TarDataset,
    TFRecordDataset,
)
from feedline.datasets.derived.cache.sample_store import FILE, Encoded, Head, write_store
from feedline.memory.sharing import records
from feedline.text import TokenDataset, TokenWriter, verify
from feedline.tools.write.inspection import inspect
from tests.datasets.formats import test_megatron as megatron
from tests.datasets.formats.litdata import chunks
from tests.datasets.formats.mds import shards
from tests.datasets.formats.tfrecord.records import example, file_of
from tests.fuzz import videos
from tests.fuzz.damage import ALL, FLIP, TRUNCATE
from tests.tools.advise.recordings import everything_of, recording_of

VICTIM = "victim"
"""Part of the path of every damaged file, and so of every error about it."""
COUNT = 12

# Any, throughout: samples and datasets of any form.
Make = Callable[[Path], bytes]
Read = Callable[[Path], Iterable[Any]]


@dataclass(frozen=True)
class Target:
    """A format, and how a damaged file of it is read."""

    name: str
    make: Make
    """Returns the bytes that are damaged, given a folder that is not there yet."""
    place: Callable[[Path, bytes], Path]
    """Puts them into a folder, and returns what is opened."""
    read: Read
    values: tuple[str, ...] = ()
    """After which damage every value has to be right, if there is no error."""
    count: tuple[str, ...] = ()
    """After which damage the number of samples has to be right, if there is no error."""
    may_ask: bool = False
    """True if the library asks for as much memory as the file declares, but writes to none of it before it notices."""
    may_grow: bool = False
    """True if nothing in the file confirms the size that it declares. Only the limits on pixels hold then."""
    kinds: tuple[str, ...] = ALL
    """Kinds of damage: not all of them where a library trusts its own tables, as SECURITY.md says."""


@functools.cache
def samples() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "image": rng.integers(0, 256, (8, 6, 3), np.uint8),
            "vector": rng.standard_normal(16).astype(np.float32),
            "label": index * 37 % 1000,
            "name": f"sample {index} ☃" * (index % 3),
        }
        for index in range(COUNT)
    ]


def without(*names: str) -> list[dict[str, Any]]:
    """Return the samples without some fields."""
    return [{name: value for name, value in one.items() if name not in names} for one in samples()]


def column(name: str) -> Any:
    return np.stack([one[name] for one in samples()])


def all_of(dataset: Any) -> list[Any]:
    """Read a map-style dataset to its end, then again in one call as loaders do."""
    try:
        found = [dataset[index] for index in range(len(dataset))]
        if hasattr(dataset, "read_columns"):
            dataset.read_columns(np.arange(len(dataset)))
        if isinstance(dataset, ArrayDataset):
            found.append([*feedline.Loader(dataset, 5)])
        return found
    finally:
        dataset.close()


def reading(kind: Any, *given: Any, below: str = "", **options: Any) -> Read:
    """Return a function that reads all samples of a source of this kind, at a path or below it."""
    return lambda path: all_of(kind(path / below, *given, **options))


def written(write: Callable[[Path], object], file: str) -> Make:
    """Return a function that writes into a new folder, and returns the content of a file there."""

    def make(folder: Path) -> bytes:
        write(folder)
        return next(folder.glob(file)).read_bytes()

    return make


def at(name: str) -> Callable[[Path, bytes], Path]:
    """Return a function that writes a file of this name."""

    def place(folder: Path, data: bytes) -> Path:
        path = folder / f"{VICTIM}{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return place


def one_of(name: str, write: Callable[[Path], object], read: Read, file: str, *values: str) -> Target:
    """Return the target in which one file of a folder is damaged."""

    def place(folder: Path, data: bytes) -> Path:
        write(folder / VICTIM)
        next((folder / VICTIM).glob(file)).write_bytes(data)
        return folder / VICTIM

    return Target(name, written(write, file), place, read, values)


def pack(folder: Path, name: str = "", given: Any = None, **options: Any) -> None:
    if name:
        folder.mkdir()
    feedline.pack(given or samples(), folder / name, workers=0, **options)


def packed(ending: str, given: Any = None, **options: Any) -> Make:
    """Return a function that packs samples with `feedline.pack`."""
    return written(functools.partial(pack, name=f"all{ending}", given=given, **options), f"all{ending}")


@functools.cache
def whole(ending: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return packed(ending)(Path(folder, "packed"))


def value_in(ending: str, value: bytes, kind: Any) -> Target:
    """Return the target in which one value inside a file written by `feedline.pack` is damaged."""

    def place(folder: Path, data: bytes) -> Path:
        assert whole(ending).count(value) == 1
        return at(ending)(folder, whole(ending).replace(value, data))

    return Target(f"{ending[1:]}-value", lambda folder: value, place, reading(kind), ALL, kinds=(FLIP,))


def written_by(write: Callable[[Any], object]) -> bytes:
    """Return what a function writes into a file."""
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def saved(array: Any) -> bytes:
    return written_by(lambda out: np.save(out, array))


# -- tar ---------------------------------------------------------------------------------------------------------------

_TAR_FIELDS = {"image": "image.npy", "vector": "vector.npy", "label": "cls", "name": "name.txt"}
_TABLE = reading(TarDataset, fields=_TAR_FIELDS, cache=False)


def tar_of(members: Iterable[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _tar_file(folder: Path) -> bytes:
    """Return a shard of another program, without checksums."""
    contents = [
        {"image.npy": saved(one["image"]), "vector.npy": saved(one["vector"]), "cls": b"3", "name.txt": b"a"}
        for one in samples()
    ]
    return tar_of(
        (f"{number}.{ending}", data) for number, one in enumerate(contents) for ending, data in sorted(one.items())
    )


def _stream(path: Path) -> list[Any]:
    dataset = TarDataset(path, fields=_TAR_FIELDS).stream()
    try:
        return list(dataset)
    finally:
        dataset.close()


def _compressed(ending: str, compress: Callable[[bytes], bytes]) -> Target:
    return Target(f"tar{ending}", lambda folder: compress(whole(".tar")), at(f".tar{ending}"), _stream, ALL)


def _field(ending: str, content: Callable[[], bytes], *values: str, decode: Any = True) -> Target:
    """Return the target for a field of this format, which alone is damaged inside a whole shard."""

    def place(folder: Path, data: bytes) -> Path:
        return at(".tar")(folder, tar_of([(f"a.{ending}", data), ("b.txt", b"after it")]))

    def read(path: Path) -> list[Any]:
        with_field = [*TarDataset(path, decode=decode).stream()]
        return [{name: value for name, value in one.items() if name != "__url__"} for one in with_field]

    return Target(f"field-{ending}", lambda folder: content(), place, read, values)


_PLAIN = {"label": 3, "name": "sample ☃", "numbers": list(range(50)), "nested": {"a": [1.5, None, True]}}


def _npz() -> bytes:
    return written_by(lambda out: np.savez_compressed(out, image=samples()[0]["image"], vector=samples()[0]["vector"]))


def _ten() -> bytes:
    return bytes(tenbin.encode_buffer([samples()[0]["vector"], samples()[1]["image"]]))


def _pth() -> bytes:
    content = {"vector": torch.arange(100.0), "label": 3, "image": torch.from_numpy(samples()[0]["image"])}
    return written_by(lambda out: torch.save(content, out))


# -- pictures and sounds -----------------------------------------------------------------------------------------------


def picture(ending: str) -> bytes:
    y, x = np.mgrid[:40, :60]
    pixels = np.stack([x * 4, y * 6, x + y], -1).astype(np.uint8)
    if ending == "jxl":
        return bytes(importlib.import_module("imagecodecs").jpegxl_encode(pixels, usecontainer=True))
    format_ = "JPEG" if ending == "jpg" else ending.upper()
    return written_by(lambda out: Image.fromarray(pixels).save(out, format_))


_UNCONFIRMED = ("gif", "tiff", "avif", "jxl")
"""Pictures whose decoders fill in pixels that the file lacks."""


def _picture(ending: str) -> Target:
    read: Read = lambda path: all_of(ImageFolder(path.parent.parent, cache=False))  # noqa: E731
    place = at(f"/{VICTIM}.{ending}")
    return Target(ending, lambda folder: picture(ending), place, read, may_grow=ending in _UNCONFIRMED)


def _sound(ending: str, *values: str, format_: str = "", subtype: str | None = None) -> Target:
    """Return the target for a file in a folder, of which clips are decoded, then the whole file."""
    clips = audio.Compose([audio.CenterClip(0.25, short="repeat"), audio.Resample(8000), audio.Mono()])

    def make(folder: Path) -> bytes:
        moment = np.arange(20_000) / 16_000
        both = np.stack([np.sin(2 * np.pi * 300 * moment), np.sin(2 * np.pi * 500 * moment**2)], -1) / 3
        kind = format_ or ending.upper()
        return written_by(lambda out: soundfile.write(out, both, 16_000, format=kind, subtype=subtype))

    def read(path: Path) -> list[Any]:
        folder = path.parent.parent
        durations = audio.durations(sorted(path.parent.iterdir()), cache=False).tolist()
        clip = all_of(audio.AudioFolder(folder, ("audio", "rate"), transform=clips, cache=False))
        return [durations, clip, all_of(audio.AudioFolder(folder, ("audio", "rate"), cache=False))]

    return Target(f"sound-{ending}", make, at(f"/{VICTIM}.{ending}"), read, values)


# -- arrays and tables -------------------------------------------------------------------------------------------------


def _arrays(path: Path) -> list[Any]:
    dataset = ArrayDataset(str(path))
    return [dataset[index] for index in range(len(dataset))]


def _npy_file(folder: Path) -> bytes:
    return saved(column("vector"))


def _files(how: Any) -> Read:
    return lambda path: all_of(FileDataset(path.parent, read=how, cache=False))


def _npz_file(folder: Path) -> bytes:
    arrays: Any = {name: column(name) for name in ("image", "vector", "label")}
    return written_by(lambda out: np.savez(out, **arrays))


_COLUMNS = ["label", "name", "kind", "vector", "fixed", "some"]


def arrow_table() -> Any:
    rows = samples()
    return pa.table(
        {
            "label": [one["label"] for one in rows],
            "name": [one["name"] for one in rows],
            "kind": pa.array([("cat", "dog")[one["label"] % 2] for one in rows]).dictionary_encode(),
            "vector": [one["vector"].tolist() for one in rows],
            "fixed": pa.array([one["vector"][:4].tolist() for one in rows], pa.list_(pa.float32(), 4)),
            "some": pa.array([None if one["label"] % 3 else 1.5 for one in rows]),
        }
    )


def _parquet_file(folder: Path) -> bytes:
    return written_by(lambda out: pq.write_table(arrow_table(), out, row_group_size=5, write_page_checksum=True))


def _arrow(*, stream: bool, compression: str | None = None) -> Make:
    def make(folder: Path) -> bytes:
        out, table = io.BytesIO(), arrow_table()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=5)
        return out.getvalue()

    return make


def _unpacked(folder: Path) -> list[Any]:
    """Read a Parquet file through its unpacked row groups, which are written if they are missing."""
    folder.mkdir(exist_ok=True)
    if not (folder / "a.parquet").exists():
        (folder / "a.parquet").write_bytes(_parquet_file(folder))
    return all_of(ParquetDataset(folder / "a.parquet", cache=folder / "unpacked"))


def _lines_file(folder: Path) -> bytes:
    return b"".join(json.dumps({"label": one["label"], "name": one["name"]}).encode() + b"\n" for one in samples())


def _copied_lines(folder: Path) -> list[Any]:
    """Read compressed lines through their decompressed copy, which is written if it is missing."""
    folder.mkdir(exist_ok=True)
    path = folder / "a.jsonl.gz"
    if not path.exists():
        path.write_bytes(gzip.compress(_lines_file(folder), mtime=0))
    with mock.patch("feedline.datasets.formats.lines.index.MOST_UNIT", 0):
        return all_of(JSONLines(path, cache=folder / "copies"))


def _csv_file(folder: Path) -> bytes:
    rows = [f"{one['label']},{one['name']},{one['vector'][0]}" for one in samples()]
    return "\n".join(["label,name,number", *rows, ""]).encode()


# -- HDF5, databases ---------------------------------------------------------------------------------------------------


def _hdf5_file(folder: Path) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["contiguous"] = column("vector")
        images, chunk = column("image"), (5, 8, 6, 3)
        file.create_dataset("packed", data=images, chunks=chunk, shuffle=True, compression="gzip")
        file.create_dataset("chunked", data=column("label"), chunks=(5,))
    return out.getvalue()


def _hdf5_texts(folder: Path) -> bytes:
    """Return a file of values of variable length, over whose heaps HDF5 loops forever after some damage."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["text"] = [one["name"] for one in samples()]
    return out.getvalue()


def _database(package: str) -> Make:
    def write(folder: Path) -> None:
        folder.mkdir()
        database = importlib.import_module(package).connect(folder / "a.db")
        database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, label INT, name TEXT, vector BLOB)")
        rows = [(number, one["label"], one["name"], one["vector"].tobytes()) for number, one in enumerate(samples())]
        database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)
        database.commit()
        database.close()

    return written(write, "a.db")


def _sql(scheme: str) -> Read:
    return lambda path: all_of(SQLDataset(f"{scheme}:///{path}", "SELECT * FROM samples", key="id"))


# -- feedline's own ----------------------------------------------------------------------------------------------------


def _precompute(folder: Path) -> None:
    feedline.precompute(samples(), folder, progress=False).close()


def _record_place(folder: Path, data: bytes) -> Path:
    """Put a damaged record into a store, with the right checksum."""
    path = folder / VICTIM
    store, _ = write_store(path, Head(bytes(32), 1), 1 << 30)
    store.put(0, Encoded(data))
    store.note_whole()
    store.close()
    return path


def _record(folder: Path) -> bytes:
    return records.encode({**samples()[1], "tensor": torch.arange(6.0), "more": [1, "a", {"b": b"bytes"}]})


class _Numbers:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return samples()[index]

    def fingerprint(self) -> str:
        return "the same"


def _cached(folder: Path) -> list[Any]:
    return all_of(CachedDataset(_Numbers(), memory=None, disk=folder))


def _indexed(folder: Path) -> list[Any]:
    """Read a shard through its index, which is written if it is missing."""
    folder.mkdir(exist_ok=True)
    if not (folder / "a.tar").exists():
        (folder / "a.tar").write_bytes(whole(".tar"))
    return all_of(TarDataset(folder / "a.tar", fields=_TAR_FIELDS, cache=folder / "index"))


def _write_tokens(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(1)
    with TokenWriter(folder / "tokens.bin", dtype="uint16") as writer:
        writer.write(rng.integers(0, 60_000, rng.integers(0, 40)) for _ in range(COUNT))


def _tokens(path: Path) -> list[Any]:
    dataset = TokenDataset(path, 16, mask_crossing=True, positions="document", segment_ids=True)
    return [*all_of(dataset), *all_of(dataset.documents), dataset.documents.lengths]


def _verified_tokens(path: Path) -> list[Any]:
    verify(path)
    return _tokens(path)


def _recording(ending: str, *values: str) -> Target:
    def write(folder: Path) -> None:
        folder.mkdir()
        recording_of(30, workers=2).save(folder / f"run{ending}")

    make = written(write, f"run{ending}")
    return Target(f"recording{ending}", make, at(f"-run{ending}"), lambda path: [everything_of(path)], values)


# -- shards of other libraries -----------------------------------------------------------------------------------------

_SHARD = {"image": "ndarray:uint8", "vector": "ndarray:float32:16", "label": "int", "name": "str"}


def _pair(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    megatron.write(folder / "x", [[list(range(one, one + 9)), [one]] for one in range(COUNT)])


def _mds(name: str, file: str) -> Target:
    write = functools.partial(shards.write, columns=_SHARD, shards=[samples()])
    return one_of(name, write, reading(MDSDataset), file, TRUNCATE)


def _litdata(name: str, file: str, content: Any = None, **options: Any) -> Target:
    write = functools.partial(chunks.write, chunks=[content or samples()], **options)
    return one_of(name, write, reading(LitDataDataset), file, TRUNCATE)


def _examples(folder: Path) -> bytes:
    features = [{**one, "image": one["image"].tobytes(), "name": one["name"].encode()} for one in samples()]
    return file_of(example({**one, "label": np.array([one["label"]])}) for one in features)


_SHARDS = [
    one_of("megatron", _pair, reading(MegatronDataset, below="x"), "x.idx", TRUNCATE),
    _mds("mds", "shard.00000.mds"),
    _mds("mds-index", "index.json"),
    _litdata("litdata", "chunk-0-0.bin"),
    _litdata("litdata-index", "index.json"),
    _litdata("litdata-zstd", "chunk-0-0.zstd.bin", compression="zstd"),
    _litdata("litdata-rows", "chunk-0-0.bin", without("image", "vector"), arrow=True),
    Target("tfrecord", _examples, at(".tfrecord"), reading(TFRecordDataset), (FLIP,)),
    Target(
        "tfrecord.gz",
        lambda folder: gzip.compress(_examples(folder)),
        at(".tfrecord.gz"),
        lambda path: list(TFRecordDataset(path).stream()),
        ALL,
    ),
]


def inspected(target: Target) -> Target:
    """Return the target in which `feedline inspect` looks at the same files."""
    read: Read = lambda path: [inspect(str(path))]  # noqa: E731
    return Target(f"inspect-{target.name}", target.make, target.place, read, may_ask=target.may_ask, kinds=target.kinds)


# ----------------------------------------------------------------------------------------------------------------------

_ONLY_VALUES = without("name")
_FILES = [
    Target("tar", packed(".tar"), at(".tar"), _stream, ALL, ALL),
    Target("tar-random", packed(".tar"), at(".tar"), _TABLE, ALL, ALL),
    Target("tar-foreign", _tar_file, at(".tar"), _stream, (TRUNCATE,)),
    _compressed(".gz", gzip.compress),
    _compressed(".xz", lzma.compress),
    _compressed(".bz2", bz2.compress),
    _compressed(".zst", zstandard.ZstdCompressor(write_checksum=True).compress),
    Target("npy", _npy_file, at(".npy"), _arrays, (TRUNCATE,), ALL),
    Target("npz", _npz_file, at(".npz"), _arrays, ALL),
    Target("parquet", _parquet_file, at(".parquet"), reading(ParquetDataset, _COLUMNS), ALL, may_ask=True),
    Target(
        "parquet-far",
        _parquet_file,
        at(".parquet"),
        lambda path: all_of(ParquetDataset(f"local://{path}", _COLUMNS)),  # read by fsspec
        ALL,
        may_ask=True,
    ),
    Target("arrow", _arrow(stream=False), at(".arrow"), reading(ArrowDataset), (TRUNCATE,)),
    Target("arrow-stream", _arrow(stream=True), at(".arrow"), reading(ArrowDataset), (TRUNCATE,)),
    Target(
        "feather",
        _arrow(stream=False, compression="lz4"),
        at(".feather"),
        reading(ArrowDataset),
        (TRUNCATE,),
        may_ask=True,
    ),
    Target("hdf5", _hdf5_file, at(".h5"), reading(HDF5Dataset), (TRUNCATE,)),
    Target("hdf5-text", _hdf5_texts, at(".h5"), reading(HDF5Dataset), (TRUNCATE,), kinds=(TRUNCATE,)),
    Target("hdf5-packed", packed(".h5", _ONLY_VALUES), at(".h5"), reading(HDF5Dataset), ALL),
    Target("hdf5-gzip", packed(".h5", _ONLY_VALUES, compression="gzip"), at(".h5"), reading(HDF5Dataset), ALL),
    value_in(".h5", samples()[4]["name"].encode(), HDF5Dataset),
    one_of("npy-packed", functools.partial(pack, format="npy"), reading(ArrayDataset), "vector.npy", *ALL),
    one_of("npy-facts", functools.partial(pack, format="npy"), reading(ArrayDataset), "feedline.json", *ALL),
    Target("parquet-packed", packed(".parquet"), at(".parquet"), reading(ParquetDataset), ALL, may_ask=True),
    Target("lmdb", packed(".lmdb"), at(".lmdb"), reading(LMDBDataset), (TRUNCATE,), kinds=(TRUNCATE,)),
    value_in(".lmdb", samples()[4]["image"].tobytes(), LMDBDataset),
    Target("sqlite", _database("sqlite3"), at(".db"), _sql("sqlite"), (TRUNCATE,)),
    *(
        [Target("duckdb", _database("duckdb"), at(".duckdb"), _sql("duckdb"), ALL)]
        if importlib.util.find_spec("duckdb")
        else []
    ),
    one_of("store", _precompute, reading(PrecomputedDataset), FILE, *ALL),
    Target("csv", _csv_file, at(".csv"), reading(CSVDataset, cache=False)),
    Target(
        "csv.gz",
        lambda folder: gzip.compress(_csv_file(folder), mtime=0),
        at(".csv.gz"),
        reading(CSVDataset, cache=False),
        ALL,
    ),
]
_PICTURES = [
    *map(_picture, ("png", "jpg", "gif", "webp", "bmp", "tiff", "ppm", "avif")),
    *map(_picture, ["jxl"] if importlib.util.find_spec("imagecodecs") else []),
    Target("files-npy", _npy_file, at("/a.npy"), _files("npy")),
    Target("files-text", _csv_file, at("/a.txt"), _files("text")),
]
_OWN = [
    one_of("unpacked", _unpacked, _unpacked, "unpacked/*.arrow", *ALL),
    one_of("copy", _copied_lines, _copied_lines, "copies/*.lines", *ALL),
    one_of("cache", _cached, _cached, FILE, *ALL),
    one_of("index", _indexed, _indexed, "index/*.tar-index", *ALL),
    Target("record", _record, _record_place, reading(PrecomputedDataset), (TRUNCATE,)),
    Target("tokens", written(_write_tokens, "tokens.bin"), at(".bin"), _tokens, (TRUNCATE,)),
    Target("tokens-verified", written(_write_tokens, "tokens.bin"), at(".bin"), _verified_tokens, ALL),
    _recording(".json"),
    _recording(".json.gz", *ALL),
]
_FIELDS = [
    _field("npy", lambda: saved(samples()[0]["image"]), TRUNCATE),
    _field("npy.gz", lambda: gzip.compress(saved(samples()[0]["image"])), *ALL),
    _field("npz", _npz, *ALL),
    _field("ten", _ten),
    _field("json", lambda: json.dumps(_PLAIN).encode(), TRUNCATE),
    _field("mp", lambda: bytes(msgpack.packb(_PLAIN)), TRUNCATE),
    _field("cbor", lambda: cbor2.dumps(_PLAIN), TRUNCATE),
    _field("pth", _pth, TRUNCATE),
    _field("png", lambda: picture("png"), TRUNCATE, decode="rgb8"),
]
_SOUNDS = [
    _sound("wav", TRUNCATE),
    _sound("flac", TRUNCATE),
    _sound("ogg", *ALL),
    _sound("opus", *ALL, format_="OGG", subtype="OPUS"),
    _sound("aiff", TRUNCATE),
    _sound("mp3"),
]
_VIDEOS = [
    Target(f"video-{name}", make, at(f"/{VICTIM}{ending}"), videos.read, values, may_ask=True)
    for name, (make, ending, values) in videos.KINDS.items()
]
_LEFT_OUT = ("tar-random", "tar-foreign", "parquet-far", "duckdb", "csv.gz", "npy-packed", "npy-facts")
_INSPECTED = [inspected(one) for one in _FILES if one.name not in _LEFT_OUT]
_GROUPS = {
    **{one.name: [one] for one in _FILES},
    **{"shards": _SHARDS, "own": _OWN, "fields": _FIELDS, "pictures": _PICTURES, "sounds": _SOUNDS},
    **{"videos": _VIDEOS, "inspect": _INSPECTED},
}
TARGETS = {one.name: one for group in _GROUPS.values() for one in group}
PROCESSES = {name: [one.name for one in group] for name, group in _GROUPS.items()}
"""Formats by process; starting a process takes longer than a hundred cases."""
