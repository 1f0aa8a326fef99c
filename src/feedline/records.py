"""Samples as bytes, without pickle: what feedline writes into databases, caches and shared memory.

A record is a header in JSON that describes the sample, and the buffers of its arrays and bytes one after the other.
Reading one runs no code and copies nothing: arrays are views of the memory that the record lies in.

    b"FDL1" | length of the header, 4 bytes, little-endian | header | padding to 8 | buffers, each padded to 8

In the header a value that JSON knows stands for itself; anything else is a list of a letter and its parts.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline._optional import is_tensor, require
from feedline.errors import CorruptSource

_MAGIC = b"FDL1"
_ALIGN = 8
_SHORT_BYTES = 512
"""Headers up to this length are remembered when they were read."""
_PLAIN = (str, bool, type(None))

Buffer = bytes | bytearray | memoryview


class NotARecord(TypeError):
    """A sample holds something that a record has no place for."""


# Any, throughout: a sample of any form.
def encode(sample: Any) -> bytes:
    """Return a sample as a record.

    Samples are dicts with strings as keys, lists, tuples, strings, bytes, numbers, None, NumPy arrays and scalars, and
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
    parts: list[Any] = [_MAGIC, struct.pack("<I", len(header)), header, _padding(len(_MAGIC) + 4 + len(header))]
    for buffer in buffers:
        parts += (buffer, _padding(len(buffer)))
    return b"".join(parts)


def decode(record: Buffer | NDArray[np.uint8], *, copy: bool = False) -> Any:
    """Return the sample of a record; its arrays are read-only views of the record's memory, its tensors copies.

    Args:
        record: what `encode` returned.
        copy: True for arrays in memory of their own, which may be written to.

    Raises:
        CorruptSource: this is no record, or not a whole one.
    """
    view = memoryview(record).cast("B")  # type: ignore[arg-type]  # arrays have the buffer protocol, too
    if len(view) < 8 or bytes(view[:4]) != _MAGIC:
        raise CorruptSource(
            f"{len(view)} bytes that begin with {bytes(view[:8])!r} are no record of feedline. They were written by "
            "another program, or damaged."
        )
    (length,) = struct.unpack_from("<I", view, 4)
    try:
        if 8 + length > len(view):
            raise ValueError(f"{8 + length - len(view)} bytes of its header are missing")
        text = bytes(view[8 : 8 + length])
        header, flat = _known_header(text) if length <= _SHORT_BYTES else (json.loads(text), None)
        if flat is not None and flat.stop <= len(view):
            return flat.read(view, copy)
        reader = _Reader(view, 8 + length + -length % _ALIGN, copy)
        return reader.read(header)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as exc:
        raise CorruptSource(f"A record of {len(view)} bytes is damaged or cut off: {exc}.") from exc


@functools.lru_cache(maxsize=1024)
def _known_header(text: bytes) -> tuple[Any, _Flat | None]:
    """Return a header, and how to read it at once; those of one dataset are alike, and reading does not change them."""
    header = json.loads(text)
    try:
        return header, _Flat.of(header, 8 + len(text) + -len(text) % _ALIGN)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return header, None  # the reader finds out what is wrong with it


def _padding(size: int) -> bytes:
    return bytes(-size % _ALIGN)


def _described(value: Any, buffers: list[Any], path: tuple[Any, ...]) -> Any:
    kind = type(value)
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
        return ["d", _checked_keys(value, path), [_described(one, buffers, (*path, key)) for key, one in value.items()]]
    if kind is list or kind is tuple:
        letter = "l" if kind is list else "t"
        return [letter, [_described(one, buffers, (*path, number)) for number, one in enumerate(value)]]
    if kind is np.ndarray or isinstance(value, np.generic):
        return _array("a" if kind is np.ndarray else "s", value, buffers, path)
    if is_tensor(value):
        return _tensor(value, buffers, path)
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
        raise _refused(value, path, "Turn it into a dict, list or tuple")
    raise _refused(value, path, "Turn it into arrays, numbers, strings or bytes")


def _refused(value: Any, path: tuple[Any, ...], advice: str) -> NotARecord:
    where = "".join(f"[{step!r}]" for step in path)
    return NotARecord(f"sample{where} is a {type(value).__name__}, which a record cannot hold. {advice} first.")


