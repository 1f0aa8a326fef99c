"""Groups the files of a shard into samples."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from feedline.datasets.formats.tar.members import Members
from feedline.datasets.framework.shard_format import Run
from feedline.datasets.framework.shares import BEGINNING, Entry
from feedline.datasets.storage.content import Place
from feedline.errors import CorruptSource

_LONG_KEY = 200
"""Of longer keys a digest is kept: a malicious shard may have very many very long ones."""
_META = re.compile(r"__[^/]*__($|/)")


class RawSample(Run[Any]):
    """A sample as stored in its shard: a run of one. Its entry is made when it is asked for, which is hardly ever."""

    __slots__ = ("begin", "data", "names", "ordinal", "place", "start")

    def __init__(self, data: dict[str, Any], ordinal: int, start: int, names: set[str]) -> None:
        self.data = data
        """`__key__`, `__url__`, and the bytes of each field. Any: what `take` of the grouping returns."""
        self.ordinal = ordinal
        """Its number in the shard."""
        self.start = start
        """The offset of its first header."""
        self.names = names
        """Names of all of its fields in the shard, including unwanted ones."""
        self.begin = BEGINNING
        """Where reading began."""
        self.place: Place | None = None
        """Where reading can begin to find it again; None for where it began."""

    @property
    def records(self) -> tuple[RawSample]:  # type: ignore[override]  # not stored
        return (self,)

    @property
    def entry(self) -> Entry:  # type: ignore[override]  # not stored
        if self.place is None:
            return self.begin
        return Entry(*self.place, self.ordinal, size=self.begin.size, packing=self.begin.packing)


class Grouping:
    """Iterates over the samples of a shard. Consecutive files with the same key make a sample.

    Args:
        members: the files of the shard.
        shard: its name, for errors.
        fields: the fields that are wanted; None for all.
        wants: says of a sample, by its number, whether it is wanted; None for all.
        ordinal: the number of the sample where `members` starts.
        unique: True to refuse a key that has occurred before.
        take: reads what is wanted from the current file.
    """

    # object: the result of `take`.
    def __init__(
        self,
        members: Members,
        shard: str,
        *,
        fields: frozenset[str] | None = None,
        wants: Callable[[int], bool] | None = None,
        ordinal: int = 0,
        unique: bool = True,
        take: Callable[[Members], object] = Members.read,
    ) -> None:
        self._members = members
        self._shard = shard
        self._fields = fields
        self._wants = wants
        self._unique = unique
        self._take = take
        self._keys: set[str] = set()
        self._count = 0
        """Samples so far, including those to skip."""
        self._next: tuple[str, str] | None = None
        """Key and field of the current file, if it belongs to the next sample."""
        self._ordinal = ordinal
        """The number of the next sample."""

    def next(self) -> RawSample | None:
        """Return the next wanted sample, None at the end.

        Raises CorruptSource: the shard is damaged, or a field or a key occurs twice.
        """
        while True:
            is_wanted = self._wants is None or self._wants(self._ordinal)
            sample = self._read(is_wanted)
            if sample is None or is_wanted:
                return sample

    def _read(self, wanted: bool) -> RawSample | None:
        """Read the next sample; its fields only if `wanted`."""
        while True:
            first = self._next or self._advance()
            if first is None:
                self._members.check_count(self._count)
                return None
            self._count += 1
            start = self._members.start
            data, names, is_bad = self._collect(first, wanted)
            if is_bad:  # the webdataset package marks samples to skip this way
                continue
            self._ordinal += 1
            return RawSample(data, self._ordinal - 1, start, names)

    def _collect(self, first: tuple[str, str], wanted: bool) -> tuple[dict[str, object], set[str], bool]:
        members, fields = self._members, self._fields
        key, field = first
        if self._unique:
            self._note(key)
        data: dict[str, object] = {"__key__": key, "__url__": self._shard}
        seen, is_bad, size = {"__key__", "__url__"}, False, 0
        here = first
        while here[0] == key:
            field = here[1]
            if field in seen:
                raise CorruptSource(
                    f"{self._shard}: sample {key!r} has the field {field!r} twice, the second time in the file "
                    f"{members.name!r} at byte {members.start}. Field names ignore upper and lower "
                    "case, and each may occur only once in a sample."
                )
            seen.add(field)
            if field == "__bad__" and members.size:
                is_bad = True
            if wanted and (fields is None or field in fields):
                size += members.size
                if size > members.most:
                    members.check_limit(f"sample {key!r}, as far as it was read,", size)
                data[field] = self._take(members)
            following = self._advance()
            if following is None:
                self._next = None
                break
            here = self._next = following
        return data, seen, is_bad

    def _advance(self) -> tuple[str, str] | None:
        """Advance to the next file that belongs to a sample; return its key and field."""
        while self._members.advance():
            split = split_name(self._members.name)
            if split is not None:
                return split
        return None

    def _note(self, key: str) -> None:
        known = key if len(key) <= _LONG_KEY else hashlib.blake2b(key.encode("utf-8", "surrogateescape")).hexdigest()
        if known in self._keys:
            raise CorruptSource(
                f"{self._shard}: the key {key!r} comes again at byte {self._members.start}, after other samples. The "
                "files of a sample have to follow each other: sort them by name when the shard is written. If they are "
                "samples of their own, unique_keys=False takes them as such."
            )
        self._keys.add(known)


def split_name(name: str) -> tuple[str, str] | None:
    """Return the key and the field that a file name encodes; None if the file belongs to no sample.

    These are the rules of the webdataset package.

    The key is everything up to the first dot in the last part of the path; the field is the rest in lower case. Files
    without an extension, those whose name begins with a dot, and those in folders named `__name__` belong to no sample.
    A hidden file in a folder belongs, oddly, to a sample named after the folder: `a/.b` is field `b` of `a/`. A name is
    never used as a path: one like `../../x.jpg` is a key like any other.

    Example:
        >>> split_name("train/0001.seg.PNG"), split_name("../../x.jpg"), split_name("__meta__.json")
        (('train/0001', 'seg.png'), ('../../x', 'jpg'), ('__meta__', 'json'))
        >>> split_name("README"), split_name(".hidden"), split_name("__meta__/a.txt")
        (None, None, None)
    """
    if name.startswith("__") and _META.match(name):
        return None
    # Equivalent to the package's ^((?:.*/|)[^.]+)[.]([^/]*)$, whose time grows with the square of the name's length.
    dot = name.find(".")
    if "/" in name[dot:]:  # in a folder's name: after the last such folder there must be a part without a dot
        dot = name.find(".", name.rfind("/"))
        start = name.find("/", name.rfind(".", 0, max(0, dot))) + 1
        if start >= dot or "\n" in name[:start]:
            return None
    return (name[:dot], name[dot + 1 :].lower()) if dot > 0 else None
