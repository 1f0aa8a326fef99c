"""Samples in an LMDB database."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from feedline.datasets.formats.lmdb import decoding
from feedline.datasets.formats.lmdb.calls import calls
from feedline.datasets.formats.lmdb.decoding import Decoder
from feedline.datasets.formats.lmdb.environment import Environment, acquire, release, retain
from feedline.datasets.formats.lmdb.keys import (
    META_KEY,
    SUM_BYTES,
    Computed,
    Keys,
    Meta,
    given,
    key_of,
    read_keys,
    sum_of,
)
from feedline.datasets.framework.checksums import AGAIN, Compared, damaged
from feedline.datasets.framework.form import Fields, Form, check_fields
from feedline.datasets.framework.paths import checked_path
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform
from feedline.datasets.framework.store import Cache, checked_cache
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceChanged, SourceError
from feedline.images.pillow import SPECS
from feedline.memory.sharing import records
from feedline.system.failures import add_note, words
from feedline.system.handle import Handle

KeySource = Iterable[bytes | str] | Callable[[int], object] | None
"""The keys of the samples: see `LMDBDataset`."""

# Any: functions take bytes, or a view of them.
Decode = str | Callable[[Any], object] | Mapping[str, object] | None
"""How to decode values into samples: see `LMDBDataset`."""


_NO_COLUMNS: list[object] = [[None]]
"""Not a column, so samples are collated one by one instead."""


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
        keys: the keys of the samples, in order; or a function from the index of a sample to its key, which saves
            reading the keys. None for all keys, in the order of the database. These are read once, when `len` is first
            called or a sample is first read, unless feedline wrote the database.
        decode: how to decode values. None decodes a database that feedline wrote, and is the same as "bytes" for
            others. Else a function that takes bytes; `{"dtype": "float32", "shape": (3, 64, 64)}` for values that are
            the memory of an array; or an image decoder of `TarDataset` ("rgb8", "pil", "torchrgb" and others), which
            decodes the image fields of a database that feedline wrote, or every value of others.
        transform: applied to each sample.
        buffers: True to pass the decode function a view of the database's memory instead of a copy. Its result must not
            refer to that memory.
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

    _lazy = ("_keys", "_decoder", "_version", "_has_columns", "_has_sums", "_compared")

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Fields = None,
        *,
        keys: KeySource = None,
        decode: Decode = None,
        transform: Transform | None = None,
        buffers: bool = False,
        cache: Cache = True,
    ) -> None:
        super().__init__(transform)
        self.path = checked_path(path)
        if not os.path.exists(self.path):
            raise SourceError(f"There is no LMDB database at {self.path}: no such file or folder.")
        if buffers and not callable(decode):
            raise BadOption(
                f"buffers=True needs a decode function, but decode={decode!r}. Leave it out: nothing is copied twice."
            )
        if isinstance(keys, (str, bytes)):
            raise BadOption(f"keys={keys!r} is a single key. Pass a list of keys, or a function from indices to keys.")
        self._key_function = keys if callable(keys) else None
        self._keys: Keys | None = None if keys is None or callable(keys) else given(keys)
        self._picture = decoding.Picture(decode) if isinstance(decode, str) and decode in SPECS else None
        self._decoder = None if self._picture else _decoder(decode, buffers=buffers)
        self._given = (self._keys, self._decoder)
        if fields is not None and self._decoder is not None:
            raise BadOption(
                f"fields={fields!r} only works with feedline's own decoding, which decode={decode!r} replaces. Choose "
                "fields in the decode function, or in a transform."
            )
        check_fields(fields)
        self._fields = fields
        self._cache = checked_cache(cache)
        self._version: int | None = None
        """The last transaction when this dataset, in any process, first opened the database."""
        self._has_columns = True
        """False once samples turned out to differ in shape."""
        self._has_sums: bool | None = None
        """True if each value ends with a checksum; None if not known yet."""
        self._compared = None if self._keys is None else Compared(len(self._keys))
        """Flags for samples whose checksum was verified."""
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

    def _prepared(self, environment: Environment) -> tuple[Keys, Decoder]:
        """Return the keys and the decoder, which are determined once."""
        if self._version is not None and self._version != environment.version:
            raise SourceChanged(
                f"{self.path} has changed since this dataset first read it (transaction {environment.version} now, "
                f"{self._version} then), so its keys may differ. Create the dataset again."
            )
        if self._has_sums is not None and self._keys is not None and self._decoder is not None:
            self._version = environment.version
            return self._keys, self._decoder
        with self._lock.get():
            with environment.reading() as transaction:
                with calls:
                    content, first = transaction.get(META_KEY), transaction.get(key_of(0))
                meta = None if content is None else Meta.read(bytes(content), self.path)
                if meta is None and self._decoder is None and first is not None and records.is_record(first):
                    # For example if the page of the last transaction is damaged, so that LMDB uses the one before.
                    raise CorruptSource(
                        f"{self.path} has samples that feedline wrote, but not their metadata: the database is "
                        f'damaged or incomplete. {AGAIN} decode="bytes" returns the raw values.'
                    )
            if self._decoder is None:
                self._decoder = self._decoder_for(meta)
            keys = self._find_keys(environment, meta) if self._keys is None else self._keys
            has_sums = meta is not None and meta.has_sums
            if has_sums and self._compared is None:
                self._compared = Compared(len(keys))
            self._version = environment.version
            self._has_sums = has_sums
            self._keys = keys  # last, because other threads read without the lock once it is set
            return keys, self._decoder

    def _decoder_for(self, meta: Meta | None) -> Decoder:
        if meta is not None:
            form = Form.of(self._fields, meta.fields, self.path)
            pictures = {} if self._picture is None else dict.fromkeys(meta.pictures, self._picture)
            texts = {**meta.texts, **dict.fromkeys(pictures, "picture")}
            return decoding.Records(form, [texts[name] for name in form.names], pictures)
        if self._fields is not None:
            raise BadOption(
                f"fields={self._fields!r} names fields, but {self.path} was not written by feedline: its values are "
                "plain bytes. Decode them with decode=."
            )
        return decoding.Bytes() if self._picture is None else decoding.Function(self._picture)

    def _find_keys(self, environment: Environment, meta: Meta | None) -> Keys:
        count = environment.count() - (0 if meta is None else 1)
        if self._key_function is not None:
            return Computed(count, self._key_function)
        if meta is not None:
            if meta.count > count:
                raise CorruptSource(
                    f"{self.path} has {count} samples, but {meta.count} were packed. It is damaged, or was changed by "
                    "another program. Pack it again, or get another copy."
                )
            if meta.count == count:
                return Computed(count, key_of)
        return read_keys(environment, self._cache)

    def __len__(self) -> int:
        if self._keys is None:
            with self._using() as environment:
                return len(self._prepared(environment)[0])
        return len(self._keys)

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
            except SourceError as exc:
                raise SourceError(f"Decoding the value of key {key!r} in {self.path} failed: {words(exc)}.") from exc
            except Exception as exc:
                if not isinstance(exc, FeedlineError):
                    add_note(exc, f"while decoding the value of key {key!r} in {self.path}")
                raise
        return samples

    def read_columns(self, indices: Indices) -> Any:
        if self._has_columns:
            return super().read_columns(indices)
        self._checked(indices)
        return None

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
        assert self._decoder is not None  # values have been read
        return self._decoder.build(values)

    def _with_values(
        self, indices: Indices, act: Callable[[Decoder, list[memoryview], list[bytes]], list[object]]
    ) -> list[object]:
        """Call `act` with the values of some samples, in one transaction."""
        with self._using() as environment:
            keys, decoder = self._prepared(environment)
            wanted = [keys.get(index) for index in indices.tolist()]
            with environment.reading() as transaction:
                with calls:
                    values = list(map(transaction.get, wanted))
                if None in values:
                    raise SourceError(
                        f"{self.path} has no key {wanted[values.index(None)]!r} for sample "
                        f"{indices[values.index(None)]}. Check keys=."
                    )
                if self._has_sums:
                    values = self._without_sums(indices, values, wanted)
                return act(decoder, values, wanted)

    def _without_sums(self, indices: Indices, values: list[memoryview], keys: list[bytes]) -> list[memoryview]:
        """Verify the checksums of values that were not read before, and return all values without their checksums.

        Raises CorruptSource if one differs.
        """
        assert self._compared is not None  # there are checksums
        compared = self._compared.flags
        if not compared[indices].all():
            for index, value, key in zip(indices.tolist(), values, keys, strict=True):
                if sum_of(key, value[:-SUM_BYTES]) != value[-SUM_BYTES:]:
                    raise damaged(f"Sample {index} (key {key!r}) of {self.path}")
                compared[index] = True
        return [value[:-SUM_BYTES] for value in values]

    def close(self) -> None:
        """Close the database in this process. The next read opens it again."""
        self._handle.close()

    def _form(self) -> str:
        with self._using() as environment:
            return self._prepared(environment)[1].form()


def _decoder(decode: Decode, *, buffers: bool) -> Decoder | None:
    """Return the decoder for `decode=`, or None if it depends on the contents of the database."""
    if callable(decode):
        return decoding.Function(decode, buffers=buffers)
    if isinstance(decode, Mapping):
        return decoding.Raw.of(decode)
    if decode == "bytes":
        return decoding.Bytes()
    if decode is None:
        return None
    raise BadOption(
        f'decode={decode!r} is neither "bytes", a function, a dict with dtype and shape, nor an image decoder: '
        f"{', '.join(map(repr, sorted(SPECS)))}."
    )
