"""What becomes of the bytes of a field, by its name: the rules of the webdataset package.

Two things are stricter. Pickles are refused unless they are asked for: whoever wrote one can have any code run here.
And what a compressed field may unpack to is bounded.
"""

from __future__ import annotations

import functools
import io
import json
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from feedline.datasets.form import Fields, Form, check_fields, names_in
from feedline.datasets.tar import arrays
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceError
from feedline.images.pillow import EXTENSIONS, SPECS, picture_decoder
from feedline.system.failures import add_note
from feedline.system.optional import require
from feedline.types.sizes import SampleSize

# Any, throughout: values are whatever was stored.
Handler = Callable[[str, bytes], Any]
"""Takes the name of a field, with a dot before it, and its bytes; returns the value, or None to leave it to others."""
Decode = bool | str | Handler | Sequence[str | Handler]

_Step = Callable[[bytes, SampleSize], Any]
"""Takes the bytes of a field, and what its sample has unpacked to so far."""
# fmt: off
_KINDS = {
    extension: kind
    for kind, extensions in {
        "text": "txt text transcript", "int": "cls cls2 index inx id", "npy": "npy", "npz": "npz", "json": "json jsn",
        "ten": "ten tb", "msgpack": "mp msg", "cbor": "cbor", "torch": "pth", "pickle": "pkl pickle pyd", "gz": "gz",
    }.items()
    for extension in extensions.split()
}
# fmt: on
"""What a field holds, by the end of its name."""
_PLAIN: dict[str, _Step] = {
    "text": lambda data, total: data.decode("utf-8"),
    "int": lambda data, total: int(data),
    "npy": lambda data, total: arrays.decode_npy(data),
    "npz": arrays.decode_npz,
    "json": lambda data, total: json.loads(data),
    "ten": lambda data, total: arrays.decode_ten(data),
}
_SAFE_TORCH = (2, 10)
"""The first version whose `torch.load(weights_only=True)` has no known hole (CVE-2025-32434, CVE-2026-24747)."""


def _unpacked(data: bytes, total: SampleSize) -> bytes:
    """Unpack gzip, also several in a row; CorruptSource beyond what the sample may have."""
    pieces: list[bytes] = []
    while data:
        unpacker = zlib.decompressobj(31)
        piece = unpacker.decompress(data, total.left + 1)
        total.add("what is unpacked", len(piece))
        if not unpacker.eof:
            raise ValueError("it is cut off")
        pieces.append(piece)
        data = unpacker.unused_data.lstrip(b"\0")
    return b"".join(pieces)


