"""Turn lines into samples: text, or JSON values and their fields."""

from __future__ import annotations

import importlib.util
import json
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from feedline.datasets.framework.form import Fields, Form, listed, names_in
from feedline.errors import CorruptSource, SourceError
from feedline.system.failures import words
from feedline.system.optional import require

SPACE = b" \t\r"
"""What a blank line may contain: the white space of JSON, without the line end."""
_SHOWN = 80
"""Bytes of a damaged line that an error shows."""
_BETWEEN = os.urandom(12).hex()
"""A string that stands between two lines that are parsed together. No file can contain it."""
_JOINT = f',"{_BETWEEN}",'.encode()
_scan: Callable[[str, int], tuple[list[object], int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class BadLine(NamedTuple):
    """A line of which no sample can be made."""

    place: int
    """Its place among the lines that were parsed together."""
    why: str
    kind: type[SourceError] = CorruptSource

    def error(self, name: str, line: int, content: bytes) -> SourceError:
        """Return the error for a line; the first line of a file is number 1."""
        shown = repr(content[:_SHOWN].decode("utf-8", "backslashreplace"))
        more = " and more" if len(content) > _SHOWN else ""
        return self.kind(f"{name}, line {line}: {self.why} The line begins with {shown}{more}.")


Parsed = tuple[list[object], BadLine | None]
"""Samples, of any kind, up to the first line of which none can be made, and that line."""


class LineFormat(ABC):
    """How a line becomes a sample."""

    skips_blank = False
    """True if lines that contain only white space are no samples."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """The most bytes of a line."""

    def parse(self, lines: Sequence[bytes]) -> Parsed:
        """Return the samples of lines without their line ends."""
        if max(map(len, lines), default=0) <= self.limit:
            try:
                return self._together(lines), None
            except (ValueError, TypeError, LookupError, RecursionError, StopIteration):
                pass  # one by one, to find out which line it is
        samples: list[object] = []
        for place, line in enumerate(lines):
            bad = self._one(line, samples)
            if bad is not None:
                return samples, bad._replace(place=place)
        return samples, None

    @abstractmethod
    def _together(self, lines: Sequence[bytes]) -> list[object]:
        """Return the samples of all lines, or raise some exception if there is one that has none."""

    @abstractmethod
    def _of(self, text: str) -> object:
        """Return the sample of one line. Raises ValueError, RecursionError or SourceError: it has none."""

    def _one(self, line: bytes, samples: list[object]) -> BadLine | None:
        if len(line) > self.limit:
            return BadLine(
                0,
                f"it is longer than {self.limit} bytes, the most that are accepted. If it is meant to be that long, "
                "raise max_line_bytes=; otherwise line ends are missing, or the file is damaged.",
            )
        try:
            samples.append(self._of(line.decode("utf-8")))
        except UnicodeDecodeError as exc:
            return BadLine(
                0,
                f"byte {exc.start + 1} of the line (0x{line[exc.start]:02x}) is not UTF-8. Convert the file to UTF-8, "
                "or copy it again if it is damaged.",
            )
        except SourceError as exc:
            return BadLine(0, str(exc), type(exc))
        except (ValueError, RecursionError) as exc:
            return BadLine(0, f"it is not valid JSON: {words(exc)}. Correct or remove it.")
        return None

    @abstractmethod
    def describe(self) -> str:
        """Describe a sample for people."""


class TextFormat(LineFormat):
    """Lines as strings."""

    def _together(self, lines: Sequence[bytes]) -> list[object]:
        return list(map(bytes.decode, lines))

    def _of(self, text: str) -> str:
        return text

    def describe(self) -> str:
        return "text"


class JSONFormat(LineFormat):
    """Lines as JSON values, or as fields of JSON objects."""

    skips_blank = True

    def __init__(self, limit: int, fields: Fields) -> None:
        super().__init__(limit)
        names = names_in(fields)
        self.form = None if names is None else Form.of(fields, dict.fromkeys(names), "a file of JSON lines")

    # Any: what JSON holds.
    @cached_property
    def _pick(self) -> Callable[[Any], object] | None:
        form = self.form
        if form is None:
            return None
        names, keys = form.names, form.keys
        if keys is not None:
            pairs = tuple(zip(keys, names, strict=True))
            return lambda value: {key: value[name] for key, name in pairs}
        if form.is_one or len(names) > 1:
            return operator.itemgetter(*names)
        return lambda value: (value[names[0]],)

    @cached_property
    def _quick(self) -> Callable[[bytes], object] | None:
        """The function of orjson, which is used if it is installed."""
        if importlib.util.find_spec("orjson") is None:
            return None
        loads: Callable[[bytes], object] = require("orjson", extra="json", purpose="reading JSON quickly").loads
        return loads

    def __getstate__(self) -> dict[str, object]:
        return {"limit": self.limit, "form": self.form}

    def _together(self, lines: Sequence[bytes]) -> list[object]:
        values = self._values(lines)
        if self._pick is None:
            return values
        return list(map(self._pick, values))

    def _values(self, lines: Sequence[bytes]) -> list[object]:
        quick = self._quick
        if quick is None:
            return joined_values(lines)
        long = long_integers(lines)
        if not long:
            return list(map(quick, lines))
        return [joined_values([line])[0] if place in long else quick(line) for place, line in enumerate(lines)]

    def _of(self, text: str) -> object:
        value = json.loads(text)
        if self.form is None or self._pick is None:
            return value
        if not isinstance(value, dict):
            raise SourceError(
                f"it holds a JSON {_KINDS.get(type(value), 'number')}, and fields= selects fields of objects. Drop "
                "fields=, and select in transform=."
            )
        missing = next((name for name in self.form.names if name not in value), None)
        if missing is not None:
            raise SourceError(
                f"it has no field {missing!r}, but {listed(list(value))}. Name fields in fields= that every line has, "
                "or select them in transform=."
            )
        return self._pick(value)

    def describe(self) -> str:
        return "JSON" if self.form is None else self.form.describe(self.form.names)


_KINDS: dict[type, str] = {list: "array", str: "string", bool: "boolean", type(None): "null"}


def joined_values(lines: Sequence[bytes]) -> list[object]:
    """Return the JSON values of lines, parsed in one go: in half the time for texts, in little less for numbers.

    The lines become a list with the same string between every two of them. If that string is at every second place, all
    of them are outside of brackets and quotes, so each line is one value by itself. Raises ValueError or StopIteration:
    a line is not.

    Example:
        >>> joined_values([b'{"a": 1}', b"2"])
        [{'a': 1}, 2]
        >>> joined_values([b"1, 2", b"[3", b"4]"])
        Traceback (most recent call last):
        ValueError: the lines are not one value each
    """
    text = (b"[%b]" % _JOINT.join(lines)).decode("utf-8")
    values, end = _scan(text, 0)
    is_whole = end == len(text) and len(values) == max(0, 2 * len(lines) - 1)
    if not is_whole or values[1::2] != [_BETWEEN] * (len(lines) - 1):
        raise ValueError("the lines are not one value each")
    return values[::2]


def long_integers(lines: Sequence[bytes]) -> set[int]:
    """Return the places of lines with an integer of 19 digits or more: orjson turns those beyond 64 bits into floats.

    Example:
        >>> long_integers([b"123456789012345678", b"[1234567890123456789]", b"0.1234567890123456789"])
        {1}
    """
    text = b"\n".join(lines)
    digits = (np.frombuffer(text, np.uint8) - np.uint8(48)) < 10
    for step in (1, 2, 4, 8, 3):  # where 2, 4, 8, 16 and 19 digits begin
        digits = digits[:-step] & digits[step:]
        if not digits.any():
            return set()
    begins = (place for place in np.flatnonzero(digits).tolist() if not text[place - 1 : place].isdigit())
    return {text.count(b"\n", 0, place) for place in begins if text[place - 1 : place] != b"."}
