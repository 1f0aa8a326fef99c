"""Many strings in a few arrays: their common parts are stored once per block.

Strings are cut into blocks. The first string of a block is its head and is stored whole. For the others, only the
middle is stored, between the prefix and the suffix that they share with the head. Sorted paths of a folder differ in a
few characters each. Finding a string means adding up the lengths of at most one block of middles; no other string
is read.

Strings in any other order are stored sorted if that saves more bytes than storing the new position of each takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 32
"""Strings per head. More would save little: the head is already only a thirtieth of the data."""

_CHUNK = 1 << 15
"""Strings packed in one step, a multiple of the block; keeps the memory for packing small."""

_MOST_SHARED = 255
"""The longest prefix or suffix that a string can share with its head: its length is stored in a byte."""

_MOST_AT_END = 32
"""The longest shared suffix; file names share short ones."""

_SORT_ABOVE = 10
"""Bytes per string above which sorting is tried: below, storing positions would cost as much as sorting can save."""


class Packed:
    """Strings or bytes in a few arrays.

    Args:
        values: all strings, or all bytes. Strings may contain lone surrogates, as undecodable file names do.
        is_text: True for strings.
        is_encoded: True if the strings are given as bytes, in UTF-8 with "surrogatepass".

    Example:
        >>> paths = Packed((f"train/cat/{number:05d}.jpg" for number in range(10_000)), is_text=True)
        >>> paths.get(9_999)
        'train/cat/09999.jpg'
        >>> paths.nbytes < 80_000
        True
    """

    def __init__(self, values: Iterable[object], *, is_text: bool, is_encoded: bool = False) -> None:
        encode = is_text and not is_encoded
        arrays = _packed(values, encode=encode)
        if isinstance(values, Sequence) and _size(arrays) > _SORT_ABOVE * len(values):
            order = sorted(range(len(values)), key=values.__getitem__)
            places = np.empty(len(order), np.min_scalar_type(len(order)))
            places[order] = np.arange(len(order))
            other = {**_packed((values[place] for place in order), encode=encode), "order": places}
            if _size(other) < _size(arrays):
                arrays = other
        self.__setstate__({**arrays, "is_text": is_text})

    def __len__(self) -> int:
        return len(self._views[0])

    def get(self, place: int) -> Any:
        return self._value(self._bytes_at(place))

    def _value(self, stored: bytes) -> Any:
        return stored.decode("utf-8", "surrogatepass") if self._is_text else stored

    def _bytes_at(self, place: int) -> bytes:
        begin, end, middle, starts, data = self._views
        if self._order is not None:
            place = self._order.item(place)
        first = place - place % _BLOCK
        start = starts[place // _BLOCK]
        stop = start + middle[first]
        if place == first:
            return bytes(data[start:stop])
        at = start + sum(middle[first:place])
        return b"".join(
            (data[start : start + begin[place]], data[at : at + middle[place]], data[stop - end[place] : stop])
        )

    def each(self, places: Iterable[int]) -> Iterator[Any]:
        if self._order is None and isinstance(places, range) and places.step == 1:
            return map(self._value, self._following(places))
        return map(self._value, map(self._bytes_at, places))

    def _following(self, places: range) -> Iterator[bytes]:
        begin, end, middle, starts, data = self._views
        first = places.start - places.start % _BLOCK
        for place in range(first, places.stop):
            if place % _BLOCK == 0:
                start = at = starts[place // _BLOCK]
                stop = start + middle[place]
            following = at + middle[place]
            if place >= places.start:
                yield b"".join((data[start : start + begin[place]], data[at:following], data[stop - end[place] : stop]))
            at = following

    @property
    def nbytes(self) -> int:
        return _size(self._arrays)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays to store; `of_arrays` rebuilds the column from them."""
        return self._arrays

    @classmethod
    def of_arrays(cls, arrays: dict[str, Any]) -> Packed:
        """Rebuild a column from the result of `arrays`. They are not checked: read them from a file with a checksum."""
        packed = cls.__new__(cls)
        packed.__setstate__(arrays)
        return packed

    __getstate__ = arrays

    def __setstate__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays
        self._is_text: bool = arrays["is_text"]
        self._order: NDArray[np.generic] | None = arrays["order"]
        """Where each string is stored; None if they are stored in their original order."""
        self._views = tuple(arrays[name].data for name in ("begin", "end", "middle", "starts", "data"))


def _size(arrays: dict[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values() if isinstance(array, np.ndarray))


def _packed(values: Iterable[object], *, encode: bool) -> dict[str, Any]:
    """Return the arrays of a column that stores strings in the given order."""
    parts = list(_packed_chunks(values, encode=encode))
    middle = _joined([part[2] for part in parts], np.dtype(np.int64))
    sizes = np.add.reduceat(middle, np.arange(0, len(middle), _BLOCK)) if len(middle) else middle
    return {
        "begin": _joined([part[0] for part in parts], np.dtype(np.uint8)),
        "end": _joined([part[1] for part in parts], np.dtype(np.uint8)),
        "middle": middle.astype(np.min_scalar_type(int(middle.max(initial=0)))),
        "starts": np.cumsum(sizes) - sizes,
        "data": _joined([part[3] for part in parts], np.dtype(np.uint8)),
        "order": None,
    }


_Chunk = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8]]


def _packed_chunks(values: Iterable[Any], *, encode: bool) -> Iterator[_Chunk]:
    following = iter(values)
    while chunk := list(islice(following, _CHUNK)):
        yield _pack([value.encode("utf-8", "surrogatepass") for value in chunk] if encode else chunk)


def _joined(parts: list[NDArray[np.generic]], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _pack(chunk: list[bytes]) -> _Chunk:
    """Return the lengths of shared prefixes, of shared suffixes and of middles, and the bytes of the middles."""
    lengths = np.fromiter(map(len, chunk), np.int64, len(chunk))
    heads = np.arange(len(chunk)) // _BLOCK * _BLOCK
    left = np.minimum(lengths, lengths[heads])
    begin = np.minimum(_shared(chunk, _MOST_SHARED), left)
    left -= begin
    end = np.minimum(_shared([value[: -_MOST_AT_END - 1 : -1] for value in chunk], _MOST_AT_END), left)
    begin[::_BLOCK] = end[::_BLOCK] = 0
    middles = [
        value[start:stop] for value, start, stop in zip(chunk, begin.tolist(), (lengths - end).tolist(), strict=True)
    ]
    data = np.frombuffer(b"".join(middles), np.uint8)
    return begin.astype(np.uint8), end.astype(np.uint8), lengths - begin - end, data


def _shared(values: list[bytes], most: int) -> NDArray[np.int64]:
    """Return how many bytes, up to `most`, each value has in common with the first of its block.

    A value that is too short counts as padded with zeros.
    """
    width = min(max(map(len, values)), most)
    if width == 0:
        return np.zeros(len(values), np.int64)
    filled = values + [b""] * (-len(values) % _BLOCK)
    table = np.array(filled, f"S{width}").view(np.uint8).reshape(-1, _BLOCK, width)  # truncated, or padded with zeros
    differs = np.ones((*table.shape[:2], width + 1), bool)
    np.not_equal(table, table[:, :1], out=differs[:, :, :width])
    shared: NDArray[np.int64] = differs.argmax(2).reshape(-1)[: len(values)]
    return shared
