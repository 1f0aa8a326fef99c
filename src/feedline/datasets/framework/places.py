"""Which files the user means: local ones, and those in stores and on web servers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from feedline.datasets.framework.paths import Paths, found_files
from feedline.datasets.framework.remote_files import (
    RemoteFile,
    files_in_store,
    found_remote,
    is_remote,
    is_store_folder,
)
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.blob import Version
from feedline.datasets.storage.storage import Storage
from feedline.errors import BadOption


class Place(NamedTuple):
    """A file."""

    address: str
    """Its path or address. It may contain secrets."""
    version: Version | None
    """The version that a store listed, if any."""

    @property
    def name(self) -> str:
        """Its path or address, without secrets."""
        return shown_address(self.address)

    def __repr__(self) -> str:
        return f"Place({self.name!r}, {self.version})"


# object: anything that a user may give.
def given_paths(paths: object) -> list[str | os.PathLike[str]]:
    """Return paths as a list. Raises BadOption: they are not paths."""
    found: list[object] = (
        list(paths) if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes)) else [paths]
    )
    wrong = next((one for one in found if not isinstance(one, (str, os.PathLike))), None)
    if wrong is not None or not found:
        raise BadOption(
            f"paths= names no files ({wrong!r}). Give a file, a folder, a pattern, an address, or a list of these."
        )
    return found  # type: ignore[return-value]  # checked


def found_places(paths: Paths, storage: Storage, endings: tuple[str, ...]) -> list[Place]:
    """Return the files in order. Raises SourceError: there are none, or a store cannot be listed."""
    found: list[Place] = []
    for path in given_paths(paths):
        if isinstance(path, str) and is_remote(path):
            found += _remote(path, storage, endings)
        else:
            found += [Place(file, None) for file in found_files([path], endings)]
    return found


def local_files(paths: Iterable[str | os.PathLike[str]], endings: tuple[str, ...]) -> Iterable[str]:
    """Return the files on disks of this machine among those that the user means."""
    local = [path for path in paths if not is_remote(path)]
    return found_files(local, endings) if local else ()


def _remote(address: str, storage: Storage, endings: tuple[str, ...]) -> list[Place]:
    if is_store_folder(address):
        return [Place(one, version) for one, version in files_in_store(address, storage, endings).items()]
    files = found_remote(address, storage, endings)
    return [Place(one.address, one.version) if isinstance(one, RemoteFile) else Place(one, None) for one in files]
