"""Samples in an LMDB database."""

from __future__ import annotations

import functools
import itertools
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.datasets.formats.lmdb.decoding import Bytes, Decoder, Function, Picture, Raw, Records
from feedline.datasets.formats.lmdb.environment import Environment, acquire, calls, release, retain
from feedline.datasets.framework.checksums import AGAIN, KIND, Compared, check_seal, damaged
from feedline.datasets.framework.form import Fields, Form, check_fields
from feedline.datasets.framework.paths import checked_path
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform
from feedline.datasets.framework.store import Cache, Entry, checked_cache
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceChanged, SourceError
from feedline.images.pillow import EXTENSIONS, SPECS
from feedline.memory.sharing import records
from feedline.memory.sharing.packed import Packed
from feedline.system.failures import add_note, words
from feedline.system.handle import Handle
from feedline.types import JsonObject

# Any: functions take bytes, and the result is a sample.
Decode = str | Callable[[bytes], Any] | Mapping[str, object] | None
"""How to decode values into samples: see `LMDBDataset`."""

META_KEY = b"__feedline__"
"""The key of the metadata that `feedline pack` writes."""
SUM_BYTES = 4
"""Size of the checksum after each value that `feedline pack` wrote."""
_sum = struct.Struct("<I")
_META_VERSION = 1
_KEYS_VERSION = 1
_KEYS_AT_ONCE = 256
"""Keys to read between two checks for a concurrent writer: about 50 microseconds."""
_WORTH_KEEPING = 100_000
"""Minimum number of keys to cache in the user's cache folder: finding them reads pages all over the file."""
_NO_COLUMNS: list[object] = [[None]]
"""Not a column, so samples are collated one by one instead."""


def key_of(number: int) -> bytes:
    """Return the key that `feedline pack` uses for a sample."""
    return b"%012d" % number


def sum_of(key: bytes, record: bytes | memoryview) -> bytes:
    """Return the checksum of a key and its record, which `feedline pack` writes after the record."""
    return _sum.pack(zlib.crc32(record, zlib.crc32(key)))