def _checked_keys(value: dict[Any, Any], path: tuple[Any, ...]) -> list[str]:
    for key in value:
        if type(key) is not str:
            raise _refused(key, (*path, key), "Give the dict strings as keys: turn it")
    return list(value)


def _array(letter: str, value: Any, buffers: list[Any], path: tuple[Any, ...]) -> list[Any]:
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.names is not None:
        raise _refused(value, path, f"Its type is {array.dtype}: turn it into arrays of numbers or strings")
    buffers.append(array.tobytes())
    return [letter, array.dtype.str, list(array.shape)]


def _tensor(value: Any, buffers: list[Any], path: tuple[Any, ...]) -> list[Any]:
    torch = require("torch", extra="torch", purpose="Tensors in records")
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_quantized:
        raise _refused(value, path, "Turn it into an ordinary tensor on the CPU")
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    buffers.append(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return ["T", str(plain.dtype).removeprefix("torch."), list(plain.shape)]


class _Flat:
    """A dict of plain values, arrays and bytes, of which it is known where they lie: several times faster to read."""

    def __init__(self, start: int) -> None:
        self.stop = start
        """Where the last buffer ends."""
        self._next = start
        self._constants: dict[str, Any] = {}
        self._parts: list[tuple[str, str, int, int, Any, tuple[int, ...]]] = []
        """Key, letter, offset, size in bytes or values, type and shape."""

    @classmethod
    def of(cls, header: Any, start: int) -> _Flat | None:
        """Return how to read a sample; None if it is not of this form, or not to be read."""
        if type(header) is not list:
            return None  # a string of three letters could be taken apart as well
        letter, keys, parts = header
        if letter != "d" or len(set(keys)) != len(keys):
            return None
        flat = cls(start)
        for key, part in zip(keys, parts, strict=True):
            if not (flat._add(key, part) if type(part) is list else flat._keep(key, part)):
                return None
        return flat

    def _keep(self, key: str, value: Any) -> bool:
        self._constants[key] = value
        return True

    def _add(self, key: str, part: list[Any]) -> bool:
        letter = part[0]
        dtype, shape = np.dtype(np.uint8), ()
        if letter == "f":
            return self._keep(key, float.fromhex(part[1]))
        if letter in ("a", "s"):
            dtype, shape = np.dtype(part[1]), tuple(part[2])
            count = math.prod(shape)
        elif letter == "b":
            count = part[1]
        else:
            return False
        size = count * dtype.itemsize
        if dtype.hasobject or size < 0 or min(shape, default=0) < 0:
            return False
        self._constants[key] = None  # the place in the dict
        self._parts.append((key, letter, self._next, size if letter == "b" else count, dtype, shape))
        self.stop = self._next + size
        self._next = self.stop + -size % _ALIGN
        return True

    def read(self, view: memoryview, copy: bool) -> dict[str, Any]:
        sample = self._constants.copy()
        for key, letter, offset, count, dtype, shape in self._parts:
            if letter == "b":
                sample[key] = bytes(view[offset : offset + count])
                continue
            array = np.frombuffer(view, dtype, count, offset).reshape(shape) if count else np.empty(shape, dtype)
            if letter == "s":
                sample[key] = array[()]
                continue
            if copy:
                array = array.copy()
            else:
                array.flags.writeable = False
            sample[key] = array
        return sample


class _Reader:
    def __init__(self, view: memoryview, start: int, copy: bool) -> None:
        self._view = view
        self._next = start
        self._copy = copy

    def read(self, part: Any) -> Any:
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

    def _array(self, letter: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        array = np.frombuffer(self._take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        if letter == "s":
            return array[()]
        if self._copy:
            return array.copy()
        array.flags.writeable = False
        return array

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Any:
        torch = require("torch", extra="torch", purpose="Reading tensors from records")
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name!r} is no type of torch")
        tensor = torch.empty(shape, dtype=dtype)
        flat = self._take(tensor.numel() * tensor.element_size())
        if len(flat):
            tensor.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(flat, np.uint8)
        return tensor
