"""The folder of a file that the user has named for an output: created if needed, before any work is done for it."""

from __future__ import annotations

import os
from pathlib import Path

from feedline.errors import BadOption
from feedline.system.failures import words


def make_folder_for(path: Path) -> None:
    """Create the folder that `path` is to be written to, with its parents, unless it exists.

    Raises:
        BadOption: it cannot be created, or files cannot be created in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_folder_for(Path(folder, "runs", "monday", "page.html"))
        ...     Path(folder, "runs", "monday").is_dir()
        True
    """
    folder = path.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BadOption(f"{path} cannot be written: {words(exc)}. Choose another place.") from exc
    if not os.access(folder, os.W_OK):
        raise BadOption(f"{path} cannot be written: {folder} is not writable. Choose another place.")
