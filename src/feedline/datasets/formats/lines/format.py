"""Finds lines in a file that is read in order, and turns lines into samples: text, or JSON values and their fields."""

from __future__ import annotations

import importlib.util
import json
import operator
import os
from abc import abstractmethod
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from feedline.datasets.framework.form import Fields, Form, listed, names_in
from feedline.datasets.framework.shard_format import Run, ShardFormat
from feedline.datasets.framework.shares import Entry, ShardShare
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.content import Content
from feedline.errors import CorruptSource, SourceError
from feedline.system.failures import words
from feedline.system.optional import require

SECTION_BYTES = 1 << 20
"""Content to split into lines at a time. A guess."""
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


@dataclass(slots=True)
class LineRun(Run[bytes]):
    """Whole lines of a file, and those of them that are samples as its `records`."""

    name: str
    """The name of the file, for errors."""
    lines: list[bytes]

    def line(self, place: int) -> int:
        """Return the number of the line of a sample in its file, which begins with line 1."""
        if len(self.lines) == len(self.records):
            return self.entry.line + place
        return self.entry.line + [number for number, line in enumerate(self.lines) if line.strip(SPACE)][place]


class LineFormat(ShardFormat[bytes]):
    """How lines are found, and become samples."""

    kind = "files of lines"
    made_ahead = 32  # a guess: parsing more at a time saves little, and what is skipped next was parsed for nothing
    skips_blank = False
    """True if lines that contain only white space are no samples."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """The most bytes of a line."""

    def runs(self, content: Content, blob: Blob, share: ShardShare) -> Iterator[LineRun]:
        begin = share.entry
        line, ordinal, rest, damage, has_ended = begin.line, begin.ordinal, b"", None, False
        start, is_first = content.offset, content.offset == 0
        while not has_ended:
            pieces, size, has_line = [rest], len(rest), b"\n" in rest
            while (size < SECTION_BYTES or not has_line) and (size <= self.limit or has_line) and not has_ended:
                try:
                    piece = content.take_some()
                except CorruptSource as exc:
                    damage, piece = exc, b""
                pieces.append(piece)
                size, has_line, has_ended = size + len(piece), has_line or b"\n" in piece, not piece
            text = b"".join(pieces)
            if is_first:
                start, is_first = mark_bytes(text, blob.name), False
                text = text[start:]
            is_long, is_blank = not (has_line or has_ended), False
            if not is_long:
                cut = len(text) if has_ended and damage is None else text.rfind(b"\n") + 1
                lines, rest = split_lines(text[:cut]), text[cut:]
            else:
                cut, rest, has_ended, is_blank = self._pass_long_line(content, text)
                lines = [text[: self.limit + 1]]
            # Blank lines come before all others that begin with a visible character.
            may_be_blank = self.skips_blank and (is_blank or not is_long) and bool(lines) and min(lines)[:1] <= b" "
            kept = [one for one in lines if one.strip(SPACE)] if may_be_blank else lines
            if kept:
                entry = Entry(*content.place(start), ordinal, line, begin.size, begin.packing)
                yield LineRun(entry, ordinal, kept, blob.name, lines)
            start, line, ordinal = start + cut, line + len(lines), ordinal + len(kept)
        if damage is not None:
            raise damage

    def _pass_long_line(self, content: Content, text: bytes) -> tuple[int, bytes, bool, bool]:
        """Go on after a line that is longer than the limit, and begins with `text`.

        Return its bytes, what follows, whether all ended, and whether the line is blank.
        """
        size, is_blank = len(text), not text.strip(SPACE)
        while piece := content.take_some():
            end = piece.find(b"\n") + 1
            size += end or len(piece)
            is_blank = is_blank and not piece[: end or None].strip(SPACE + b"\n")
            if end:
                return size, piece[end:], False, is_blank
        return size, b"", True, is_blank

    def build(self, run: Run[bytes], place: int) -> object:
        return self.build_several(run, range(place, place + 1))[0]

    def build_several(self, run: Run[bytes], places: range) -> list[object]:
        lines = run.records[places.start : places.stop]
        samples, bad = self.parse(lines)
        if bad is not None and not samples:
            assert isinstance(run, LineRun)
            raise bad.error(run.name, run.line(places.start), lines[0])
        return samples

    def __repr__(self) -> str:
        return self.describe()

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


def mark_bytes(head: bytes, name: str) -> int:
    """Return the size of the byte order mark at the beginning of a file. Raises CorruptSource: it is in UTF-16."""
    if head[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):
        raise CorruptSource(
            f"{name} is in UTF-16, but lines are read as UTF-8. Convert it: `iconv -f UTF-16 -t UTF-8`."
        )
    return len(BOM_UTF8) if head[:3] == BOM_UTF8 else 0


def split_lines(content: bytes) -> list[bytes]:
    r"""Return the lines without their ends, which are \n or \r\n.

    Example:
        >>> split_lines(b"a\r\n\nb"), split_lines(b"a\n"), split_lines(b"")
        ([b'a', b'', b'b'], [b'a'], [])
    """
    if b"\r" in content:  # which is found fifty times as fast as both together
        content = content.replace(b"\r\n", b"\n")
    lines = content.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return lines
