"""Iterable datasets of lines: in order without an index, or shuffled by parts.

In order, a pass keeps the lines of one section in memory. Its position is where that section begins, and how many of
its samples were returned. To resume, it decompresses from the beginning of the last member or frame before the section:
a file of a single gzip member is decompressed from its beginning.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from feedline.abc.source import StreamSource
from feedline.datasets.formats.lines.format import LineFormat
from feedline.datasets.formats.lines.inflating import Inflating, Point, packing_in
from feedline.datasets.formats.lines.places import Place
from feedline.datasets.formats.lines.sections import Section, Sections
from feedline.datasets.framework.block_stream import BlockPass, BlockStream
from feedline.datasets.framework.passes import Part, ResumablePass, Stream, names_sum, torch_worker
from feedline.datasets.framework.source import Transform
from feedline.datasets.storage.ahead import read_ahead
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage
from feedline.errors import BadState, CorruptSource, SourceChanged
from feedline.randomness.scope import is_in_loader
from feedline.system.handle import Handle
from feedline.types import State

_RUN = 32
"""Lines parsed at a time, if samples are asked for one by one. A guess: parsing more saves little, and what is skipped
next was parsed for nothing."""
_MOST = 128
"""Lines parsed at a time, if many samples are asked for. A guess: more save nothing, and hold more memory."""


class LineStream(Stream, StreamSource):
    """The samples of files of lines, in order; created by `JSONLines.stream` and `TextLines.stream`.

    A feedline loader assigns samples to workers and ranks: each sample comes once. In torch's own loader, workers take
    turns. States are exact.
    """

    def __init__(
        self, files: list[Place], line_format: LineFormat, remote: Remote, *, transform: Transform | None
    ) -> None:
        super().__init__()
        self.files = files
        self.format = line_format
        self.remote = remote
        self.transform = transform
        self._versions = {file.address: file.version for file in files}
        addresses = [file.address for file in files]
        self._storage: Handle[Storage] = Handle(functools.partial(Storage, remote, addresses), Storage.close)

    @property
    def hands_on_images(self) -> bool:
        """As `Source.hands_on_images`."""
        return getattr(self.transform, "defers", False)

    @property
    def draws_nothing(self) -> bool:  # type: ignore[override]  # a transform can be anything
        return self.transform is None

    def __iter__(self) -> LinePass:
        return LinePass(self, self._part())

    def _part(self) -> Part:
        # feedline loaders distribute samples themselves; torch's loader leaves it to the dataset.
        return (0, 1) if is_in_loader() else torch_worker()

    def open(self, address: str) -> Blob:
        """Open a file; called by threads."""
        return self._storage.get().open(address, self._versions.get(address))

    @functools.cached_property
    def names_sum(self) -> list[int]:
        """Number of the files, and a checksum of their names."""
        return names_sum(file.address for file in self.files)

    def close(self) -> None:
        """Close the connections of this process. They are reopened when needed."""
        self._storage.close()

    def __repr__(self) -> str:
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        what = repr(self.files[0].name) if len(self.files) == 1 else f"{len(self.files)} files"
        return f"LineStream({what}, each sample {self.format.describe()}{transform})"


_BEGINNING: State = {"file": 0, "start": 0, "line": 1, "point": [0, 0], "packing": "", "size": -1, "number": 0}
"""Where a section begins: its file; its offset in the content; the number of its first line; the place to decompress
from; the compression and the size of the file, -1 if it was not opened yet; and the number of samples before it."""


class LinePass(ResumablePass[int]):
    """One pass over the lines of all files, or over every n-th of them.

    Its items are places in the current section. After an exception it continues with the next line, or with the next
    file if the rest of one is damaged. If a file cannot be reached, the pass breaks off.
    """

    _name = "files of lines"

    def __init__(self, stream: LineStream, part: Part = (0, 1)) -> None:
        super().__init__(part, stream.transform)
        self._stream = stream
        self._reader: _Reader | None = None
        self._begin({**_BEGINNING, "skip": 0})

    def _begin(self, position: State) -> None:
        self.close()
        self._start = {name: position[name] for name in _BEGINNING}
        """The beginning of the section, in the form of a state."""
        self._to_skip: int = position["skip"]
        """Samples of this part to skip from there on, before a section is loaded."""
        self._section: Section | None = None
        self._lines: list[bytes] = []
        """The lines of the section that are samples of this part."""
        self._place = 0
        """The next of them."""
        self._ahead: list[object] = []
        """Samples already made, before their transform."""
        self._first = 0
        """The place of the first one."""

    def close(self) -> None:
        """Close the files, and end the threads that read ahead. The next sample opens them again."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _load(self) -> bool:
        """Go on to the next section that has samples of this part; False at the end.

        Raises SourceError: a file cannot be reached; the next call tries again.
        """
        self.has_broken_off = False
        while self._place >= len(self._lines):
            try:
                if self._reader is None:
                    self._reader = _Reader(self._stream, self._start)
                found = self._reader.next()
            except BaseException as exc:
                self._begin(self._position())
                self.has_broken_off = isinstance(exc, Exception)
                raise
            if found is None:
                return False
            self._go_to(*found)
        return True

    def _go_to(self, section: Section, start: State) -> None:
        self._section, self._start = section, start
        number, count = self._part
        lines = section.kept(self._stream.format)
        self._lines = lines if count == 1 else lines[(number - start["number"]) % count :: count]
        self._place = min(self._to_skip, len(self._lines))
        self._to_skip -= self._place
        self._ahead = []

    def _take(self) -> int:
        if self._place >= len(self._lines) and not self._load():
            raise StopIteration
        self._place += 1
        return self._place - 1

    def _make(self, item: int) -> object:
        if not self._first <= item < self._first + len(self._ahead):
            self._ahead, self._first = self._samples(item, _RUN), item
        return self._ahead[item - self._first]

    def _samples(self, place: int, count: int) -> list[object]:
        """Make up to `count` samples, fewer before one that cannot be made. Raises SourceError: that is the first."""
        section, line_format = self._section, self._stream.format
        assert section is not None
        if section.damage is not None:
            raise section.damage
        lines = self._lines[place : place + count]
        samples, bad = line_format.parse(lines)
        if bad is None or samples:
            return samples
        number, parts = self._part
        among = place * parts + (number - self._start["number"]) % parts
        name = self._stream.files[self._start["file"]].name
        raise bad.error(name, section.number(among, line_format), lines[0])

    def try_again(self) -> bool:
        self._ahead = []  # a transform may have modified its input
        return super().try_again()

    def skip(self, count: int) -> int:
        """Skip up to `count` samples without parsing their lines; return how many were skipped."""
        skipped = 0
        if self._again is not None and count:
            self._again, skipped = None, 1
        while skipped < count and (self._place < len(self._lines) or self._load()):
            step = min(count - skipped, len(self._lines) - self._place)
            self._place += step
            skipped += step
        return skipped

    # Any: samples of any kind.
    def take(self, count: int) -> list[Any]:
        """Return the next `count` samples, which takes less time than one by one; none at the end.

        There are fewer at the end, and before a sample that cannot be made. The next call then raises its exception.
        """
        position, samples = self._position(), list[object]()
        try:
            while len(samples) < count and (
                made := self._several(min(_MOST, count - len(samples)), is_first=not samples)
            ):
                samples += made
        except BaseException as exc:
            if not isinstance(exc, Exception):  # an interrupt: return these samples next time
                self._again = self._failed = None
                self._begin(position)
            raise
        return samples

    def _several(self, count: int, *, is_first: bool) -> list[object]:
        """Return up to `count` samples of one section; none at the end, and before one that cannot be made.

        Raises an exception if none can be made and `is_first`.
        """
        if self._again is not None:
            return [next(self)]
        self._failed = None
        samples: list[object] = []
        try:
            if self._place >= len(self._lines) and not self._load():
                return []
            place = self._place
            made, transform = self._samples(place, count), self._transform
            if transform is None:
                samples = made
            else:
                for sample in made:
                    samples.append(transform(sample))
        except Exception:
            if is_first and not samples:
                if not self.has_broken_off:
                    self._failed, self._place = self._place, self._place + 1
                raise
            self.has_broken_off = False
        self._place += len(samples)
        return samples

    def _position(self) -> dict[str, object]:
        place = self._place if self._again is None else self._again
        return {**self._start, "skip": place + self._to_skip}

    def _options(self) -> dict[str, object]:
        return {"files": self._stream.names_sum}

    def _enter(self, state: State) -> None:
        if not 0 <= state["file"] <= len(self._stream.files):
            raise BadState(f"The state is at file {state['file']}, but there are {len(self._stream.files)}.")
        self._begin(state)


