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
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

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
from feedline.errors import CorruptSource
from feedline.images.decoding import decode_image
from feedline.memory.sharing import records
from feedline.text import TokenDataset, TokenWriter, verify
from feedline.tools.write.inspection import inspect
from tests.datasets.formats import test_megatron as megatron
from tests.datasets.formats.litdata import chunks
from tests.datasets.formats.mds import shards
from tests.datasets.formats.tfrecord.records import example, file_of
from tests.fuzz import videos
from tests.fuzz.damage import ALL, FLIP, TRUNCATE
from tests.images.decoders import INSTALLED as DECODERS
from tests.images.decoders import best_installed
from tests.tools.advise.recordings import everything_of, recording_of

VICTIM = "victim"
"""Part of the name of every damaged file, and so of every error about it."""
COUNT = 12


# Any, throughout: samples of any form.
@dataclass(frozen=True)
class Target:
    """A format, and how a damaged file of it is read."""

    name: str
    make: Callable[[Path], bytes]
    """Returns the bytes that are damaged, given a folder that is not there yet."""
    place: Callable[[Path, bytes], Path]
    """Puts them into a folder, and returns what is opened."""
    read: Callable[[Path], Iterable[Any]]
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


def numbers() -> list[dict[str, Any]]:
    """Return samples without values of variable length."""
    return [{name: value for name, value in one.items() if name != "name"} for one in samples()]


def packed(name: str, made: Callable[[], Any] = samples, **options: Any) -> Callable[[Path], bytes]:
    """Return a function that packs samples with `feedline.pack`."""

    def make(folder: Path) -> bytes:
        folder.mkdir()
        out = folder / name
        feedline.pack(made(), out, workers=0, **options)
        return (out / "data.mdb" if out.is_dir() else out).read_bytes()

    return make


def at(name: str) -> Callable[[Path, bytes], Path]:
    """Return a function that writes a file of this name."""

    def place(folder: Path, data: bytes) -> Path:
        path = folder / f"{VICTIM}{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return place


def value_in(name: str, value: bytes, read: Callable[[Path], Iterable[Any]]) -> Target:
    """Return the target in which one value inside a file written by `feedline.pack` is damaged."""

    @functools.cache
    def whole() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            return packed(f"all.{name}")(Path(folder, "made"))

    def place(folder: Path, data: bytes) -> Path:
        assert whole().count(value) == 1
        return at(f".{name}")(folder, whole().replace(value, data))

    return Target(f"{name}-value", lambda folder: value, place, read, ALL, kinds=(FLIP,))


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


# -- tar ---------------------------------------------------------------------------------------------------------------

_TAR_FIELDS = {"image": "image.npy", "vector": "vector.npy", "label": "cls", "name": "name.txt"}


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
    fields = [("image.npy", "image"), ("vector.npy", "vector")]
    content = [
        (f"{place}.{ending}", _saved(one[name])) for place, one in enumerate(samples()) for ending, name in fields
    ]
    labels = [
        (f"{place}.{ending}", data) for place in range(COUNT) for ending, data in (("cls", b"3"), ("name.txt", b"a"))
    ]
    return tar_of(sorted(content + labels))


def _saved(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _stream(path: Path) -> list[Any]:
    dataset = TarDataset(path, fields=_TAR_FIELDS).stream()
    try:
        return list(dataset)
    finally:
        dataset.close()


def _table(path: Path) -> list[Any]:
    return all_of(TarDataset(path, fields=_TAR_FIELDS, cache=False))


def _compressed(compress: Callable[[bytes], bytes]) -> Callable[[Path], bytes]:
    return lambda folder: compress(packed("all.tar")(folder))


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def _field(ending: str, content: Callable[[], bytes], *values: str, decode: Any = True) -> Target:
    """Return the target for a field of this format, which alone is damaged inside a whole shard."""

    def place(folder: Path, data: bytes) -> Path:
        return at(".tar")(folder, tar_of([(f"a.{ending}", data), ("b.txt", b"after it")]))

    def read(path: Path) -> list[Any]:
        with_field = [*TarDataset(path, decode=decode).stream()]
        return [{name: value for name, value in one.items() if name != "__url__"} for one in with_field]

    return Target(f"field-{ending}", lambda folder: content(), place, read, values)


def _npy() -> bytes:
    return _saved(samples()[0]["image"])


def _npz(**options: bool) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if options else np.savez)(out, **{name: samples()[0][name] for name in ("image", "vector")})
    return out.getvalue()