class Decoder:
    """Decodes the fields of samples.

    Args:
        decode: True for what field names say; False for bytes as they are; the name of a way to decode images, a
            function, or several of them, which come before what names say.
        trusts_pickle: True to decode pickles.
        limit: the most bytes that the fields of a sample may unpack to.
    """

    def __init__(self, decode: Decode, *, trusts_pickle: bool, limit: int) -> None:
        self._decode = decode
        self.goes_by_name = decode is True
        self._trusts_pickle = trusts_pickle
        self.total = functools.partial(SampleSize, limit, "max_field_bytes=")
        """Returns what a sample has unpacked to before any of its fields is decoded."""
        given: Sequence[Any] = (
            [] if isinstance(decode, bool) else [decode] if isinstance(decode, str) or callable(decode) else decode
        )
        for one in given if isinstance(given, (list, tuple)) else [decode]:
            if not callable(one) and not (isinstance(one, str) and one in SPECS):
                raise BadOption(
                    f"decode={one!r} is not one of True, False, a function that takes the name of a field and its "
                    f"bytes, and {', '.join(map(repr, sorted(SPECS)))}."
                )
        self._given = list(given)
        self._steps: dict[str, _Step] = {}
        """What is done with a field, by its name; found out once."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_steps": {}}

    def field(self, sample: dict[str, Any], field: str, total: SampleSize) -> Any:
        """Return the value of a field of a sample, which has unpacked to `total` so far.

        Raises CorruptSource: the bytes are not what the name says; BadOption: it is a pickle.
        """
        data = sample[field]
        if self._decode is False or not isinstance(data, bytes):
            return data
        step = self._steps.get(field)
        try:
            if step is None:
                step = self._steps[field] = self._step_for(field)
            return step(data, total)
        except Exception as exc:
            where = f"{sample['__url__']}: field {field!r} of sample {sample['__key__']!r}"
            if isinstance(exc, _OfUser):
                add_note(exc.reason, f"About {where}.")
                raise exc.reason from exc.reason.__cause__
            # A warning that was made an error is none about the bytes.
            if isinstance(exc, (FeedlineError, Warning)) and not isinstance(exc, CorruptSource):
                add_note(exc, f"About {where}.")
                raise
            raise CorruptSource(
                f"{where} cannot be decoded: {type(exc).__name__}: {str(exc).rstrip('.')}. Its bytes are not what "
                "its name says, or are damaged. decode=False gives them as they are."
            ) from exc

    def _step_for(self, field: str) -> _Step:
        """Return what is to be done with a field: unpack it, ask functions, and at last do what its name says."""
        if field.startswith("__"):
            return _meta
        packed = f".{field}".endswith(".gz")
        name = f".{field}"[:-3] if packed else f".{field}"
        extension = name.rpartition(".")[2]
        steps = [step for one in self._given if (step := self._given_step(one, name, extension)) is not None]
        basic = self._basic(extension)
        if basic is not None:
            steps.append(basic)
        if len(steps) == 1 and not packed:
            (only,) = steps
            return lambda data, total: data if (value := only(data, total)) is None else value

        def decode(data: bytes, total: SampleSize) -> Any:
            if packed:
                data = _unpacked(data, total)
            for step in steps:
                value = step(data, total)
                if value is not None:
                    return value
            return data

        return decode

    def _given_step(self, one: Any, name: str, extension: str) -> _Step | None:
        if isinstance(one, str):
            return picture_decoder(one) if extension in EXTENSIONS else None

        def ask(data: bytes, total: SampleSize) -> Any:
            try:
                return one(name, data)
            except Exception as exc:
                raise _OfUser(exc) from exc

        return ask

    def _basic(self, extension: str) -> _Step | None:
        kind = _KINDS.get(extension, "")
        if kind == "msgpack":
            unpack = require("msgpack", extra="tar", purpose=f"decoding .{extension}").unpackb
            return lambda data, total: unpack(data)
        if kind == "cbor":
            load = require("cbor2", extra="tar", purpose="decoding .cbor").loads
            return lambda data, total: load(data)
        return {**_PLAIN, "pickle": self._unpickle, "torch": self._load_torch}.get(kind)

    def _unpickle(self, data: bytes, total: SampleSize) -> Any:
        if not self._trusts_pickle:
            raise BadOption(
                "A field is a pickle, and whoever wrote it can have any code run where it is decoded. Give pickle=True "
                "if you trust them, fields= without it, or decode=False for its bytes."
            )
        return pickle.loads(data)

    def _load_torch(self, data: bytes, total: SampleSize) -> Any:
        torch = require("torch", extra="torch", purpose="decoding .pth")
        if zipfile.is_zipfile(io.BytesIO(data)):  # torch unpacks compressed members, although it writes none
            arrays.unpackable(data, total).close()
        version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])  # of "2.10.0a0+git1234", say
        if not self._trusts_pickle and version < _SAFE_TORCH:
            raise BadOption(
                f"A field is a .pth, which torch {torch.__version__} cannot load safely: before version "
                f"{'.'.join(map(str, _SAFE_TORCH))}, whoever wrote one can have code run even with weights_only. "
                "Upgrade torch, give pickle=True if you trust them, fields= without it, or decode=False for its bytes."
            )
        return torch.load(io.BytesIO(data), weights_only=not self._trusts_pickle, map_location="cpu")


def kind_of_field(name: str) -> str:
    """Return what a field holds, by its name, as far as columns can be made of it; "other" if not.

    Example:
        >>> kind_of_field("image.npy"), kind_of_field("cls"), kind_of_field("json")
        ('npy', 'int', 'other')
    """
    if name in ("__key__", "__url__"):
        return "own"
    kind = "other" if name.startswith("__") else _KINDS.get(name.rpartition(".")[2], "bytes")
    return kind if kind in ("npy", "int", "text", "bytes") else "other"


class _OfUser(Exception):
    """Carries an exception of a user's function to where it is raised as itself."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _meta(data: bytes, total: SampleSize) -> Any:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