class LMDBDataset(TableSource):
    """A dataset whose samples are the values of an LMDB database, in a file or a folder.

    The database is mapped into memory, read-only and without locks. It must not be written at the same time: if
    it is, reading raises SourceChanged. Each process opens it once, when it first needs it. A batch is read in one
    transaction, and arrays are copied from the database's memory straight into the batch.

    A database that `feedline pack` wrote is decoded automatically, into dicts.

    Args:
        path: the file, or the folder with a `data.mdb`.
        fields: for a database that feedline wrote, which fields a sample has, and in what form: a name for the value
            itself, a tuple of names for tuples, a list for dicts. None for a dict of all.
        keys: the keys of the samples, in order, as bytes or strings. None for all keys, in the order of the database.
            These are read once, when `len` is first called or a sample is first read, unless feedline wrote the
            database.
        decode: how to decode values. None decodes a database that feedline wrote, and is the same as "bytes" for
            others. Else a function that takes bytes; `{"dtype": "float32", "shape": (3, 64, 64)}` for values that are
            the memory of an array; or an image decoder of `TarDataset` ("rgb8", "pil", "torchrgb" and others), which
            decodes the image fields of a database that feedline wrote, or every value of others.
        transform: applied to each sample.
        cache: True to cache the keys in the user's cache folder (`$FEEDLINE_CACHE`) if there are 100,000 or more, False
            not to, or a folder to cache them in.

    Raises:
        SourceError: the database is missing; or, when it is opened, it is damaged, truncated or changed.
        BadOption: an option cannot work.
        MissingExtra: the package lmdb is not installed.

    Example:
        >>> import lmdb, numpy as np, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with lmdb.open(folder) as database, database.begin(write=True) as transaction:
        ...     for number in range(3):
        ...         _ = transaction.put(b"%08d" % number, np.full(2, number, np.float32).tobytes())
        >>> dataset = LMDBDataset(folder, decode={"dtype": "float32", "shape": (2,)})
        >>> dataset
        LMDBDataset(3 samples of float32[2])
        >>> dataset[2]
        array([2., 2.], dtype=float32)
        >>> dataset.close()
    """

    _lazy = ("_found",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Fields = None,
        *,
        keys: Iterable[bytes | str] | None = None,
        decode: Decode = None,
        transform: Transform | None = None,
        cache: Cache = True,
    ) -> None:
        super().__init__(transform)
        self.path = checked_path(path)
        if not os.path.exists(self.path):
            raise SourceError(f"There is no LMDB database at {self.path}: no such file or folder.")
        self._keys = None if keys is None else _given(keys)
        self._picture = Picture(decode) if isinstance(decode, str) and decode in SPECS else None
        self._decoder = None if self._picture else _decoder(decode)
        check_fields(fields)
        if fields is not None and self._decoder is not None:
            raise BadOption(
                f"fields={fields!r} only works with feedline's own decoding, which decode={decode!r} replaces. Choose "
                "fields in the decode function, or in a transform."
            )
        self._fields = fields
        self._cache = checked_cache(cache)
        self._found: _Contents | None = None
        """What the database contained when this dataset, in any process, first opened it."""
        self._handle = Handle(functools.partial(acquire, self.path), release, close_inherited=True)
        self._lock = Handle(threading.Lock, bool)

    @contextmanager
    def _using(self) -> Iterator[Environment]:
        """Yield the environment, which stays open in the meantime even if other threads close the dataset."""
        environment = self._handle.get()
        while not retain(environment):
            environment = self._handle.get()
        try:
            yield environment
        finally:
            release(environment)

    def _contents(self, environment: Environment) -> _Contents:
        found = self._found
        if found is None:
            with self._lock.get():
                found = self._found = self._found or self._examined(environment)
        if found.version != environment.version:
            raise SourceChanged(
                f"{self.path} has changed since this dataset first read it (transaction {environment.version} now, "
                f"{found.version} then), so its keys may differ. Create the dataset again."
            )
        return found

    def _examined(self, environment: Environment) -> _Contents:
        with environment.reading() as transaction, calls:
            content, first = transaction.get(META_KEY), transaction.get(key_of(0))
            meta = None if content is None else _Meta.read(bytes(content), self.path)
            if meta is None and self._decoder is None and first is not None and records.is_record(first):
                # For example if the page of the last transaction is damaged, so that LMDB uses the one before.
                raise CorruptSource(
                    f"{self.path} has samples that feedline wrote, but not their metadata: the database is damaged or "
                    f'incomplete. {AGAIN} decode="bytes" returns the raw values.'
                )
        keys: _Numbered | Packed | None = self._keys
        if keys is None and meta is not None:
            count = environment.count() - 1
            if meta.count > count:
                raise CorruptSource(
                    f"{self.path} has {count} samples, but {meta.count} were packed. It is damaged, or was changed by "
                    "another program. Pack it again, or get another copy."
                )
            keys = _Numbered(count) if meta.count == count else None
        if keys is None:
            keys = _read_keys(environment, self._cache)
        compared = Compared(len(keys)) if meta is not None and meta.has_sums else None
        return _Contents(environment.version, keys, self._decoder or self._decoder_for(meta), compared)

    def _decoder_for(self, meta: _Meta | None) -> Decoder:
        if meta is not None:
            form = Form.of(self._fields, meta.texts, self.path)
            pictures = {} if self._picture is None else dict.fromkeys(meta.pictures, self._picture)
            texts = {**meta.texts, **dict.fromkeys(pictures, "picture")}
            return Records(form, [texts[name] for name in form.names], pictures)
        if self._fields is not None:
            raise BadOption(
                f"fields={self._fields!r} names fields, but {self.path} was not written by feedline: its values are "
                "plain bytes. Decode them with decode=."
            )
        return Bytes() if self._picture is None else Function(self._picture)

    def __len__(self) -> int:
        if self._found is not None:
            return len(self._found.keys)
        with self._using() as environment:
            return len(self._contents(environment).keys)

    def _read(self, indices: Indices) -> list[object]:
        return self._with_values(indices, self._samples)

    def _samples(self, decoder: Decoder, values: list[memoryview], keys: list[bytes]) -> list[object]:
        samples = []
        for value, key in zip(values, keys, strict=True):
            try:
                samples.append(decoder.sample(value))
            except CorruptSource as exc:
                raise CorruptSource(
                    f"The value of key {key!r} in {self.path} cannot be decoded: {words(exc)}."
                ) from exc
            except Exception as exc:
                if not isinstance(exc, FeedlineError):
                    add_note(exc, f"while decoding the value of key {key!r} in {self.path}")
                raise
        return samples

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        def columns(decoder: Decoder, values: list[memoryview], keys: list[bytes]) -> list[object]:
            try:
                found = decoder.columns(values, empty)
            except CorruptSource:
                return _NO_COLUMNS  # reading the samples one by one reports the damaged one
            self._has_columns = found is not None
            return _NO_COLUMNS if found is None else found

        return self._with_values(indices, columns)

    def _build(self, values: Sequence[object]) -> object:
        assert self._found is not None  # values have been read
        return self._found.decoder.build(values)

    def _with_values(
        self, indices: Indices, act: Callable[[Decoder, list[memoryview], list[bytes]], list[object]]
    ) -> list[object]:
        """Call `act` with the values of some samples, in one transaction."""
        with self._using() as environment:
            contents = self._contents(environment)
            wanted = [contents.keys.get(index) for index in indices.tolist()]
            with environment.reading() as transaction:
                with calls:
                    values = list(map(transaction.get, wanted))
                if None in values:
                    raise SourceError(
                        f"{self.path} has no key {wanted[values.index(None)]!r} for sample "
                        f"{indices[values.index(None)]}. Check keys=."
                    )
                if contents.compared is not None:
                    values = self._without_sums(contents.compared, indices, values, wanted)
                return act(contents.decoder, values, wanted)

    def _without_sums(
        self, compared: Compared, indices: Indices, values: list[memoryview], keys: list[bytes]
    ) -> list[memoryview]:
        """Verify the checksums of values that were not read before, and return all values without their checksums.

        Raises CorruptSource if one differs.
        """
        if not compared.flags[indices].all():
            for index, value, key in zip(indices.tolist(), values, keys, strict=True):
                if sum_of(key, value[:-SUM_BYTES]) != value[-SUM_BYTES:]:
                    raise damaged(f"Sample {index} (key {key!r}) of {self.path}")
                compared.flags[index] = True
        return [value[:-SUM_BYTES] for value in values]

    def close(self) -> None:
        """Close the database in this process. The next read opens it again."""
        self._handle.close()

    def _form(self) -> str:
        with self._using() as environment:
            return self._contents(environment).decoder.form()