def _ten() -> bytes:
    from webdataset import tenbin

    return bytes(tenbin.encode_buffer([samples()[0]["vector"], samples()[1]["image"]]))


def _json() -> bytes:
    return json.dumps([{**one, "image": one["image"].tolist(), "vector": 1.5} for one in samples()[:3]]).encode()


def _plain_sample() -> dict[str, Any]:
    return {"label": 3, "name": "sample ☃", "numbers": list(range(50)), "nested": {"a": [1.5, None, True]}}


def _msgpack() -> bytes:
    import msgpack

    data: bytes = msgpack.packb(_plain_sample())
    return data


def _cbor() -> bytes:
    import cbor2

    return cbor2.dumps(_plain_sample())


def _pth() -> bytes:
    import torch

    out = io.BytesIO()
    torch.save({"vector": torch.arange(100.0), "label": 3, "image": torch.from_numpy(samples()[0]["image"])}, out)
    return out.getvalue()


# -- pictures ----------------------------------------------------------------------------------------------------------


def picture(format_: str, height: int = 40, width: int = 60) -> Callable[[], bytes]:
    def make() -> bytes:
        from PIL import Image

        out = io.BytesIO()
        y, x = np.mgrid[:height, :width]
        x, y = x * 60 / width, y * 40 / height
        pixels = np.stack([x * 4, y * 6, x + y], -1).astype(np.uint8)
        if format_ == "JXL":
            return bytes(importlib.import_module("imagecodecs").jpegxl_encode(pixels, usecontainer=True))
        Image.fromarray(pixels).save(out, format_)
        return out.getvalue()

    return make


_UNCONFIRMED = ("gif", "tiff", "avif", "jxl")
"""Pictures whose decoders fill in pixels that the file lacks."""


def _picture_target(ending: str, format_: str, *values: str) -> Target:
    def read(path: Path) -> list[Any]:
        return all_of(ImageFolder(path.parent.parent, cache=False))

    make = picture(format_)
    return Target(
        ending, lambda folder: make(), at(f"/{VICTIM}.{ending}"), read, values, may_grow=ending in _UNCONFIRMED
    )


def _decoded(package: str, ending: str, format_: str, *values: str) -> Target:
    """Return the target for `decode_image` where a package is the best installed decoder."""

    def read(path: Path) -> list[Any]:
        try:
            with best_installed(package):
                data = path.read_bytes()
                return [
                    decode_image(data),
                    decode_image(data, factor=2),
                    decode_image(data, rows=10),
                    decode_image(data, mode="I;16"),
                ]
        except CorruptSource as exc:
            raise CorruptSource(f"{path}: {exc}") from exc

    # So large that a few bytes of a JPEG could not encode much more. Others are small, to be decoded quickly.
    make = picture(format_, *((240, 320) if format_ == "JPEG" else (60, 80)))
    return Target(
        f"{package}-{ending}", lambda folder: make(), at(f".{ending}"), read, values, may_grow=ending in _UNCONFIRMED
    )


# -- sounds ------------------------------------------------------------------------------------------------------------


def sound(format_: str, subtype: str | None = None) -> Callable[[], bytes]:
    def make() -> bytes:
        import soundfile

        out = io.BytesIO()
        moment = np.arange(20_000) / 16_000
        both = np.stack([np.sin(2 * np.pi * 300 * moment), np.sin(2 * np.pi * 500 * moment**2)], -1)
        soundfile.write(out, both / 3, 16_000, format=format_, subtype=subtype)
        return out.getvalue()

    return make


def _sound_target(ending: str, make: Callable[[], bytes], *values: str) -> Target:
    """Return the target for a file in a folder, of which clips are decoded, then the whole file."""
    clips = audio.Compose([audio.CenterClip(0.25, short="repeat"), audio.Resample(8000), audio.Mono()])

    def read(path: Path) -> list[Any]:
        folder = path.parent.parent
        durations = audio.durations(sorted(path.parent.iterdir()), cache=False).tolist()
        clip = all_of(audio.AudioFolder(folder, ("audio", "rate"), transform=clips, cache=False))
        return [durations, clip, all_of(audio.AudioFolder(folder, ("audio", "rate"), cache=False))]

    return Target(f"sound-{ending}", lambda folder: make(), at(f"/{VICTIM}.{ending}"), read, values)


