"""`GrowingFile`: the lines of a file that somebody else appends to.

A reader keeps the file open, so that it can finish one that was renamed (rotated), and then looks by the times of their
last changes which file comes next among those whose names begin alike: `log.jsonl.2`, `log.jsonl.1`, `log.jsonl`.
A line counts when its end is there; what comes before that is read again later.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from feedline.datasets.handle import Handle
from feedline.datasets.streams.feed import Feed, Message
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.values.shown import shown_address

_PIECE = 1 << 16
_LOOK_S = 0.05
"""How often to look for new lines. A guess between delay and work."""


class Place(NamedTuple):
    """After a line: which file, where in it, which line, for which of how many readers."""

    file: int
    """Its inode."""
    offset: int
    line: int
    reader: int
    readers: int


class GrowingFile(Feed):
    r"""Follows a file of lines, by default JSON lines, as `tail -F` does: growth, rotation and truncation.

    Readers share out the lines by turns. A line that cannot be decoded is an error about that sample, which `on_error=`
    of the loader may skip.

    Args:
        path: the file. It may come to be later, and is waited for without a word; its folder has to be there.
        start: "beginning" or "end" of the file, where a reader begins that has no offsets and no state.
        offsets: a file in which to keep how far the lines were consumed, so that the next run goes on there. As long as
            nothing is kept, reading begins with the oldest file that it was rotated into.
        decode: makes a sample of a line, given as bytes without its end; None to leave it as it is.

    Raises:
        BadOption: an option is none.
        SourceError: when it is first used: there is no such folder, or the file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> _ = path.write_text('{"a": 1}\n{"a":')
        >>> feed = GrowingFile(path)
        >>> feed.subscribe(0, 1)
        >>> [feed.decode(message) for message in feed.receive(10, wait_s=0)]
        [{'a': 1}]
        >>> feed.close()
    """

    # Any: a sample is what the decoder makes.
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        start: str = "beginning",
        offsets: str | os.PathLike[str] | None = None,
        decode: Callable[[bytes], Any] | None = json.loads,
    ) -> None:
        if start not in ("beginning", "end"):
            raise BadOption(f"start={start!r} is neither 'beginning' nor 'end'.")
        if start == "end" and offsets is not None:
            raise BadOption(
                "start='end' and offsets= were both given: where the file ended when nothing had been consumed yet is "
                "kept nowhere, so that a crash might lose lines. Drop one of them."
            )
        if decode is not None and not callable(decode):
            raise BadOption(f"decode={decode!r} is not a function that takes a line.")
        self.path = Path(path).absolute()
        self._start = start
        self._offsets = None if offsets is None else Path(offsets).absolute()
        self._decode = decode
        self._reader: Handle[_Reader] = Handle(
            functools.partial(_Reader, self.path, self._offsets), _Reader.close, close_inherited=True
        )
        self._reader_number, self._readers = 0, 1
        self._begins_at: Place | None = None
        self._begins = True
        self._acknowledged: dict[int, Place] | None = None

    def subscribe(self, number: int, count: int) -> None:
        self._reader.close()
        if not self.path.parent.is_dir():
            raise SourceError(
                f"There is no folder for {shown_address(str(self.path))!r}. Correct the path, or make the folder. "
                "Only local files are read here."
            )
        self._reader_number, self._readers = number, count
        self._begins_at = None
        if self._offsets is not None:
            files = [inode for inode in map(_inode, _files(self.path, self._offsets)) if inode >= 0]
            self._begins_at = _place_for(number, count, self._kept(), files)
        self._begins = True

    def receive(self, most: int, wait_s: float) -> list[Message]:
        reader = self._reader.get()
        if self._begins:
            self._begins = False
            reader.begin(self._begins_at, at_end=self._start == "end")
        deadline_s = time.monotonic() + wait_s
        while True:
            messages = self._take(reader, most)
            left_s = deadline_s - time.monotonic()
            if messages or left_s <= 0:
                return messages
            time.sleep(min(_LOOK_S, left_s))

    def _take(self, reader: _Reader, most: int) -> list[Message]:
        messages: list[Message] = []
        while len(messages) < most:
            found = reader.next_line()
            if found is None:
                break
            line, file, offset, number = found
            if number % self._readers == self._reader_number:
                place = Place(file, offset, number + 1, self._reader_number, self._readers)
                messages.append(Message(line, place))
        return messages

    def decode(self, message: Message) -> Any:
        if self._decode is None:
            return message.payload
        try:
            return self._decode(message.payload)
        except Exception as exc:
            place = message.receipt
            raise BadLine(
                f"Line {place.line} of {self.path}, which ends at byte {place.offset}, cannot be decoded ({exc}): "
                f"{message.payload[:80]!r}"
            ) from exc

    def acknowledge(self, receipts: list[Any]) -> None:
        if self._offsets is None:
            return
        if self._acknowledged is None:
            self._acknowledged = self._kept()
        for receipt in receipts:
            place = Place(*receipt)
            if any(known.readers != place.readers for known in self._acknowledged.values()):
                self._acknowledged = {}
            self._acknowledged[place.reader] = place
        _write(self._offsets, {"places": [list(place) for place in self._acknowledged.values()]})

    def _kept(self) -> dict[int, Place]:
        """Return how far the readers of the last run were."""
        if self._offsets is None or not self._offsets.exists():
            return {}
        try:
            places = [Place(*map(int, place)) for place in json.loads(self._offsets.read_text())["places"]]
        except (ValueError, TypeError, KeyError) as exc:
            raise SourceError(
                f"{self._offsets} does not hold offsets, or is damaged ({exc}). Remove it to begin anew, or give "
                "another file as offsets=."
            ) from exc
        return {place.reader: place for place in places}

    def state(self, last: Any) -> Any:
        place = self._begins_at if last is None else last
        return None if place is None else list(place)

    def restore(self, state: Any) -> None:
        self._begins_at = Place(*state)
        self._begins = True

    def close(self) -> None:
        self._reader.close()
        self._begins = True

    def __repr__(self) -> str:
        return f"GrowingFile({shown_address(str(self.path))!r})"


class BadLine(CorruptSource, ValueError):
    """A line cannot be decoded."""


class _Reader:
    """Reads whole lines, one after the other, and goes on to the next file when one was rotated."""

    def __init__(self, path: Path, offsets: Path | None) -> None:
        self._path = path
        self._offsets = offsets
        self._fd = -1
        self._file = 0
        self._held = b""
        """What was read of lines that were not handed out yet."""
        self._offset = 0
        """Where that begins."""
        self._line = 0

    def begin(self, place: Place | None, *, at_end: bool) -> None:
        """Go to a place; without one, to the beginning or the end of the current file."""
        self.close()
        if place is None:
            if at_end and self._open(self._path):
                self._offset = os.fstat(self._fd).st_size
            return
        files = _files(self._path, self._offsets)
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if found.st_ino == place.file and found.st_size >= place.offset and self._open(path):
                    self._offset, self._line = place.offset, place.line
                    return
                if found.st_ino == place.file:
                    return  # it was cut off: what is there now is new
        for path in files:  # it is gone, as the oldest are: those that are left come after it
            if self._open(path):
                return

    def next_line(self) -> tuple[bytes, int, int, int] | None:
        """Return a line, its file, where it ends and its number; None if there is no whole line yet."""
        if self._fd < 0 and not self._open(self._path):
            return None
        searched = 0
        while (end := self._held.find(b"\n", searched)) < 0:
            searched = len(self._held)
            piece = os.pread(self._fd, _PIECE, self._offset + len(self._held))
            if piece:
                self._held += piece
            elif not self._go_on():
                return None
            elif self._held:  # the file was rotated before its last line was ended, and nobody will end it
                end = len(self._held)
                return self._cut(end, end)
            else:
                self._open_next()
                searched = 0
        return self._cut(end, end + 1)

    def _cut(self, end: int, after: int) -> tuple[bytes, int, int, int]:
        line, self._held = self._held[:end].rstrip(b"\r"), self._held[after:]
        self._offset += after
        self._line += 1
        return line, self._file, self._offset, self._line - 1

    def _go_on(self) -> bool:
        """At the end of a file: True if there is another one after it. A file that was cut off begins anew."""
        here = os.fstat(self._fd)
        if here.st_size < self._offset:
            self._held, self._offset, self._line = b"", 0, 0
            return False
        try:
            return self._path.stat().st_ino != self._file
        except FileNotFoundError:
            return False  # between two files

    def _open_next(self) -> None:
        mine = os.fstat(self._fd)
        files = _files(self._path, self._offsets)
        known = [path for path in files if _inode(path) == self._file]
        later = files[files.index(known[0]) + 1 :] if known else [p for p in files if _changed(p) > mine.st_mtime_ns]
        for path in [*later, self._path]:
            if self._open(path):
                return

    def _open(self, path: Path) -> bool:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise SourceError(f"{path} cannot be read: {exc.strerror}.") from exc
        self.close()
        self._fd, self._file = fd, os.fstat(fd).st_ino
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self.close()
            raise SourceError(f"{path} cannot be read: it is no ordinary file.")
        self._held, self._offset, self._line = b"", 0, 0
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _files(path: Path, offsets: Path | None) -> list[Path]:
    """Return a file and those that it was rotated into, the oldest first; the file itself is the newest.

    The offsets, and what is about to become them, may have a name that begins alike.
    """
    own = None if offsets is None or offsets.parent != path.parent else offsets.name
    others = [
        other
        for other in path.parent.glob(f"{_escaped(path.name)}.*")
        if other.is_file() and other.suffix not in (".gz", ".bz2", ".xz", ".zst")
        if own is None or not (other.name == own or (other.name.startswith(own) and other.suffix == ".tmp"))
    ]
    return [*sorted(others, key=_changed), path]


def _inode(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino
    return -1


def _changed(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return -1


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _place_for(number: int, count: int, kept: dict[int, Place], files: list[int]) -> Place | None:
    """Return where a reader goes on: where it was; where the last of them was, if there were more or fewer of them.

    Args:
        number: which reader.
        count: how many there are now.
        kept: how far the readers were.
        files: the inodes of the files, the oldest first.
    """
    if number in kept and kept[number].readers == count and len(kept) == count:
        return kept[number]
    beginning = Place(files[0], 0, 0, number, count) if files else None
    if not kept or len(kept) < next(iter(kept.values())).readers:
        return beginning  # one of them has not consumed anything, so that nothing is known to be done
    if any(place.file not in files for place in kept.values()):
        return beginning  # one was in a file that is gone, and those that are left come after it
    return min(kept.values(), key=lambda place: (files.index(place.file), place.offset))


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replace a file at once: nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    with os.fdopen(fd, "w") as file:
        json.dump(content, file)
    os.replace(name, path)
