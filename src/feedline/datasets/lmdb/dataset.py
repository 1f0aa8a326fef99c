"""Samples in an LMDB database."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from feedline.datasets.cache_file import Cache, checked_cache
from feedline.datasets.form import Fields, Form, check_fields
from feedline.datasets.lmdb import decoding
from feedline.datasets.lmdb.calls import calls
from feedline.datasets.lmdb.decoding import Decoder
from feedline.datasets.lmdb.environment import Environment, acquire, release, retain
from feedline.datasets.lmdb.keys import (
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
from feedline.datasets.paths import checked_path
from feedline.datasets.source import Empty, Indices, TableSource, Transform
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceChanged, SourceError
from feedline.images.pillow import SPECS
from feedline.system.failures import add_note, words
from feedline.system.handle import Handle
from feedline.types import records
from feedline.types.checksums import AGAIN, Compared, damaged

# Any: keys are bytes or strings.
KeySource = Iterable[Any] | Callable[[int], Any] | None
"""Which keys samples have: see `LMDBDataset`."""

# Any: values become what a function makes of them.
Decode = str | Callable[[Any], Any] | Mapping[str, Any] | None
"""How values become samples: see `LMDBDataset`."""


_NO_COLUMNS: list[Any] = [[None]]
"""What no batch can be made of without looking at samples."""


class LMDBDataset(TableSource):
    """A dataset whose samples are the values of an LMDB database, a file or a folder.

    The database is mapped into memory, read-only and without locks: nobody may write to it at the same time, which is
    noticed. It is opened when it is first needed, once in each process. A batch is read in one transaction; arrays go
    from the database's memory straight to where the batch is wanted.

    What `feedline pack` wrote is decoded by itself, into dicts.

    Args:
        path: the file, or the folder with a `data.mdb`.
        fields: which fields a sample has that feedline wrote, and in what form: a name for the value itself, a tuple of
            names for tuples, a list for dicts. None for a dict of all.
        keys: the keys of the samples, in their order; or a function from the index of a sample to its key, which saves
            reading them. None for all keys, in the order of the database: they are read once, when `len` is first
            called or a sample is read, unless feedline wrote them.
        decode: None for what feedline wrote, else the same as "bytes"; a function that takes bytes;
            `{"dtype": "float32", "shape": (3, 64, 64)}` for values that are the memory of an array; or a way to decode
            pictures, of those that `TarDataset` has ("rgb8", "pil", "torchrgb" and others): the fields that are
            pictures of what feedline wrote, or else each value.
        transform: applied to each sample.
        buffers: True to hand a decode function a view of the database's memory instead of a copy. What it returns must
            not look at that memory any more.
        cache: True to keep the keys, 100,000 or more, in the user's cache folder (`$FEEDLINE_CACHE`), False not to, or
            a folder to keep them in.

    Raises:
        SourceError: the database is missing; or, when it is opened, damaged, cut off or changed.
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
                f"buffers=True is for a decode function, but decode={decode!r}. Leave it out: nothing is copied twice."
            )
        if isinstance(keys, (str, bytes)):
            raise BadOption(f"keys={keys!r} is a single key. Give a list of keys, or a function from indices to keys.")
        self._key_function = keys if callable(keys) else None
        self._keys: Keys | None = None if keys is None or callable(keys) else given(keys)
        self._picture = decoding.Picture(decode) if isinstance(decode, str) and decode in SPECS else None
        self._decoder = None if self._picture else _decoder(decode, buffers=buffers)
        self._given = (self._keys, self._decoder)
        if fields is not None and self._decoder is not None:
            raise BadOption(
                f"fields={fields!r} is for samples that feedline wrote, which decode={decode!r} does not read. Choose "
                "fields in the decode function, or in a transform."
            )
        check_fields(fields)
        self._fields = fields
        self._cache = checked_cache(cache)
        self._version: int | None = None
        """Of the database, when this was first opened, in whichever process."""
        self._has_columns = True
        """False when samples turned out to differ in shape."""
        self._has_sums: bool | None = None
        """True if each value ends with a checksum; None if that is not known yet."""
        self._compared = None if self._keys is None else Compared(len(self._keys))
        """Of which samples the checksum was compared."""
        self._handle = Handle(functools.partial(acquire, self.path), release, close_inherited=True)
        self._lock = Handle(threading.Lock, bool)

    @contextmanager
    def _using(self) -> Iterator[Environment]:
        """Give the environment, which stays open in the meantime, whatever other threads do."""
        environment = self._handle.get()
        while not retain(environment):
            environment = self._handle.get()
        try:
            yield environment
        finally:
            release(environment)

    def _prepared(self, environment: Environment) -> tuple[Keys, Decoder]:
        """Return what is found out once: keys, and how values are decoded."""
        if self._version is not None and self._version != environment.version:
            raise SourceChanged(
                f"{self.path} was changed since this dataset looked at it first (transaction {environment.version}, "
                f"then {self._version}): its keys may be others now. Make another dataset."
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
                    # Such as when the page of the last transaction is damaged, so that LMDB takes the one before.
                    raise CorruptSource(
                        f"{self.path} has samples that feedline wrote, but not what it wrote about them: the database "
                        f'is damaged, or was not completed. {AGAIN} decode="bytes" gives values as they are.'
                    )
            if self._decoder is None:
                self._decoder = self._decoder_for(meta)
            keys = self._find_keys(environment, meta) if self._keys is None else self._keys
            has_sums = meta is not None and meta.has_sums
            if has_sums and self._compared is None:
                self._compared = Compared(len(keys))
            self._version = environment.version
            self._has_sums = has_sums
            self._keys = keys  # last, since other threads then read without the lock
            return keys, self._decoder

    def _decoder_for(self, meta: Meta | None) -> Decoder:
        if meta is not None:
            form = Form.of(self._fields, meta.fields, self.path)
            pictures = {} if self._picture is None else dict.fromkeys(meta.pictures, self._picture)
            texts = {**meta.texts, **dict.fromkeys(pictures, "picture")}
            return decoding.Records(form, [texts[name] for name in form.names], pictures)
        if self._fields is not None:
            raise BadOption(
                f"fields={self._fields!r} names fields, but {self.path} was not written by feedline: a value is just "
                "bytes. Say with decode= what they are."
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

    def _read(self, indices: Indices) -> list[Any]:
        return self._with_values(indices, self._samples)

    def _samples(self, decoder: Decoder, values: list[memoryview], keys: list[bytes]) -> list[Any]:
        samples = []
        for value, key in zip(values, keys, strict=True):
            try:
                samples.append(decoder.sample(value))
            except CorruptSource as exc:
                raise CorruptSource(
                    f"The value of key {key!r} in {self.path} is not what it should be: {words(exc)}."
                ) from exc
            except SourceError as exc:
                raise SourceError(f"The value of key {key!r} in {self.path}: {words(exc)}.") from exc
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

    def _read_columns(self, indices: Indices, empty: Empty) -> list[Any]:
        def columns(decoder: Decoder, values: list[memoryview], keys: list[bytes]) -> list[Any]:
            try:
                found = decoder.columns(values, empty)
            except CorruptSource:
                return _NO_COLUMNS  # which one it is comes out when they are read one by one
            self._has_columns = found is not None
            return _NO_COLUMNS if found is None else found

        return self._with_values(indices, columns)

    def _build(self, values: Sequence[Any]) -> Any:
        assert self._decoder is not None  # values have been read
        return self._decoder.build(values)

    def _with_values(
        self, indices: Indices, act: Callable[[Decoder, list[memoryview], list[bytes]], list[Any]]
    ) -> list[Any]:
        """Do something with the values of some samples, in one transaction."""
        with self._using() as environment:
            keys, decoder = self._prepared(environment)
            wanted = [keys.get(index) for index in indices.tolist()]
            with environment.reading() as transaction:
                with calls:
                    values = list(map(transaction.get, wanted))
                if None in values:
                    raise SourceError(
                        f"{self.path} has no key {wanted[values.index(None)]!r}, which sample "
                        f"{indices[values.index(None)]} should have. Look at keys=."
                    )
                if self._has_sums:
                    values = self._without_sums(indices, values, wanted)
                return act(decoder, values, wanted)

    def _without_sums(self, indices: Indices, values: list[memoryview], keys: list[bytes]) -> list[memoryview]:
        """Compare the checksums of values that were not read before, and return values without them.

        Raises CorruptSource: one differs.
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
        """Close the database in this process. It is opened again when a sample is read."""
        self._handle.close()

    def _form(self) -> str:
        with self._using() as environment:
            return self._prepared(environment)[1].form()


def _decoder(decode: Decode, *, buffers: bool) -> Decoder | None:
    """Return the decoder for `decode=`, None if that depends on what is in the database."""
    if callable(decode):
        return decoding.Function(decode, buffers=buffers)
    if isinstance(decode, Mapping):
        return decoding.Raw.of(decode)
    if decode == "bytes":
        return decoding.Bytes()
    if decode is None:
        return None
    raise BadOption(
        f'decode={decode!r} is neither "bytes", a function, nor a dict with dtype and shape, nor a way to decode '
        f"pictures: {', '.join(map(repr, sorted(SPECS)))}."
    )
