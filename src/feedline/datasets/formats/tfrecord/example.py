"""Parses tf.train.Example messages from untrusted bytes: the few parts of protobuf's wire format that they use."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource
from feedline.system.failures import words

Numbers = NDArray[np.float32 | np.int64]
Feature = bytes | list[bytes] | Numbers
"""A bytes feature with one value, one with any other number of values, or numbers."""

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LIST, _FLOATS, _INTEGERS = 1, 2, 3
"""Which kind of list a feature is."""
_FEW = 16
"""Bytes below which integers are decoded one by one. A guess."""


class SequenceExample(ValueError):
    """The message is a tf.train.SequenceExample, which has another form."""


def parse_example(data: bytes) -> dict[str, Feature]:
    r"""Return the features of a tf.train.Example by name.

    Floats become float32 arrays, integers int64 arrays. A bytes feature with one value is that value, and a list if it
    has another number of them.

    Raises CorruptSource: the bytes are not such a message.

    Example:
        >>> parse_example(b"\n\x12\n\x07\n\x01a\x12\x02\n\x00\n\x07\n\x01b\x12\x02\x1a\x00")
        {'a': [], 'b': array([], dtype=int64)}
    """
    try:
        return {name: _feature(value) for name, value in _features(data)}
    except SequenceExample:
        raise
    except (ValueError, IndexError, struct.error) as exc:
        raise CorruptSource(f"it is not a tf.train.Example: {words(exc)}.") from exc


def _features(data: bytes) -> Iterator[tuple[str, bytes]]:
    for number, features in _messages(data):
        if number == 2:
            raise SequenceExample
        if number != 1:
            continue
        for entry_number, entry in _messages(features):
            if entry_number == 1:
                pair = {1: b"", 2: b"", **dict(_messages(entry))}
                yield pair[1].decode("utf-8"), pair[2]


def _feature(data: bytes) -> Feature:
    """Return the values of a feature; of several kinds, the last one counts, as in protobuf."""
    kind, parts = _LIST, list[bytes]()
    for number, part in _messages(data):
        if number in (_LIST, _FLOATS, _INTEGERS):
            parts = [*parts, part] if number == kind else [part]
            kind = number
    if kind == _LIST:
        values = [value for part in parts for number, value in _messages(part) if number == 1]
        return values[0] if len(values) == 1 else values
    numbers = [_numbers(part, kind) for part in parts]
    return numbers[0] if len(numbers) == 1 else np.concatenate(numbers)


def _numbers(data: bytes, kind: int) -> Numbers:
    arrays: list[Numbers] = []
    for number, wire, value in _fields(data):
        if number != 1:
            continue
        if kind == _FLOATS and wire in (_FOUR, _BYTES):
            arrays.append(np.frombuffer(value, "<f4"))
        elif kind == _INTEGERS and wire in (_VARINT, _BYTES):
            arrays.append(_integers(value))
        else:
            raise ValueError(f"a number has the wire type {wire}")
    if not arrays:
        return np.empty(0, np.float32 if kind == _FLOATS else np.int64)
    return np.concatenate(arrays)


def _integers(data: bytes) -> NDArray[np.int64]:
    """Return integers of variable length: seven bits per byte, the lowest first; the last byte is below 128."""
    if len(data) < _FEW:
        found, at = [], 0
        while at < len(data):
            value, at = _varint(data, at)
            found.append(value)
        return np.array(found, np.uint64).view(np.int64)
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes < 128)
    if not len(ends) or ends[-1] != len(codes) - 1:
        raise ValueError("an integer is cut off")
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(codes)) - np.repeat(starts, ends - starts + 1)
    if places.max() > 9:
        raise ValueError("an integer has more than ten bytes")
    bits = (codes & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each field that holds bytes."""
    return ((number, value) for number, wire, value in _fields(data) if wire == _BYTES)


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, the wire type and the bytes of each field. Raises ValueError or IndexError: it is cut off."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire == _VARINT:
            size = _varint(data, at)[1] - at
        elif wire in (_EIGHT, _FOUR):
            size = 8 if wire == _EIGHT else 4
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if size > len(data) - at:
            raise ValueError(f"a field of {size} bytes is cut off")
        yield tag >> 3, wire, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer of variable length, and where it ends."""
    first = data[at]
    if first < 128:
        return first, at + 1
    value = shift = 0
    for place in range(at, at + 10):
        value |= (data[place] & 127) << shift
        if data[place] < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise ValueError("an integer has more than ten bytes")
