"""`open_dataset`: a path, opened with the source that reads it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from feedline.datasets.derived.cache.sample_store import FILE as SAMPLES
from feedline.datasets.derived.formats import READABLE, format_by_name
from feedline.datasets.derived.recognition import ENVIRONMENT, Recognised, recognise
from feedline.datasets.formats.sql import SQLDataset
from feedline.errors import BadOption, CorruptSource
from feedline.system.failures import words


# Any: a dataset of any of the sources, and its options.
def open_dataset(path: str | os.PathLike[str], **options: Any) -> Any:
    """Open a file or folder with the source of `feedline.datasets` that reads it.

    A file is recognised by its first bytes, a folder by its contents, a pattern or an address by its suffix. Tar files
    are opened for random access unless they are compressed. Folders of folders of images are opened as an
    `ImageFolder` with classes; other folders as shards of one dataset, or as a dataset of files.

    Args:
        path: a file, a folder, a pattern such as `"train/*.parquet"`, an address that the source can read, or the
            address of a folder in a store that `feedline pack` wrote: `"s3://bucket/train"`.
        options: options of the source, such as `fields=` or `transform=`. For a SQLite database of several tables,
            `query=` and `key=`.

    Raises:
        BadOption: the path holds several datasets.
        TypeError: the source has no such option.
        SourceError: the path does not exist, or no source reads it.
        CorruptSource: the file is damaged.

    Example:
        >>> import tempfile, pathlib
        >>> import numpy as np
        >>> from feedline.datasets import open_dataset
        >>> path = pathlib.Path(tempfile.mkdtemp(), "points.npy")
        >>> np.save(path, np.zeros((5, 3), np.float32))
        >>> open_dataset(path)
        ArrayDataset(5 samples of float32[3])
    """
    return open_found(recognise(path, options.get("remote")), **options)


# Any: as above.
def open_found(found: Recognised, /, **options: Any) -> Any:
    """Open what `recognise` found with the source that reads it.

    Raises BadOption: no single source reads it.
    """
    if found.format == "stores":
        raise _several(found)
    if found.format == "sqlite":
        if "query" not in options:
            options = {**_table_in(found.path), **options}
        path = os.path.abspath(found.path).replace("%", "%25").replace("?", "%3F").replace("#", "%23")
        return SQLDataset(f"sqlite:///{path}", options.pop("query"), **options)
    # An existing path is never a pattern, even if it contains pattern characters.
    place: object = found.files or (Path(found.path) if os.path.exists(found.path) else found.path)
    if found.format == "megatron" and found.files:
        place = found.files[0]
    if found.format == "precomputed" and os.path.isfile(found.path):
        place = os.path.dirname(os.path.abspath(found.path))
    dataset = READABLE[found.format].source(place, **{**found.options(), **options})
    return dataset.stream() if found.format in ("tar", "tfrecord") and found.is_compressed else dataset


def _several(found: Recognised) -> BadOption:
    first = found.files[0]
    one = first.parent if first.name in (ENVIRONMENT, SAMPLES) else first
    why = "which are not read as one dataset" if len(found.files) > 1 else "which is a store, not a sample"
    if len({format_by_name(file.name) for file in found.files}) == 1 and found.beside and len(found.files) > 1:
        why += f" because of what is beside them ({_some(found.beside, found.path)})"
    return BadOption(
        f"The folder {found.path} contains {_some(found.files, found.path)}, {why}. Name one of them: {one}."
    )


def _some(paths: list[Path], root: str | Path, most: int = 3) -> str:
    """Return the names of the first few files, relative to a folder."""
    names = ", ".join(str(one.relative_to(root)) for one in paths[:most])
    return f"{names} and {len(paths) - most:,} more" if len(paths) > most else names


def _table_in(path: str) -> dict[str, object]:
    """Return `query=` and `key=` for the only table of a database."""
    listing = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True)) as database:
            names = [name for (name,) in database.execute(listing)]
            columns = database.execute("SELECT name, pk FROM pragma_table_info(?)", names[:1]).fetchall()
    except sqlite3.Error as exc:
        raise CorruptSource(f"{path} cannot be read: {words(exc)}. It is damaged or cut off.") from exc
    keys = [name for name, is_key in columns if is_key]
    quoted = '"' + "".join(names[:1]).replace('"', '""') + '"'
    if len(names) == len(keys) == 1:
        return {"query": f"SELECT * FROM {quoted}", "key": keys[0]}
    if len(names) == 1 and not keys and "rowid" not in (name.lower() for name, _ in columns):
        return {"query": f"SELECT rowid, * FROM {quoted}", "key": "rowid"}
    found = f"the tables {', '.join(map(repr, names))}" if names else "no tables"
    raise BadOption(
        f"{path} is a SQLite database with {found}. It is opened by itself only if there is one table, with a primary "
        "key of one column or none. Otherwise, use open_dataset(path, query='SELECT ...', key='...'); for `feedline "
        "pack`, put that into a function of a file, such as data.py, and name it: data:function."
    )


__all__ = ["open_dataset"]