_OWN = ("__key__", "__url__")


class TarForm:
    """Makes samples of what stands in shards.

    Args:
        fields: as for all sources. A name may be several, separated by `;`: the first that a sample has is taken. None
            for a dict of all fields that a sample has, with `__key__` and `__url__`.
        decoder: decodes fields.
    """

    def __init__(self, fields: Fields, decoder: Decoder) -> None:
        self.fields = fields
        self._decoder = decoder
        self._form: Form | None = None
        self._names: list[tuple[str, ...]] = []
        check_fields(fields)
        named = names_in(fields)
        if named is not None:
            if not all(isinstance(name, str) for name in named):
                raise BadOption(f"fields={fields!r} is not a name, several of them, or a dict from names to names.")
            self._form = Form.of(fields, named, "the shards")
            self._names = [tuple(name.split(";")) for name in self._form.names]

    @property
    def wanted(self) -> frozenset[str] | None:
        """The fields that have to be read; None for all."""
        if self._form is None:
            return None
        return frozenset(name for names in self._names for name in names if name not in _OWN)

    def check(self, available: list[str], store: str) -> None:
        """Raise BadOption if no sample at all has one of the fields."""
        for names in self._names:
            if not any(name in available or name in _OWN for name in names):
                raise BadOption(
                    f"fields={self.fields!r} names {';'.join(names)!r}, but samples in {store} have {available}."
                )

    def columns(self) -> list[tuple[str, str]] | None:
        """Return name and kind of each field, if a batch can be made of them as columns and that is worth it.

        Kinds are "npy", "int", "text", "bytes" and "own", for `__key__` and `__url__`.
        """
        if self._form is None or not self._decoder.goes_by_name:
            return None
        found = [(names[0], kind_of_field(names[0])) for names in self._names if len(names) == 1]
        if len(found) < len(self._names) or not any(kind == "npy" for _, kind in found):
            return None
        return None if any(kind == "other" for _, kind in found) else found

    def join(self, columns: list[Any]) -> Any:
        """Put columns together as a sample's values are."""
        assert self._form is not None
        return self._form.build(columns)

    def build(self, data: dict[str, Any], names_there: Collection[str] = ()) -> Any:
        """Return the sample that `data` holds the bytes of.

        Raises SourceError: it lacks a field; CorruptSource: a field cannot be decoded.
        """
        decode, total = self._decoder.field, self._decoder.total()
        if self._form is None:
            return {name: decode(data, name, total) for name in data}
        values = []
        for names in self._names:
            for name in names:
                if name in data:
                    values.append(decode(data, name, total))
                    break
            else:
                found = ", ".join(sorted({*data, *names_there} - {*_OWN})) or "none of those asked for"
                raise SourceError(
                    f"{data['__url__']}: sample {data['__key__']!r} has no field {' or '.join(names)}; it has {found}. "
                    "Name alternatives as 'jpg;png', leave the field out of fields=, or correct the shard."
                )
        return self._form.build(values)

    def __repr__(self) -> str:
        if self._form is None:
            return "a dict of all fields"
        return self._form.describe([";".join(names) for names in self._names])