def _sound_bytes(ending: str, make: Callable[[], bytes], *values: str) -> Target:
    """Return the target for the bytes of a file in a shard."""

    def place(folder: Path, data: bytes) -> Path:
        return at(".tar")(folder, tar_of([(f"a.{ending}", data)]))

    def read(path: Path) -> list[Any]:
        return [
            *TarDataset(path, fields=["__key__", "__url__", ending], transform=audio.Compose([]).on(ending)).stream()
        ]

    return Target(f"sound-bytes-{ending}", lambda folder: make(), place, read, values)


# -- arrays ------------------------------------------------------------------------------------------------------------


def _arrays(path: Path) -> list[Any]:
    dataset = ArrayDataset(str(path))
    return [dataset[index] for index in range(len(dataset))]


def _npy_file(folder: Path) -> bytes:
    out = io.BytesIO()
    np.save(out, np.stack([one["vector"] for one in samples()]))
    return out.getvalue()


def _npy_folder(folder: Path) -> Path:
    feedline.pack(samples(), folder, format="npy", workers=0)
    return folder


def _npy_packed(folder: Path) -> bytes:
    return (_npy_folder(folder) / "vector.npy").read_bytes()


def _npy_place(folder: Path, data: bytes) -> Path:
    """Replace a packed array by a damaged one."""
    path = _npy_folder(folder / VICTIM)
    (path / "vector.npy").write_bytes(data)
    return path


def _npy_facts(folder: Path) -> bytes:
    return (_npy_folder(folder) / "feedline.json").read_bytes()


def _facts_place(folder: Path, data: bytes) -> Path:
    """Replace the packed facts, which hold the checksums, by damaged ones."""
    path = _npy_folder(folder / VICTIM)
    (path / "feedline.json").write_bytes(data)
    return path


def _npz_file(folder: Path) -> bytes:
    out = io.BytesIO()
    arrays: Any = {name: np.stack([one[name] for one in samples()]) for name in ("image", "vector", "label")}
    np.savez(out, **arrays)
    return out.getvalue()


# -- tables ------------------------------------------------------------------------------------------------------------


_COLUMNS = ["label", "name", "kind", "vector", "fixed", "some"]


def arrow_table() -> Any:
    import pyarrow as pa

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
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(arrow_table(), out, row_group_size=5, write_page_checksum=True)
    return out.getvalue()


def _arrow(*, stream: bool, compression: str | None = None) -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        import pyarrow as pa

        out = io.BytesIO()
        table = arrow_table()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=5)
        return out.getvalue()

    return make


def _unpack_place(folder: Path, data: bytes) -> Path:
    """Replace an unpacked row group by damaged bytes."""
    path = at(".parquet")(folder, _parquet_file(folder))
    all_of(ParquetDataset(path, cache=folder / f"{VICTIM}-unpacked"))
    next((folder / f"{VICTIM}-unpacked").glob("*.arrow")).write_bytes(data)
    return path


def _unpacked_file(folder: Path) -> bytes:
    folder.mkdir()
    path = at(".parquet")(folder, _parquet_file(folder))
    all_of(ParquetDataset(path, cache=folder / "unpacked"))
    return next((folder / "unpacked").glob("*.arrow")).read_bytes()


def _copied(folder: Path) -> Path:
    """Write compressed lines, and make their decompressed copy."""
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"label": one["label"], "name": one["name"]}) + "\n" for one in samples())
    path = at(".jsonl.gz")(folder, gzip.compress(lines.encode(), mtime=0))
    _read_copy(path)
    return path


def _copy_of(path: Path) -> Path:
    return next((path.parent / f"{VICTIM}-copies").glob("*.lines"))


def _read_copy(path: Path) -> list[Any]:
    with mock.patch("feedline.datasets.formats.lines.index.MOST_UNIT", 0):
        return all_of(JSONLines(path, cache=path.parent / f"{VICTIM}-copies"))


def _copy_place(folder: Path, data: bytes) -> Path:
    """Replace a decompressed copy by damaged bytes."""
    path = _copied(folder)
    _copy_of(path).write_bytes(data)
    return path


# -- HDF5, databases ---------------------------------------------------------------------------------------------------


