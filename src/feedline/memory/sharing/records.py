"""Samples as bytes, without pickle: what feedline writes into databases, caches and shared memory.

A record is a JSON header that describes the sample, followed by the buffers of its arrays and bytes. Reading a record
runs no code and copies nothing: arrays are views of the record's memory.

    b"FDL1" | length of the header, 4 bytes, little-endian | header | padding to 8 | buffers, each padded to 8

In the header, a value that JSON supports stands for itself; anything else is a list of a letter and its parts. Numbers
and strings that are fields of a sample are stored as buffers too. This makes the headers of a dataset alike, so a
parsed header can be reused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource, MissingExtra
from feedline.system.optional import is_tensor, require

MAGIC = b"FDL1"
_ALIGN = 8
_SHORT_BYTES = 512
"""Parsed headers up to this length are cached."""
_REMEMBERED = 1024
"""Cache size. A guess: a dataset has a few headers, or one for every sample, where caching does not help."""
_FIELDS = 32
"""A dict or tuple with more values than this is treated as many numbers, not as a sample with fields."""
_PLAIN = (str, bool, type(None))
_INTEGER, _FLOAT = struct.Struct("<q"), struct.Struct("<d")

Buffer = bytes | bytearray | memoryview


class NotARecord(TypeError):
    """A sample holds a value that a record cannot represent."""


# Any, throughout: a sample of any form.
def encode(sample: Any) -> bytes:
    """Return a sample as a record.

    Samples are dicts with string keys, lists, tuples, strings, bytes, numbers, None, NumPy arrays and scalars, and
    torch tensors, nested in any way.

    Raises:
        NotARecord: it holds something else.

    Example:
        >>> import numpy as np
        >>> decode(encode({"x": np.arange(3), "name": "a", "label": 7}))
        {'x': array([0, 1, 2]), 'name': 'a', 'label': 7}
    """
    buffers: list[Any] = []
    header = json.dumps(_described(sample, buffers, ()), separators=(",", ":"), allow_nan=False).encode()
    parts: list[Any] = [MAGIC, struct.pack("<I", len(header)), header, _padding(len(MAGIC) + 4 + len(header))]
    for buffer in buffers:
        parts += (buffer, _padding(len(buffer)))
    return b"".join(parts)


def decode(record: Buffer | NDArray[np.uint8], *, copy: bool = False, owned: bool = False) -> Any:
    """Return the sample of a record; its arrays are read-only views of the record's memory, its tensors are copies.

    Args:
        record: what `encode` returned.
        copy: True to give arrays their own, writable memory.
        owned: True if nothing else uses the record's memory, so arrays in it may be writable.

    Raises:
        CorruptSource: the bytes are not a record, or an incomplete one.
    """
    view = memoryview(record).cast("B")  # type: ignore[arg-type]  # arrays have the buffer protocol, too
    if len(view) < 8 or not is_record(view):
        raise CorruptSource(
            f"{len(view)} bytes that begin with {bytes(view[:8])!r} are not a feedline record. They were written by "
            "another program, or damaged."
        )
    (length,) = struct.unpack_from("<I", view, 4)
    try:
        if 8 + length > len(view):
            raise ValueError(f"{8 + length - len(view)} bytes of its header are missing")
        text = bytes(view[8 : 8 + length])
        header, flat = _known_header(text) if length <= _SHORT_BYTES else (json.loads(text), None)
        if flat is not None and flat.stop <= len(view):
            return flat.read(view, copy=copy, owned=owned)
        reader = _Reader(view, 8 + length + -length % _ALIGN, copy=copy, owned=owned)
        return reader.read(header)
    except MissingExtra:
        raise
    except Exception as exc:  # errors of NumPy, JSON and torch on damaged bytes, including SyntaxError
        raise CorruptSource(f"A record of {len(view)} bytes is damaged or cut off: {str(exc).rstrip('.')}.") from exc


def is_record(data: Buffer) -> bool:
    """True if the bytes begin like a record."""
    return bytes(data[:4]) == MAGIC


_known: dict[bytes, tuple[object, _Flat | None]] = {}
"""Headers seen before, and how to read the data after them in one go. Reading does not change them."""
_once: dict[bytes, None] = {}
"""Headers seen once: working out how to read them in one go pays off from the second time on."""


def _known_header(text: bytes) -> tuple[object, _Flat | None]:
    found = _known.get(text)
    if found is not None:
        return found
    header = json.loads(text)
    seen = _known if text in _once else _once
    if len(seen) >= _REMEMBERED:
        seen.clear()
    if seen is _once:
        _once[text] = None
        return header, None
    try:
        flat = _Flat.of(header, 8 + len(text) + -len(text) % _ALIGN)
    except Exception:  # any error
        flat = None  # the reader reports what is wrong with it
    _known[text] = header, flat
    return header, flat


def _padding(size: int) -> bytes:
    return bytes(-size % _ALIGN)


def _described(value: Any, buffers: list[object], path: tuple[object, ...], *, is_field: bool = False) -> object:
    kind = type(value)
    if is_field and (kind is str or kind is int or kind is float):
        described = _field(value, buffers)
        if described is not None:
            return described
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else ["i", str(value)]
    if kind is float:
        return value if math.isfinite(value) and not value.is_integer() else ["f", value.hex()]
    if kind is bytes or kind is bytearray or kind is memoryview:
        data = bytes(value)
        buffers.append(data)
        return ["b", len(data)]
    if kind is dict:
        keys = _checked_keys(value, path)
        are = not path and len(value) <= _FIELDS
        return ["d", keys, [_described(one, buffers, (*path, key), is_field=are) for key, one in value.items()]]
    if kind is list or kind is tuple:
        letter = "l" if kind is list else "t"
        are = kind is tuple and not path and len(value) <= _FIELDS
        return [letter, [_described(one, buffers, (*path, number), is_field=are) for number, one in enumerate(value)]]
    if kind is np.ndarray or isinstance(value, np.generic):
        return _array("a" if kind is np.ndarray else "s", value, buffers, path)
    if is_tensor(value):
        return _tensor(value, buffers, path)
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
        raise _refused(value, path, "Turn it into a dict, list or tuple")
    raise _refused(value, path, "Turn it into arrays, numbers, strings or bytes")


def _field(value: Any, buffers: list[object]) -> list[object] | None:
    """Put a number or a string into a buffer; None if it does not fit into one."""
    if type(value) is str:
        data = value.encode("utf-8", "surrogatepass")
        buffers.append(data)
        return ["u", len(data)]
    if type(value) is float:
        buffers.append(_FLOAT.pack(value))
        return ["g"]
    if not -(1 << 63) <= value < 1 << 63:
        return None
    buffers.append(_INTEGER.pack(value))
    return ["n"]


def _refused(value: object, path: tuple[object, ...], advice: str) -> NotARecord:
    where = "".join(f"[{step!r}]" for step in path)
    return NotARecord(f"sample{where} is a {type(value).__name__}, which a record cannot hold. {advice} first.")


def _checked_keys(value: dict[Any, object], path: tuple[object, ...]) -> list[str]:
    for key in value:
        if type(key) is not str:
            raise _refused(key, (*path, key), "Give the dict strings as keys: turn it")
    return list(value)


def _array(letter: str, value: object, buffers: list[object], path: tuple[object, ...]) -> list[object]:
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.names is not None:
        raise _refused(value, path, f"Its type is {array.dtype}: turn it into arrays of numbers or strings")
    buffers.append(array.tobytes())
    return [letter, array.dtype.str, list(array.shape)]


def _tensor(value: Any, buffers: list[object], path: tuple[object, ...]) -> list[object]:
    torch = require("torch", extra="torch", purpose="Tensors in records")
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_quantized:
        raise _refused(value, path, "Turn it into an ordinary tensor on the CPU")
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    buffers.append(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return ["T", str(plain.dtype).removeprefix("torch."), list(plain.shape)]


class _Flat:
    """A dict or tuple of plain values, arrays and bytes with known offsets: fast to read."""

    def __init__(self, start: int, *, is_tuple: bool) -> None:
        self._is_tuple = is_tuple
        self.stop = start
        """Where the last buffer ends."""
        self._next = start
        self._constants: dict[object, object] = {}
        self._parts: list[tuple[Any, str, int, int, Any, tuple[int, ...]]] = []
        """Key, letter, offset, size in bytes or values, type and shape."""

    @classmethod
    def of(cls, header: object, start: int) -> _Flat | None:
        """Return how to read a sample; None if it does not have this form or cannot be read."""
        if type(header) is not list:
            return None  # a string of three letters could be unpacked as well
        letter, *inside = header
        if letter == "t":
            (parts,) = inside
            keys = range(len(parts))
        else:
            keys, parts = inside
        if letter not in ("d", "t") or len(set(keys)) != len(keys):
            return None
        flat = cls(start, is_tuple=letter == "t")
        for key, part in zip(keys, parts, strict=True):
            if not (flat._add(key, part) if type(part) is list else flat._keep(key, part)):
                return None
        return flat

    def _keep(self, key: object, value: object) -> bool:
        self._constants[key] = value
        return True

    def _add(self, key: object, part: list[Any]) -> bool:
        letter = part[0]
        dtype, shape = np.dtype(np.uint8), ()
        if letter == "f":
            return self._keep(key, float.fromhex(part[1]))
        if letter in ("a", "s"):
            dtype, shape = np.dtype(part[1]), tuple(part[2])
            count = math.prod(shape)
        elif letter in ("b", "u"):
            count = part[1]
        elif letter in ("n", "g"):
            count = 8
        else:
            return False
        size = count * dtype.itemsize
        if dtype.hasobject or size < 0 or min(shape, default=0) < 0:
            return False
        self._constants[key] = None  # reserves the position in the dict
        self._parts.append((key, letter, self._next, count, dtype, shape))
        self.stop = self._next + size
        self._next = self.stop + -size % _ALIGN
        return True

    def read(self, view: memoryview, *, copy: bool, owned: bool) -> object:
        sample = self._constants.copy()
        for key, letter, offset, count, dtype, shape in self._parts:
            if letter == "n":
                (sample[key],) = _INTEGER.unpack_from(view, offset)
                continue
            if letter == "g":
                (sample[key],) = _FLOAT.unpack_from(view, offset)
                continue
            if letter == "u":
                sample[key] = str(view[offset : offset + count], "utf-8", "surrogatepass")
                continue
            if letter == "b":
                sample[key] = bytes(view[offset : offset + count])
                continue
            array = np.frombuffer(view, dtype, count, offset).reshape(shape) if count else np.empty(shape, dtype)
            if letter == "s":
                sample[key] = array[()]
                continue
            if copy:
                array = array.copy()
            elif not owned:
                array.flags.writeable = False
            sample[key] = array
        return tuple(sample.values()) if self._is_tuple else sample


class _Reader:
    def __init__(self, view: memoryview, start: int, *, copy: bool, owned: bool) -> None:
        self._view = view
        self._next = start
        self._copy = copy
        self._owned = owned

    def read(self, part: object) -> object:
        if type(part) is not list:
            return part
        letter = part[0]
        if letter == "d":
            return {key: self.read(one) for key, one in zip(part[1], part[2], strict=True)}
        if letter == "l":
            return [self.read(one) for one in part[1]]
        if letter == "t":
            return tuple([self.read(one) for one in part[1]])
        if letter == "i":
            return int(part[1])
        if letter == "f":
            return float.fromhex(part[1])
        if letter == "b":
            return bytes(self._take(part[1]))
        if letter == "u":
            return str(self._take(part[1]), "utf-8", "surrogatepass")
        if letter == "n":
            return _INTEGER.unpack(self._take(8))[0]
        if letter == "g":
            return _FLOAT.unpack(self._take(8))[0]
        if letter in ("a", "s"):
            return self._array(letter, np.dtype(part[1]), tuple(part[2]))
        if letter == "T":
            return self._tensor(part[1], tuple(part[2]))
        raise ValueError(f"it holds a value of kind {letter!r}, which this version does not know")

    def _take(self, size: int) -> memoryview:
        start, stop = self._next, self._next + size
        if size < 0 or stop > len(self._view):
            raise ValueError(f"{stop - len(self._view)} bytes are missing at its end")
        self._next = stop + -size % _ALIGN
        return self._view[start:stop]

    def _array(self, letter: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> object:
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        array = np.frombuffer(self._take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        if letter == "s":
            return array[()]
        if self._copy:
            return array.copy()
        if not self._owned:
            array.flags.writeable = False
        return array

    def _tensor(self, name: str, shape: tuple[int, ...]) -> object:
        torch = require("torch", extra="torch", purpose="Reading tensors from records")
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name!r} is not a torch dtype")
        flat = self._take(math.prod(shape) * dtype.itemsize)
        tensor = torch.empty(shape, dtype=dtype)
        if len(flat):
            tensor.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(flat, np.uint8)
        return tensor
