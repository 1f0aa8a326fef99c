"""Samples as bytes, without pickle: what feedline writes into databases, caches and shared memory.

A record is a JSON header that describes the sample, followed by the buffers of its arrays and bytes. Reading a record
runs no code and copies nothing: arrays are views of the record's memory.

    b"FDL1" | length of the header, 4 bytes, little-endian | header | padding to 8 | buffers, each padded to 8

In the header, a value that Python's JSON supports stands for itself; anything else is a list of a letter and its parts.
Numbers and strings that are fields of a sample are stored as buffers too. This makes the headers of a dataset alike, so
a parsed header can be reused.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource, MissingExtra
from feedline.system.optional import is_tensor, require

MAGIC = b"FDL1"
_ALIGN = 8
_SHORT_BYTES = 512
"""Layouts of headers up to this length are cached."""
_REMEMBERED = 1024
"""Cache size. A guess: a dataset has a few headers, or one for every sample, where caching does not help."""
_FIELDS = 32
"""A dict or tuple with more values than this is treated as many numbers, not as a sample with fields."""
_PLAIN = (str, int, float, bool, type(None))
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
    header = json.dumps(_described(sample, buffers, ()), separators=(",", ":")).encode()
    parts: list[Any] = [MAGIC, struct.pack("<I", len(header)), header, _padding(len(MAGIC) + 4 + len(header))]
    for buffer in buffers:
        parts += (buffer, _padding(len(buffer)))
    return b"".join(parts)


def decode(record: Buffer | NDArray[np.uint8]) -> Any:
    """Return the sample of a record; its arrays are views of the record's memory, its tensors are copies.

    The arrays are writable if the record is a bytearray, which the caller gives away; otherwise they are read-only.

    Raises:
        CorruptSource: the bytes are not a record, or an incomplete one.
    """
    view = memoryview(record).cast("B")  # type: ignore[arg-type]  # arrays have the buffer protocol, too
    if type(record) is not bytearray:
        view = view.toreadonly()
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
        layout = _known_layout(text) if length <= _SHORT_BYTES else _Layout(text)
        if layout.stop > len(view):
            raise ValueError(f"{layout.stop - len(view)} bytes are missing at its end")
        return layout.read(view)
    except MissingExtra:
        raise
    except Exception as exc:  # errors of NumPy, JSON and torch on damaged bytes, including SyntaxError
        raise CorruptSource(f"A record of {len(view)} bytes is damaged or cut off: {str(exc).rstrip('.')}.") from exc


def is_record(data: Buffer) -> bool:
    """True if the bytes begin like a record."""
    return bytes(data[:4]) == MAGIC


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
    # As an array, such a scalar would lose its trailing zeros.
    if isinstance(value, np.bytes_):
        buffers.append(bytes(value))
        return [letter, f"|S{len(value)}", []]
    if isinstance(value, np.str_):
        buffers.append(value.encode("utf-32-le", "surrogatepass"))
        return [letter, f"<U{len(value)}", []]
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


_Read = Callable[[memoryview], Any]
"""Reads one value of a record from its memory."""


class _Layout:
    """Where each value of a record lies, and how it is read: all of that follows from the header."""

    def __init__(self, header: bytes) -> None:
        self._next = 8 + len(header) + -len(header) % _ALIGN
        self.stop = self._next
        """Where the last buffer ends."""
        self.read = self._reader(json.loads(header))

    def _reader(self, part: Any) -> _Read:
        if type(part) is not list:
            return lambda view: part
        letter = part[0]
        if letter == "d":
            fields = list(zip(part[1], map(self._reader, part[2]), strict=True))
            return lambda view: {key: read(view) for key, read in fields}
        if letter == "l" or letter == "t":
            items, kind = list(map(self._reader, part[1])), list if letter == "l" else tuple
            return lambda view: kind([read(view) for read in items])
        if letter == "n" or letter == "g":
            start, _ = self._place(8)
            unpack = (_INTEGER if letter == "n" else _FLOAT).unpack_from
            return lambda view: unpack(view, start)[0]
        if letter == "u":
            start, stop = self._place(part[1])
            return lambda view: str(view[start:stop], "utf-8", "surrogatepass")
        if letter == "b":
            start, stop = self._place(part[1])
            return lambda view: bytes(view[start:stop])
        if letter == "a" or letter == "s":
            return self._array(np.dtype(part[1]), tuple(part[2]), is_scalar=letter == "s")
        if letter == "T":
            return self._tensor(part[1], tuple(part[2]))
        raise ValueError(f"it holds a value of kind {letter!r}, which this version does not know")

    def _place(self, size: int) -> tuple[int, int]:
        start = self._next
        self.stop = start + size
        if size < 0:
            raise ValueError("the size of a value is negative")
        self._next = self.stop + -size % _ALIGN
        return start, self.stop

    def _array(self, dtype: np.dtype[np.generic], shape: tuple[int, ...], *, is_scalar: bool) -> _Read:
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        count = math.prod(shape)
        start, stop = self._place(count * dtype.itemsize)
        if is_scalar and dtype.kind == "S":
            return lambda view: np.bytes_(view[start:stop])
        if is_scalar and dtype.kind == "U":
            return lambda view: np.str_(str(view[start:stop], "utf-32-le", "surrogatepass"))

        def read(view: memoryview) -> object:
            array = np.frombuffer(view, dtype, count, start).reshape(shape) if count else np.empty(shape, dtype)
            return array[()] if is_scalar else array

        return read

    def _tensor(self, name: str, shape: tuple[int, ...]) -> _Read:
        torch = require("torch", extra="torch", purpose="Reading tensors from records")
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name!r} is not a torch dtype")
        start, stop = self._place(math.prod(shape) * dtype.itemsize)

        def read(view: memoryview) -> object:
            tensor = torch.empty(shape, dtype=dtype)
            if stop > start:
                tensor.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(view[start:stop], np.uint8)
            return tensor

        return read


_known_layout = functools.lru_cache(_REMEMBERED)(_Layout)