def _hdf5_file(folder: Path) -> bytes:
    import h5py

    rows = samples()
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["contiguous"] = np.stack([one["vector"] for one in rows])
        file.create_dataset(
            "packed",
            data=np.stack([one["image"] for one in rows]),
            chunks=(5, 8, 6, 3),
            shuffle=True,
            compression="gzip",
        )
        file.create_dataset("chunked", data=np.array([one["label"] for one in rows]), chunks=(5,))
    return out.getvalue()


def _hdf5_texts(folder: Path) -> bytes:
    """Return a file of values of variable length, over whose heaps HDF5 loops forever after some damage."""
    import h5py

    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["text"] = [one["name"] for one in samples()]
    return out.getvalue()


def _sqlite_file(folder: Path) -> bytes:
    folder.mkdir()
    database = sqlite3.connect(folder / "a.db")
    database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, label INT, name TEXT, vector BLOB)")
    rows = [(number, one["label"], one["name"], one["vector"].tobytes()) for number, one in enumerate(samples())]
    database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)
    database.commit()
    database.close()
    return (folder / "a.db").read_bytes()


def _sql(scheme: str) -> Callable[[Path], list[Any]]:
    return lambda path: all_of(SQLDataset(f"{scheme}:///{path}", "SELECT * FROM samples", key="id"))


def _duckdb_file(folder: Path) -> bytes:
    import duckdb

    folder.mkdir()
    with duckdb.connect(folder / "a.duckdb") as database:
        database.execute("CREATE TABLE samples (id INTEGER, label INT, name TEXT)")
        database.executemany(
            "INSERT INTO samples VALUES (?, ?, ?)",
            [(number, one["label"], one["name"]) for number, one in enumerate(samples())],
        )
    return (folder / "a.duckdb").read_bytes()


# -- feedline's own ----------------------------------------------------------------------------------------------------


def _store_file(folder: Path) -> bytes:
    feedline.precompute(samples(), folder, progress=False)
    return (folder / FILE).read_bytes()


def _record_place(folder: Path, data: bytes) -> Path:
    """Put a damaged record into a store, with the right checksum."""
    path = folder / VICTIM
    store, _ = write_store(path, Head(bytes(32), 1), 1 << 30)
    store.put(0, Encoded(data))
    store.note_whole()
    store.close()
    return path


def _record(folder: Path) -> bytes:
    import torch

    return records.encode({**samples()[1], "tensor": torch.arange(6.0), "more": [1, "a", {"b": b"bytes"}]})


class _Numbers:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return samples()[index]

    def fingerprint(self) -> str:
        return "the same"


def _cache(path: Path) -> list[Any]:
    return all_of(CachedDataset(_Numbers(), memory=None, disk=path.parent))


def _cache_file(folder: Path) -> bytes:
    all_of(CachedDataset(_Numbers(), memory=None, disk=folder))
    return (folder / FILE).read_bytes()


@functools.cache
def _shard() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return packed("all.tar")(Path(folder, "packed"))


def _index_place(folder: Path, data: bytes) -> Path:
    """Put a damaged index next to a whole shard."""
    path = at(".tar")(folder, _shard())
    all_of(TarDataset(path, fields=_TAR_FIELDS, cache=folder / "index"))
    next((folder / "index").glob("*.tar-index")).write_bytes(data)
    return path


def _index_file(folder: Path) -> bytes:
    folder.mkdir()
    path = at(".tar")(folder, _shard())
    all_of(TarDataset(path, fields=_TAR_FIELDS, cache=folder / "index"))
    return next((folder / "index").glob("*.tar-index")).read_bytes()


def _indexed(path: Path) -> list[Any]:
    return all_of(TarDataset(path, fields=_TAR_FIELDS, cache=path.parent / "index"))


def _lines_file(folder: Path) -> bytes:
    return b"".join(json.dumps({"label": one["label"], "name": one["name"]}).encode() + b"\n" for one in samples())


def _csv_file(folder: Path) -> bytes:
    rows = [f"{one['label']},{one['name']},{one['vector'][0]}" for one in samples()]
    return "\n".join(["label,name,number", *rows, ""]).encode()


def _csv_packed(folder: Path) -> bytes:
    return gzip.compress(_csv_file(folder), mtime=0)


# -- tokens ------------------------------------------------------------------------------------------------------------