class _Reader:
    """Reads sections of all files from a position on."""

    def __init__(self, stream: LineStream, begin: State) -> None:
        self._stream = stream
        self._begin = begin
        self._file: int = begin["file"]
        addresses = [file.address for file in stream.files[self._file :]]
        starts = itertools.chain([begin["point"][0]], itertools.repeat(0))
        self._ahead = read_ahead(stream.open, list(zip(addresses, starts, strict=False)), stream.remote)
        self._number: int = begin["number"]
        self._blob: Blob | None = None
        self._packing = ""
        self._sections: Sections | None = None

    def next(self) -> tuple[Section, State] | None:
        """Return the next section and the position of its beginning; None at the end.

        If the rest of a file is damaged, the section has no lines but the damage. Raises SourceError: a file cannot be
        reached, or has changed.
        """
        while self._file < len(self._stream.files):
            try:
                if self._sections is None:
                    self._sections = self._open()
                section = self._sections.next()
            except CorruptSource as exc:
                section = self._damaged(exc)
            if section is None:
                self._leave()
                continue
            start = {
                "file": self._file,
                "start": section.start,
                "line": section.first,
                "point": list(section.point),
                "packing": self._packing,
                "size": -1 if self._blob is None else self._blob.size,
                "number": self._number,
            }
            self._number += len(section.kept(self._stream.format))
            if section.damage is not None:
                self._blob = None
                self._leave()
            return section, start
        self.close()
        return None

    def _open(self) -> Sections:
        begin = self._begin
        blob = self._blob = self._ahead.next_blob()
        assert blob is not None
        if begin["size"] not in (-1, blob.size):
            raise SourceChanged(
                f"{blob.name} has {blob.size} bytes, but had {begin['size']} when the state was saved. Use the data "
                "that the state was saved with, or begin the epoch anew, without the state."
            )
        head = self._ahead.next_chunk()
        point = Point(*begin["point"])
        packing = packing_in(head[:8]) if begin["size"] == -1 else begin["packing"] or None
        self._packing = packing or ""
        chunks = itertools.chain([head], iter(self._ahead.next_chunk, b""))
        pieces = Inflating(packing, functools.partial(next, chunks, b""), blob.name, point)
        limit = self._stream.format.limit
        return Sections(pieces, blob.name, start=begin["start"], first=begin["line"], limit=limit)

    def _damaged(self, exc: CorruptSource) -> Section:
        if self._sections is not None:
            return self._sections.damaged(exc)
        begin = self._begin
        return Section(begin["start"], begin["line"], [b""], Point(*begin["point"]), damage=exc)

    def _leave(self) -> None:
        """Go on to the next file. Raises SourceChanged: this one was changed while it was read."""
        blob, self._blob, self._sections = self._blob, None, None
        self._file += 1
        self._begin = _BEGINNING
        if blob is not None:
            blob.check()

    def close(self) -> None:
        """End the threads that read ahead."""
        self._ahead.close()


class ShuffledLines(BlockStream):
    """The samples of files of lines in random order, part by part; created by `JSONLines.stream(shuffle=True)`.

    It works as the stream of a `ParquetDataset`, with parts of files in place of row groups.
    """

    def __iter__(self) -> ShuffledPass:
        return ShuffledPass(self, self._part())

    def __repr__(self) -> str:
        return super().__repr__().replace("BlockStream", "ShuffledLines", 1)


class ShuffledPass(BlockPass):
    """One pass in random order."""

    _name = "parts of files of lines"
