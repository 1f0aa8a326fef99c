"""Decoders that turn values of a database into samples, or into the columns of a batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.datasets.framework.form import Form
from feedline.datasets.framework.source import Empty, is_column, stacked
from feedline.errors import BadOption, CorruptSource
from feedline.images.pillow import decoded_picture, picture_decoder
from feedline.memory.sharing import records
from feedline.system.failures import words


class Decoder(ABC):
    """Turns values into samples. Values are views that are valid only during the call."""

    @abstractmethod
    def sample(self, value: memoryview) -> object:
        """Decode a value into a sample with memory of its own."""

    def columns(self, values: Sequence[memoryview], empty: Empty) -> list[object] | None:
        """Return a column for each field of several samples, or None if the samples have to be collated."""
        return None

    def build(self, parts: Sequence[object]) -> object:
        """Combine columns in the form of a sample."""
        return parts[0]

    @abstractmethod
    def form(self) -> str:
        """Describe a sample, for people."""


class Bytes(Decoder):
    """Values as they are."""

    def sample(self, value: memoryview) -> bytes:
        return bytes(value)

    def columns(self, values: Sequence[memoryview], empty: Empty) -> list[object]:
        return [[bytes(value) for value in values]]

    def form(self) -> str:
        return "bytes"


class Raw(Decoder):
    """Values that are the memory of an array, all of one shape and type. A batch is read into one array."""

    # Any: values from the user, for `decode={"dtype": ..., "shape": ...}`.
    def __init__(self, description: Mapping[str, Any]) -> None:
        try:
            if set(description) - {"dtype", "shape"}:
                raise ValueError(f"its keys are {', '.join(map(repr, description))}")
            shape = description.get("shape", ())
            self._dtype = np.dtype(description["dtype"])
            self._shape = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
            self._size = self._dtype.itemsize * math.prod(self._shape)
            if self._dtype.hasobject or self._size <= 0 or min(self._shape, default=1) < 1:
                raise ValueError("no value can have this type and shape")
        except (ValueError, TypeError, KeyError) as exc:
            raise BadOption(
                f"decode={description!r} does not describe an array: {words(exc)}. Write for example "
                f'{{"dtype": "float32", "shape": (3, 64, 64)}}.'
            ) from exc

    def sample(self, value: memoryview) -> object:
        self._check(value)
        array = np.frombuffer(value, self._dtype).reshape(self._shape)
        return array.copy() if self._shape else array[()]

    def columns(self, values: Sequence[memoryview], empty: Empty) -> list[object]:
        out = empty((len(values), *self._shape), self._dtype)
        flat = out.reshape(-1).view(np.uint8).data
        size = self._size
        start = 0
        for value in values:
            if len(value) != size:
                self._check(value)
            flat[start : start + size] = value
            start += size
        return [out]

    def _check(self, value: memoryview) -> None:
        if len(value) != self._size:
            raise CorruptSource(f"it has {len(value)} bytes, but {self.form()} has {self._size}.")

    def form(self) -> str:
        return f"{self._dtype}[{', '.join(map(str, self._shape))}]"


@dataclass(frozen=True)
class Picture:
    """Decodes an image file with one of the decoders of `TarDataset`. Raises CorruptSource if it is not an image."""

    decode: str

    def __call__(self, data: bytes) -> object:
        return decoded_picture(picture_decoder(self.decode), data)

    def __repr__(self) -> str:
        return f"decode={self.decode!r}"


class Records(Decoder):
    """Values that feedline wrote: dicts of fields."""

    def __init__(self, form: Form, texts: Sequence[str], pictures: Mapping[str, Picture]) -> None:
        self._form = form
        self._texts = list(texts)
        self._pictures = {number: pictures[name] for number, name in enumerate(form.names) if name in pictures}
        """Decoders of image fields, by the position of the field."""

    def sample(self, value: memoryview) -> object:
        return self._form.build(self._fields(records.decode(bytearray(value))))

    def columns(self, values: Sequence[memoryview], empty: Empty) -> list[object] | None:
        rows = [self._fields(records.decode(value)) for value in values]
        columns: list[object] = []
        for values_of_field in zip(*rows, strict=True):
            columns.append(stacked(list(values_of_field), empty))
            if not is_column(columns[-1]):
                return None
        return columns

    # Any: what `records.decode` has found, which may be no dict.
    def _fields(self, record: Any) -> list[object]:
        try:
            values = [record[name] for name in self._form.names]
        except (KeyError, TypeError, IndexError) as exc:
            raise CorruptSource(f"it does not have the fields {', '.join(self._form.names)}.") from exc
        for number, picture in self._pictures.items():
            if values[number] is not None:
                values[number] = picture(values[number])
        return values

    def build(self, parts: Sequence[object]) -> object:
        return self._form.build(parts)

    def form(self) -> str:
        return self._form.describe(self._texts)


class Function(Decoder):
    """Values that a function decodes."""

    # Any: the function knows what a sample is.
    def __init__(self, function: Callable[[bytes], Any]) -> None:
        self._function = function

    def sample(self, value: memoryview) -> object:
        return self._function(bytes(value))

    def form(self) -> str:
        return f"results of {getattr(self._function, '__qualname__', self._function)}"
