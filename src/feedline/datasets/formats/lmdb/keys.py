"""The keys of a database, the key of each sample, and the metadata that `feedline pack` stores about its samples."""

from __future__ import annotations

import itertools
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from feedline.datasets.formats.lmdb.calls import calls
from feedline.datasets.formats.lmdb.environment import Environment
from feedline.datasets.framework.checksums import KIND, check_seal
from feedline.datasets.framework.store import Cache, Entry
from feedline.errors import BadOption, CorruptSource
from feedline.images.pillow import EXTENSIONS
from feedline.memory.sharing.packed import Packed
from feedline.types import JsonObject

META_KEY = b"__feedline__"
_META_VERSION = 1
_VERSION = 1
_KEYS_AT_ONCE = 256
"""Keys to read between two checks for a concurrent writer: about 50 microseconds."""
_WORTH_KEEPING = 100_000
"""Minimum number of keys to cache in the user's cache folder: finding them reads pages all over the file."""


def key_of(number: int) -> bytes:
    """Return the key that `feedline pack` uses for a sample."""
    return b"%012d" % number


SUM_BYTES = 4
"""Size of the checksum after each value that `feedline pack` wrote."""
_sum = struct.Struct("<I")


def sum_of(key: bytes, record: bytes | memoryview) -> bytes:
    """Return the checksum of a key and its record, which `feedline pack` writes after the record."""
    return _sum.pack(zlib.crc32(record, zlib.crc32(key)))


@dataclass(frozen=True)
class Computed:
    """Keys computed by a function, the user's or `key_of`, and not stored."""

    count: int
    function: Callable[[int], object]

    def __len__(self) -> int:
        return self.count

    def get(self, index: int) -> bytes:
        """Return the key of a sample."""
        return as_key(self.function(index))


Keys = Computed | Packed


# object, throughout: keys are bytes, strings or numbers.
def given(keys: Iterable[object]) -> Packed:
    """Return the keys that the user listed. Raises BadOption if there are none, or one cannot be a key."""
    listed = keys.tolist() if isinstance(keys, np.ndarray) else keys
    packed = Packed([as_key(key) for key in listed], is_text=False)
    if not len(packed):
        raise BadOption("keys= is empty, so the dataset would have no samples. Leave it out to use all keys.")
    return packed


def as_key(key: object) -> bytes:
    """Convert a key from the user to bytes; strings are encoded as UTF-8."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    raise BadOption(
        f"{key!r} cannot be a key of an LMDB database: keys are bytes or strings. If the keys are formatted numbers, "
        'format them the same way: keys=lambda index: f"{index:08d}".'
    )


def _while_unchanged(keys: Iterator[bytes], environment: Environment) -> Iterator[bytes]:
    """Yield keys, checking every few for a concurrent writer: LMDB crashes the process if a page changes under it."""
    while True:
        with calls:
            part = list(itertools.islice(keys, _KEYS_AT_ONCE))
        if not part:
            return
        environment.check_unchanged()
        yield from part


def read_keys(environment: Environment, cache: Cache) -> Packed:
    """Return all keys of a database in order, except feedline's own."""
    status = os.stat(environment.path)
    about = {
        "version": _VERSION,
        "path": os.path.abspath(environment.path),
        "file": [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns],
        "transaction": environment.version,
        "count": environment.count(),
    }
    file = Entry.within(cache, "keys", about)
    kept = None if file is None else file.load(Packed.of_arrays)
    if kept is not None and len(kept) in (environment.count(), environment.count() - 1):  # one may be feedline's own
        return kept
    with environment.reading() as transaction:
        with calls:
            cursor = transaction.cursor()
        found = (bytes(key) for key in cursor.iternext(keys=True, values=False) if key != META_KEY)
        packed = Packed(_while_unchanged(found, environment), is_text=False)
        with calls:
            own = transaction.get(META_KEY) is not None
    if len(packed) + own != environment.count():
        raise CorruptSource(
            f"{environment.path} is damaged: {len(packed) + own} keys were found, but it should have "
            f"{environment.count()}. Write or copy it again."
        )
    if file is not None and (cache is not True or len(packed) >= _WORTH_KEEPING):
        file.save(packed.arrays())
    return packed


@dataclass(frozen=True)
class Meta:
    """Metadata of a database that `feedline pack` wrote."""

    count: int
    fields: tuple[str, ...]
    texts: dict[str, str]
    """A description of each field, for people."""
    pictures: frozenset[str]
    """Fields that hold image files."""
    has_sums: bool
    """True if each value ends with a checksum."""

    @classmethod
    def read(cls, content: bytes, path: str) -> Meta:
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
            return cls(int(stored["count"]), tuple(texts), texts, pictures, stored.get("checksum") == KIND)
        except (ValueError, KeyError, TypeError) as exc:
            raise CorruptSource(f"The metadata of {path}, under {META_KEY!r}, is damaged: {exc!r}.") from exc


def _text(field: JsonObject) -> str:
    if not field.get("dtype"):
        return str(field.get("kind", "value"))
    shape = ", ".join("?" if length < 0 else str(length) for length in field.get("shape", ()))
    return f"{np.dtype(field['dtype'])}[{shape}]"