@dataclass(frozen=True)
class _Numbered:
    """The keys of a database that `feedline pack` wrote."""

    count: int

    def __len__(self) -> int:
        return self.count

    def get(self, index: int) -> bytes:
        """Return the key of a sample."""
        return key_of(index)


@dataclass(frozen=True)
class _Contents:
    """What a database contains."""

    version: int
    """The number of its last transaction."""
    keys: _Numbered | Packed
    decoder: Decoder
    compared: Compared | None
    """Flags for samples whose checksum was verified; None if values have no checksums."""


@dataclass(frozen=True)
class _Meta:
    """Metadata of a database that `feedline pack` wrote."""

    count: int
    texts: dict[str, str]
    """A description of each field, for people."""
    pictures: frozenset[str]
    """Fields that hold image files."""
    has_sums: bool
    """True if each value ends with a checksum."""

    @classmethod
    def read(cls, content: bytes, path: str) -> _Meta:
        """Parse the value of `META_KEY`. Raises CorruptSource if it is damaged, or from a later version of feedline."""
        check_seal(path, content, is_own=True)
        try:
            stored: JsonObject = json.loads(content)
            if stored["encoding"] != "record" or stored["feedline"] > _META_VERSION:
                raise CorruptSource(
                    f"{path} was written by a later version of feedline, with samples as {stored['encoding']!r}. "
                    "Install that version to read it."
                )
            texts = {field["name"]: _text(field) for field in stored["fields"]}
            pictures = frozenset(field["name"] for field in stored["fields"] if field.get("extension") in EXTENSIONS)
            return cls(int(stored["count"]), texts, pictures, stored.get("checksum") == KIND)
        except (ValueError, KeyError, TypeError) as exc:
            raise CorruptSource(f"The metadata of {path}, under {META_KEY!r}, is damaged: {exc!r}.") from exc


