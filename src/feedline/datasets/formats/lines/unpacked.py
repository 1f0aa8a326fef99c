"""Decompressed copies of files, for random access: made once, and used by all processes of a machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from feedline.datasets.formats.lines.index import chunks_of
from feedline.datasets.formats.lines.inflating import Inflating, packing_in
from feedline.datasets.framework.cache_file import cache_home, check_own, is_foreign
from feedline.datasets.framework.kept_file import KeptFile, keep
from feedline.datasets.framework.paths import local_output
from feedline.datasets.storage.addresses import identity_of
from feedline.datasets.storage.blob import Blob
from feedline.errors import CorruptSource, DataWarning, PerformanceWarning, SourceChanged, SourceError, warn_user
from feedline.system.files import drop_abandoned
from feedline.system.handle import ClosedWhenDeleted

_MARK = "unpacked-lines.feedline"
"""A file that marks the folder as feedline's."""


class UnpackedFiles:
    """A folder of decompressed files; None for one in the user's cache folder.

    The names of the copies derive from address and stamp of the files, so a changed file has another one. They are
    kept files (`datasets/kept_file.py`): one that is incomplete or damaged is made again.
    """

    def __init__(self, unpack: str | os.PathLike[str] | None) -> None:
        self.folder = cache_home() / "lines" if unpack is None else local_output("unpack", unpack)

    def unpacked(self, blob: Blob, reopen: Callable[[], AbstractContextManager[Blob]]) -> Unpacked | None:
        """Return a file with a decompressed copy, made now if there is none; None if the file is not compressed.

        If it cannot be written, warn and return None. Raises CorruptSource: the file is damaged.

        Args:
            blob: the file.
            reopen: opens it again, in case that the copy is lost.
        """
        packing = packing_in(blob.read(0, min(8, blob.size)))
        if packing is None or not blob.tag:  # without a tag, an outdated copy could not be detected
            return None
        name = os.path.realpath(blob.name) if blob.is_local else identity_of(blob.address)
        family = f"{Path(name).stem}-{_digest(name)}-"
        path = self.folder / f"{family}{_digest(blob.stamp)}.lines"
        found = Unpacked(path, family, packing, blob.stamp, reopen)
        if (kept := found.kept()) is not None:
            kept.close()
            return found
        try:
            found.make(blob)
        except SourceError:
            raise
        except OSError as exc:
            warn_user(
                f"{blob.name} cannot be unpacked to {str(self.folder)!r} ({exc.strerror or exc}), so that it is "
                "decompressed again and again. Give unpack= a folder that can be written to, with room for all of it.",
                PerformanceWarning,
            )
            return None
        return found


@dataclass(frozen=True)
class Unpacked:
    """A compressed file and its decompressed copy."""

    path: Path
    """The copy."""
    family: str
    """How the names of the copies of all versions of the file begin."""
    packing: str
    stamp: str
    reopen: Callable[[], AbstractContextManager[Blob]]
    """Opens the compressed file."""

    def kept(self) -> KeptFile | None:
        """Open the copy; None if there is none, or it is not complete."""
        return None if is_foreign(self.path) else KeptFile.open(self.path)

    def make(self, blob: Blob) -> None:
        """Decompress the file, and remove copies of earlier versions."""
        folder = self.path.parent
        check_own(folder, _MARK)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
        drop_abandoned(folder, self.family)
        keep(self.path, iter(Inflating(self.packing, chunks_of(blob), blob.name).next_piece, b""))
        blob.check()
        for other in folder.iterdir():
            if other.name.startswith(self.family) and other.suffix == ".lines" and other != self.path:
                with contextlib.suppress(OSError):
                    other.unlink()

    def make_again(self) -> None:
        """Decompress the file once more. Raises SourceChanged: it is another one now."""
        with self.reopen() as blob:
            if blob.stamp != self.stamp:
                raise SourceChanged(
                    f"{blob.name} has changed, and the decompressed copy of what it was is lost. Make the dataset anew."
                )
            self.make(blob)

    def open(self) -> Copy:
        """Open the copy, made again if it is lost. Raises CorruptSource: it cannot be read."""
        kept = self.kept()
        if kept is None:
            self.make_again()
            kept = self.kept()
        if kept is None:
            raise self.unreadable()
        return Copy(self, kept)

    def unreadable(self) -> CorruptSource:
        return CorruptSource(f"{self.path} was just written, and cannot be read. Is the disk of unpack= damaged?")


class Copy(ClosedWhenDeleted, Blob):
    """An open copy, for one thread. What turns out to be damaged is made again."""

    is_local = True

    def __init__(self, unpacked: Unpacked, kept: KeptFile) -> None:
        self.name = self.address = str(unpacked.path)
        self.size, self.tag = kept.size, kept.tag
        self._unpacked = unpacked
        self._kept = kept

    def read(self, start: int, stop: int) -> bytes:
        data = self._kept.read(start, stop)
        if data is None:  # another process may have made it again already
            data = self._read_replaced(start, stop)
        if data is None:
            warn_user(
                f"{self.name}, a decompressed copy, is damaged, and is made again. Is the disk of unpack= failing?",
                DataWarning,
            )
            self._unpacked.make_again()
            data = self._read_replaced(start, stop)
        if data is None:
            raise self._unpacked.unreadable()
        return data

    def _read_replaced(self, start: int, stop: int) -> bytes | None:
        kept = self._unpacked.kept()
        if kept is None or (kept.size, kept.tag) != (self.size, self.tag):
            return None
        self.close()
        self._kept = kept
        return kept.read(start, stop)

    def close(self) -> None:
        self._kept.close()

    def _needs_closing(self) -> bool:
        return "_kept" in self.__dict__


def _digest(*about: object) -> str:
    return hashlib.blake2b(repr(about).encode(), digest_size=6).hexdigest()