def _token_file(folder: Path) -> bytes:
    folder.mkdir()
    rng = np.random.default_rng(1)
    with TokenWriter(folder / "tokens.bin", dtype="uint16") as writer:
        writer.write(rng.integers(0, 60_000, rng.integers(0, 40)) for _ in range(COUNT))
    return (folder / "tokens.bin").read_bytes()


def _tokens(path: Path) -> list[Any]:
    dataset = TokenDataset(path, 16, mask_crossing=True, positions="document", segment_ids=True)
    return [*all_of(dataset), *all_of(dataset.documents), dataset.documents.lengths]


def _verified_tokens(path: Path) -> list[Any]:
    verify(path)
    return _tokens(path)


# -- recordings --------------------------------------------------------------------------------------------------------


def _recording_file(ending: str) -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        folder.mkdir()
        recording_of(30, workers=2).save(folder / f"run{ending}")
        return (folder / f"run{ending}").read_bytes()

    return make


def _recording_target(ending: str, *values: str) -> Target:
    return Target(
        f"recording{ending}", _recording_file(ending), at(f"-run{ending}"), lambda path: [everything_of(path)], values
    )


# -- shards of other libraries -----------------------------------------------------------------------------------------

_SHARD = {"image": "ndarray:uint8", "vector": "ndarray:float32:16", "label": "int", "name": "str"}
_ROWS = [{"name": one["name"], "label": one["label"]} for one in samples()]


def _one_of(name: str, write: Callable[[Path], object], read: Callable[[Path], Any], file: str, *values: str) -> Target:
    """Return the target in which one file of a folder written by another library is damaged."""

    def make(folder: Path) -> bytes:
        write(folder)
        return (folder / file).read_bytes()

    def place(folder: Path, data: bytes) -> Path:
        write(folder / VICTIM)
        (folder / VICTIM / file).write_bytes(data)
        return folder / VICTIM

    return Target(name, make, place, lambda path: all_of(read(path)), values)


