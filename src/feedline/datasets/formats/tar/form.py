"""Decodes the bytes of a field by its name, following the rules of the webdataset package.

Two rules are stricter. Pickles are refused unless requested: the author of a pickle can run any code here. And the
decompressed size of a field is limited.
"""

from __future__ import annotations

import functools
import io
import json
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence

from feedline.datasets.formats.tar import arrays
from feedline.datasets.framework.form import Fields, Form, check_fields, names_in
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceError
from feedline.images.pillow import EXTENSIONS, SPECS, picture_decoder
from feedline.system.failures import add_note
from feedline.system.optional import require
from feedline.system.sizes import SampleSize

Handler = Callable[[str, bytes], object]
"""Takes the name of a field, with a leading dot, and its bytes; returns the value, or None to pass it on to others."""
Decode = bool | str | Handler | Sequence[str | Handler]

_Step = Callable[[bytes, SampleSize], object]
"""Takes the bytes of a field, and the decompressed size of its sample so far."""
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
"""The kind of a field, by the end of its name."""
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
    """Decompress gzip, including several streams in a row. Raises CorruptSource: the sample becomes too large."""
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
        decode: True to decode by field name; False for undecoded bytes; the name of a way to decode images, a function,
            or several of them, which take precedence over field names.
        trusts_pickle: True to decode pickles.
        limit: the most bytes that the fields of a sample may have once decompressed.
    """

    def __init__(self, decode: Decode, *, trusts_pickle: bool, limit: int) -> None:
        self._decode = decode
        self.goes_by_name = decode is True
        self._trusts_pickle = trusts_pickle
        self.total = functools.partial(SampleSize, limit, "max_field_bytes=")
        """Returns a new size counter for a sample."""
        given: Sequence[str | Handler] = (
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
        """How to decode each field, by name; determined once."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_steps": {}}

    def field(self, sample: Mapping[str, object], field: str, total: SampleSize) -> object:
        """Return the value of a field of a sample; `total` counts the sample's decompressed size so far.

        Raises CorruptSource: the bytes do not match the name; BadOption: it is a pickle.
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
            # A warning turned into an error is not about the bytes.
            if isinstance(exc, (FeedlineError, Warning)) and not isinstance(exc, CorruptSource):
                add_note(exc, f"About {where}.")
                raise
            raise CorruptSource(
                f"{where} cannot be decoded: {type(exc).__name__}: {str(exc).rstrip('.')}. Its bytes are not what "
                "its name says, or are damaged. decode=False gives them as they are."
            ) from exc

    def _step_for(self, field: str) -> _Step:
        """Return how to decode a field: decompress it, try the given functions, and finally decode by name."""
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

        def decode(data: bytes, total: SampleSize) -> object:
            if packed:
                data = _unpacked(data, total)
            for step in steps:
                value = step(data, total)
                if value is not None:
                    return value
            return data

        return decode

    def _given_step(self, one: str | Handler, name: str, extension: str) -> _Step | None:
        if isinstance(one, str):
            return picture_decoder(one) if extension in EXTENSIONS else None

        def ask(data: bytes, total: SampleSize) -> object:
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

    def _unpickle(self, data: bytes, total: SampleSize) -> object:
        if not self._trusts_pickle:
            raise BadOption(
                "A field is a pickle, which can run any code when it is decoded. Pass pickle=True if you trust its "
                "author, fields= without it, or decode=False for its bytes."
            )
        return pickle.loads(data)

    def _load_torch(self, data: bytes, total: SampleSize) -> object:
        torch = require("torch", extra="torch", purpose="decoding .pth")
        if zipfile.is_zipfile(io.BytesIO(data)):  # torch decompresses members, though it compresses none
            arrays.unpackable(data, total).close()
        version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])  # handles "2.10.0a0+git1234"
        if not self._trusts_pickle and version < _SAFE_TORCH:
            raise BadOption(
                f"A field is a .pth, which torch {torch.__version__} cannot load safely: before version "
                f"{'.'.join(map(str, _SAFE_TORCH))}, a .pth can run code even with weights_only. Upgrade torch, "
                "pass pickle=True if you trust its author, fields= without it, or decode=False for its bytes."
            )
        return torch.load(io.BytesIO(data), weights_only=not self._trusts_pickle, map_location="cpu")


def kind_of_field(name: str) -> str:
    """Return the kind of a field by its name, if columns can be made of it; "other" if not.

    Example:
        >>> kind_of_field("image.npy"), kind_of_field("cls"), kind_of_field("json")
        ('npy', 'int', 'other')
    """
    if name in ("__key__", "__url__"):
        return "own"
    kind = "other" if name.startswith("__") else _KINDS.get(name.rpartition(".")[2], "bytes")
    return kind if kind in ("npy", "int", "text", "bytes") else "other"


class _OfUser(Exception):
    """Carries an exception of a user's function to where it is re-raised unchanged."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _meta(data: bytes, total: SampleSize) -> object:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


_OWN = ("__key__", "__url__")


class TarForm:
    """Builds samples from the contents of shards.

    Args:
        fields: as for all sources. A name may list several, separated by `;`: the first that a sample has is used. None
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
        """The fields to read; None for all."""
        if self._form is None:
            return None
        return frozenset(name for names in self._names for name in names if name not in _OWN)

    def check(self, available: list[str], store: str) -> None:
        """Raise BadOption if no sample has one of the fields."""
        for names in self._names:
            if not any(name in available or name in _OWN for name in names):
                raise BadOption(
                    f"fields={self.fields!r} names {';'.join(names)!r}, but samples in {store} have {available}."
                )

    def columns(self) -> list[tuple[str, str]] | None:
        """Return name and kind of each field, if making a batch from columns is possible and worthwhile.

        Kinds are "npy", "int", "text", "bytes" and "own", for `__key__` and `__url__`.
        """
        if self._form is None or not self._decoder.goes_by_name:
            return None
        found = [(names[0], kind_of_field(names[0])) for names in self._names if len(names) == 1]
        if len(found) < len(self._names) or not any(kind == "npy" for _, kind in found):
            return None
        return None if any(kind == "other" for _, kind in found) else found

    def join(self, columns: list[object]) -> object:
        """Combine columns in the form of a sample."""
        assert self._form is not None
        return self._form.build(columns)

    def build(self, data: dict[str, object], names_there: Collection[str] = ()) -> object:
        """Return the sample whose bytes are in `data`.

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