def _text(field: JsonObject) -> str:
    if not field.get("dtype"):
        return str(field.get("kind", "value"))
    shape = ", ".join("?" if length < 0 else str(length) for length in field.get("shape", ()))
    return f"{np.dtype(field['dtype'])}[{shape}]"


# Any: what the user gives.
def _given(keys: Any) -> Packed:
    """Return the keys that the user listed. Raises BadOption if there are none, or one cannot be a key."""
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise BadOption(f"keys={keys!r} is not a list of keys.")
    listed = list(keys)
    for key in listed:
        if not isinstance(key, (str, bytes)):
            raise BadOption(f"{key!r} in keys= cannot be a key of an LMDB database: keys are bytes or strings.")
    if not listed:
        raise BadOption("keys= is empty, so the dataset would have no samples. Leave it out to use all keys.")
    return Packed([key.encode() if isinstance(key, str) else bytes(key) for key in listed], is_text=False)


def _read_keys(environment: Environment, cache: Cache) -> Packed:
    """Return all keys of a database in order, except feedline's own."""
    status = os.stat(environment.path)
    about = {"version": _KEYS_VERSION, "path": os.path.abspath(environment.path)}
    file = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    stamp = "-".join(map(str, [*file, environment.version, environment.count()]))
    entry = Entry.within(cache, "keys", about, stamp)
    kept = None if entry is None else entry.load(Packed.of_arrays)
    if kept is not None and len(kept) in (environment.count(), environment.count() - 1):  # one may be feedline's own
        return kept
    with environment.reading() as transaction:
        with calls:
            cursor = transaction.cursor()
            own = transaction.get(META_KEY) is not None
        found = (bytes(key) for key in cursor.iternext(keys=True, values=False) if key != META_KEY)
        packed = Packed(_while_unchanged(found, environment), is_text=False)
    if len(packed) + own != environment.count():
        raise CorruptSource(
            f"{environment.path} is damaged: {len(packed) + own} keys were found, but it should have "
            f"{environment.count()}. Write or copy it again."
        )
    if entry is not None and (cache is not True or len(packed) >= _WORTH_KEEPING):
        entry.save(packed.arrays())
    return packed


def _while_unchanged(keys: Iterator[bytes], environment: Environment) -> Iterator[bytes]:
    """Yield keys, checking every few for a concurrent writer: LMDB crashes the process if a page changes under it."""
    while True:
        with calls:
            part = list(itertools.islice(keys, _KEYS_AT_ONCE))
        if not part:
            return
        environment.check_unchanged()
        yield from part


def _decoder(decode: Decode) -> Decoder | None:
    """Return the decoder for `decode=`, or None if it depends on the contents of the database."""
    if decode is None:
        return None
    if decode == "bytes":
        return Bytes()
    if isinstance(decode, Mapping):
        return Raw(decode)
    if callable(decode):
        return Function(decode)
    raise BadOption(
        f'decode={decode!r} is neither "bytes", a function, a dict with dtype and shape, nor an image decoder: '
        f"{', '.join(map(repr, sorted(SPECS)))}."
    )