def _pair(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    megatron.write(folder / "x", [[list(range(one, one + 9)), [one]] for one in range(COUNT)])


def _examples() -> bytes:
    features = [{**one, "image": one["image"].tobytes(), "name": one["name"].encode()} for one in samples()]
    return file_of(example({**one, "label": np.array([one["label"]])}) for one in features)


_SHARDS = [
    _one_of("megatron", _pair, lambda path: MegatronDataset(path / "x"), "x.idx", TRUNCATE),
    *(
        _one_of(name, functools.partial(shards.write, columns=_SHARD, shards=[samples()]), MDSDataset, file, TRUNCATE)
        for name, file in (("mds", "shard.00000.mds"), ("mds-index", "index.json"))
    ),
    *(
        _one_of(name, functools.partial(chunks.write, chunks=[content], **options), LitDataDataset, file, TRUNCATE)
        for name, content, options, file in (
            ("litdata", samples(), {}, "chunk-0-0.bin"),
            ("litdata-index", samples(), {}, "index.json"),
            ("litdata-zstd", samples(), {"compression": "zstd"}, "chunk-0-0.zstd.bin"),
            ("litdata-rows", _ROWS, {"arrow": True}, "chunk-0-0.bin"),
        )
    ),
    Target(
        "tfrecord", lambda folder: _examples(), at(".tfrecord"), lambda path: all_of(TFRecordDataset(path)), (FLIP,)
    ),
    Target(
        "tfrecord.gz",
        lambda folder: gzip.compress(_examples()),
        at(".tfrecord.gz"),
        lambda path: list(TFRecordDataset(path).stream()),
        ALL,
    ),
]


# -- inspect -----------------------------------------------------------------------------------------------------------


def _looked_at(path: Path) -> list[Any]:
    return [inspect(str(path))]


def inspected(target: Target) -> Target:
    """Return the target in which `feedline inspect` looks at the same files."""
    return Target(
        f"inspect-{target.name}", target.make, target.place, _looked_at, may_ask=target.may_ask, kinds=target.kinds
    )


# ----------------------------------------------------------------------------------------------------------------------

_FILES = [
    Target("tar", packed("all.tar"), at(".tar"), _stream, ALL, ALL),
    Target("tar-random", packed("all.tar"), at(".tar"), _table, ALL, ALL),
    Target("tar-foreign", _tar_file, at(".tar"), _stream, (TRUNCATE,)),
    Target("tar.gz", _compressed(gzip.compress), at(".tar.gz"), _stream, ALL),
    Target("tar.xz", _compressed(lzma.compress), at(".tar.xz"), _stream, ALL),
    Target("tar.bz2", _compressed(bz2.compress), at(".tar.bz2"), _stream, ALL),
    Target("tar.zst", _compressed(_zstd), at(".tar.zst"), _stream, ALL),
    Target("npy", _npy_file, at(".npy"), _arrays, (TRUNCATE,), ALL),
    Target("npz", _npz_file, at(".npz"), _arrays, ALL),
    Target(
        "parquet", _parquet_file, at(".parquet"), lambda path: all_of(ParquetDataset(path, _COLUMNS)), ALL, may_ask=True
    ),
    Target(
        "parquet-far",
        _parquet_file,
        at(".parquet"),
        lambda path: all_of(ParquetDataset(f"local://{path}", _COLUMNS)),  # read by fsspec
        ALL,
        may_ask=True,
    ),
    Target("arrow", _arrow(stream=False), at(".arrow"), lambda path: all_of(ArrowDataset(path)), (TRUNCATE,)),
    Target("arrow-stream", _arrow(stream=True), at(".arrow"), lambda path: all_of(ArrowDataset(path)), (TRUNCATE,)),
    Target(
        "feather",
        _arrow(stream=False, compression="lz4"),
        at(".feather"),
        lambda path: all_of(ArrowDataset(path)),
        (TRUNCATE,),
        may_ask=True,
    ),
    Target("hdf5", _hdf5_file, at(".h5"), lambda path: all_of(HDF5Dataset(path)), (TRUNCATE,)),
    Target(
        "hdf5-text",
        _hdf5_texts,
        at(".h5"),
        lambda path: all_of(HDF5Dataset(path)),
        (TRUNCATE,),
        kinds=(TRUNCATE,),
    ),
    Target("hdf5-packed", packed("all.h5", numbers), at(".h5"), lambda path: all_of(HDF5Dataset(path)), ALL),
    Target(
        "hdf5-gzip",
        packed("all.h5", numbers, compression="gzip"),
        at(".h5"),
        lambda path: all_of(HDF5Dataset(path)),
        ALL,
    ),
    value_in("h5", samples()[4]["name"].encode(), lambda path: all_of(HDF5Dataset(path))),
    Target("npy-packed", _npy_packed, _npy_place, lambda path: all_of(ArrayDataset(path)), ALL),
    Target("npy-facts", _npy_facts, _facts_place, lambda path: all_of(ArrayDataset(path)), ALL),
    Target(
        "parquet-packed",
        packed("all.parquet"),
        at(".parquet"),
        lambda path: all_of(ParquetDataset(path)),
        ALL,
        may_ask=True,
    ),
    Target(
        "lmdb", packed("all.lmdb"), at(".lmdb"), lambda path: all_of(LMDBDataset(path)), (TRUNCATE,), kinds=(TRUNCATE,)
    ),
    value_in("lmdb", samples()[4]["image"].tobytes(), lambda path: all_of(LMDBDataset(path))),
    Target("sqlite", _sqlite_file, at(".db"), _sql("sqlite"), (TRUNCATE,)),
    *(
        [Target("duckdb", _duckdb_file, at(".duckdb"), _sql("duckdb"), ALL)]
        if importlib.util.find_spec("duckdb")
        else []
    ),
    Target("store", _store_file, at(f"/{FILE}"), lambda path: all_of(PrecomputedDataset(path.parent)), ALL),
    Target("csv", _csv_file, at(".csv"), lambda path: all_of(CSVDataset(path, cache=False))),
    Target("csv.gz", _csv_packed, at(".csv.gz"), lambda path: all_of(CSVDataset(path, cache=False)), ALL),
]
_JXL = ["jxl"] if importlib.util.find_spec("imagecodecs") else []
_DECODED = [
    *(_decoded(package, "jpg", "JPEG", TRUNCATE) for package in DECODERS),
    *(_decoded(package, "png", "PNG", *ALL) for package in DECODERS if package != "simplejpeg"),
    *(_decoded(package, "webp", "WEBP", TRUNCATE) for package in DECODERS if package != "simplejpeg"),
    *(_decoded("PIL", ending, ending.upper(), TRUNCATE) for ending in ("tiff", "bmp", "avif", "jpeg2000")),
    *(_decoded("PIL", "jxl", "JXL", TRUNCATE) for _ in _JXL),
]
_OTHERS = [
    Target(
        "unpacked",
        _unpacked_file,
        _unpack_place,
        lambda path: all_of(ParquetDataset(path, cache=path.parent / f"{VICTIM}-unpacked")),
        ALL,
    ),
    Target("copy", lambda folder: _copy_of(_copied(folder)).read_bytes(), _copy_place, _read_copy, ALL),
    Target("tokens", _token_file, at(".bin"), _tokens, (TRUNCATE,)),
    Target("tokens-verified", _token_file, at(".bin"), _verified_tokens, ALL),
    Target("cache", _cache_file, at(f"/{FILE}"), _cache, ALL),
    Target("index", _index_file, _index_place, _indexed, ALL),
    Target("record", _record, _record_place, lambda path: all_of(PrecomputedDataset(path)), (TRUNCATE,)),
    _field("npy", _npy, TRUNCATE),
    _field("npy.gz", lambda: gzip.compress(_npy()), *ALL),
    _field("npz", lambda: _npz(compressed=True), *ALL),
    _field("ten", _ten),
    _field("json", _json, TRUNCATE),
    _field("mp", _msgpack, TRUNCATE),
    _field("cbor", _cbor, TRUNCATE),
    _field("pth", _pth, TRUNCATE),
    _field("png", picture("PNG"), TRUNCATE, decode="rgb8"),
    _picture_target("png", "PNG"),
    _picture_target("jpg", "JPEG"),
    _picture_target("gif", "GIF"),
    _picture_target("webp", "WEBP"),
    _picture_target("bmp", "BMP"),
    _picture_target("tiff", "TIFF"),
    _picture_target("ppm", "PPM"),
    _picture_target("avif", "AVIF"),
    *(_picture_target(ending, "JXL") for ending in _JXL),
    *_DECODED,
    _recording_target(".json"),
    _recording_target(".json.gz", *ALL),
    Target(
        "files-npy", _npy_file, at("/a.npy"), lambda path: all_of(FileDataset(path.parent, read="npy", cache=False))
    ),
    Target(
        "files-text", _csv_file, at("/a.txt"), lambda path: all_of(FileDataset(path.parent, read="text", cache=False))
    ),
]
_SOUNDS = [
    _sound_target("wav", sound("WAV"), TRUNCATE),
    _sound_target("flac", sound("FLAC"), TRUNCATE),
    _sound_target("ogg", sound("OGG"), *ALL),
    _sound_target("opus", sound("OGG", "OPUS"), *ALL),
    _sound_target("aiff", sound("AIFF"), TRUNCATE),
    _sound_target("mp3", sound("MP3")),
    *(_sound_bytes(name.lower(), sound(name)) for name in ("WAV", "FLAC", "OGG", "AIFF", "MP3")),
]
_VIDEOS = [
    Target(f"video-{name}", make, at(f"/{VICTIM}{ending}"), videos.read, values, may_ask=True)
    for name, (make, ending, values) in videos.KINDS.items()
]
_LEFT_OUT = ("tar-random", "tar-foreign", "parquet-far", "duckdb", "csv.gz", "npy-packed", "npy-facts")
_LOOKED_AT = [one for one in _FILES if one.name not in _LEFT_OUT]
TARGETS = {one.name: one for one in [*_FILES, *_SHARDS, *_OTHERS, *_SOUNDS, *_VIDEOS, *map(inspected, _LOOKED_AT)]}

PROCESSES = {one.name: [one.name] for one in _FILES} | {
    "shards": [one.name for one in _SHARDS],
    "own": ["unpacked", "copy", "cache", "index", "record"],
    "fields": [name for name in TARGETS if name.startswith("field-")],
    "pictures": ["png", "jpg", "gif", "webp", "bmp", "tiff", "ppm", "avif", *_JXL, "files-npy", "files-text"],
    "decoders": [one.name for one in _DECODED],
    "sounds": [one.name for one in _SOUNDS],
    "videos": [one.name for one in _VIDEOS],
    "tokens": ["tokens", "tokens-verified"],
    "recordings": ["recording.json", "recording.json.gz"],
    "inspect": [name for name in TARGETS if name.startswith("inspect-")],
}
"""Formats by process; starting a process takes longer than a hundred cases."""
