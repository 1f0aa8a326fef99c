"""Decompressed copies of files, for random access: made once, and used by all processes of a machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from feedline.datasets.cache_file import cache_home, check_own, is_foreign
from feedline.datasets.lines.index import chunks_of
from feedline.datasets.lines.inflating import Inflating, packing_in
from feedline.datasets.paths import local_output
from feedline.datasets.remote.blob import Blob
from feedline.errors import PerformanceWarning, SourceError, warn_user
from feedline.types.shown import identity_of

_MARK = "unpacked-lines.feedline"
"""A file that marks the folder as feedline's."""


class UnpackedFiles:
    """A folder of decompressed files; None for one in the user's cache folder.

    The names of the copies derive from address, size and tag of the files, so a changed file has another one.
    """

    def __init__(self, unpack: str | os.PathLike[str] | None) -> None:
        self.folder = cache_home() / "lines" if unpack is None else local_output("unpack", unpack)

    def path_of(self, blob: Blob) -> str | None:
        """Return the path of a decompressed copy, made now if there is none; None if the file is not compressed.

        If it cannot be written, warn and return None. Raises CorruptSource: the file is damaged.
        """
        packing = packing_in(blob.read(0, min(8, blob.size)))
        if packing is None or not blob.tag:  # without a tag, an outdated copy could not be detected
            return None
        name = os.path.realpath(blob.name) if blob.is_local else identity_of(blob.address)
        family = f"{Path(name).stem}-{_digest(name)}-"
        path = self.folder / f"{family}{_digest(blob.size, blob.tag)}.lines"
        if path.exists() and not is_foreign(path):
            return str(path)
        try:
            self._write(path, Inflating(packing, chunks_of(blob), blob.name), family)
        except SourceError:
            raise
        except OSError as exc:
            warn_user(
                f"{blob.name} cannot be unpacked to {str(self.folder)!r} ({exc.strerror or exc}), so that it is "
                "decompressed again and again. Give unpack= a folder that can be written to, with room for all of it.",
                PerformanceWarning,
            )
            return None
        blob.check()
        return str(path)

    def _write(self, path: Path, pieces: Inflating, family: str) -> None:
        check_own(self.folder, _MARK)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _MARK).touch()
        fd, name = tempfile.mkstemp(prefix=f"{_MARK}.", dir=self.folder)
        try:
            with os.fdopen(fd, "wb") as file:
                while piece := pieces.next_piece():
                    file.write(piece)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        for other in self.folder.glob(f"{glob_escape(family)}*.lines"):  # of earlier versions of the file
            if other != path:
                with contextlib.suppress(OSError):
                    other.unlink()


def glob_escape(name: str) -> str:
    """Return a name as a pattern that matches only this name."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def _digest(*about: object) -> str:
    return hashlib.blake2b(repr(about).encode(), digest_size=6).hexdigest()
