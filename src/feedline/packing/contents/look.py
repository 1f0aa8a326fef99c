"""Which kind of store something is, by its content."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from feedline.errors import CorruptSource, FeedlineError, SourceError
from feedline.packing.contents.contents import Contents
from feedline.packing.opening import suffixes
from feedline.packing.schema import Sample
from feedline.packing.writers.npy import META

_MAGIC = (
    (b"\x89HDF\r\n\x1a\n", "hdf5", "look"),
    (b"PAR1", "parquet", "look"),
    (b"ARROW1", "parquet", "look_at_arrow"),
    (b"\x93NUMPY", "npy", "look"),
    (b"PK\x03\x04", "npy", "look"),
    (b"\x1f\x8b", "tar", "look"),
    (b"\x28\xb5\x2f\xfd", "tar", "look"),
)
_SHARD_SUFFIXES = (".tar", ".gz", ".zst", ".tgz", ".h5", ".hdf5", ".hdf", ".parquet", ".pq", ".arrow", ".feather")


def look(path: Path) -> Contents:
    """Say what is in a file or folder.

    Raises:
        SourceError: it is not there, or of no kind that is known.
        CorruptSource: it is damaged.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> file = Path(tempfile.mkdtemp()) / "x.npy"
        >>> np.save(file, np.zeros((5, 3), np.float32))
        >>> contents = look(file)
        >>> contents.count, contents.fields[0].type
        (5, 'float32[3]')
    """
    if not path.exists():
        raise SourceError(f"There is nothing at {path}.")
    try:
        return _look_into_folder(path) if path.is_dir() else _looker(path)(path)
    except FeedlineError:
        raise
    except Exception as exc:  # whatever a library makes of damaged bytes
        raise CorruptSource(
            f"{path} cannot be read: {type(exc).__name__}: {str(exc).rstrip('.')}. It is damaged or cut off."
        ) from exc


def _looker(path: Path) -> Callable[[Path], Contents]:
    with open(path, "rb") as file:
        start = file.read(512)
    found = next(((module, name) for magic, module, name in _MAGIC if start.startswith(magic)), None)
    if found is None and start[257:262] == b"ustar":
        found = ("tar", "look")
    if found is None and start[16:20] == b"\xde\xc0\xef\xbe":
        found = ("lmdb", "look")
    if found is None and path.suffix.lower() in (".csv", ".tsv"):
        found = ("folder", "look_at_table")
    if found is None:
        state = "is empty" if not start else f"begins with {start[:8]!r}"
        if path.suffix.lower() in suffixes():
            never = f"which no {path.suffix} file is" if not start else f"as no {path.suffix} file does"
            raise CorruptSource(f"{path} {state}, {never}: it is damaged, cut off, or misnamed.")
        raise SourceError(
            f"{path} {state}, and is of no kind that is known: HDF5, LMDB, tar, Parquet, Arrow, .npy, .npz, a CSV "
            "table of files, or a folder of these or of files."
        )
    looker: Callable[[Path], Contents] = getattr(
        importlib.import_module(f"feedline.packing.contents.{found[0]}"), found[1]
    )
    return looker


def _look_into_folder(path: Path) -> Contents:
    if (path / "data.mdb").exists():
        return importlib.import_module("feedline.packing.contents.lmdb").look(path)  # type: ignore[no-any-return]
    files = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith(".") and one.name != META)
    folders = any(one.is_dir() and not one.name.startswith(".") for one in path.iterdir())
    endings = {one.suffix.lower() for one in files}
    if files and not folders and endings == {".npy"}:
        return importlib.import_module("feedline.packing.contents.npy").look(path)  # type: ignore[no-any-return]
    if files and not folders and len(endings) == 1 and endings <= set(_SHARD_SUFFIXES):
        return _look_at_shards(path, files)
    return importlib.import_module("feedline.packing.contents.folder").look(path)  # type: ignore[no-any-return]


def _look_at_shards(folder: Path, files: list[Path]) -> Contents:
    """Look at each file, and put together what they say."""
    shards = [look(file) for file in files]
    first = shards[0]
    odd = next((shard for shard in shards if _types(shard) != _types(first)), None)
    counts = [shard.count or 0 for shard in shards]
    count = None if any(shard.count is None for shard in shards) else sum(counts)
    details = dict(first.details)
    details["shards"] = f"{len(shards)}, of {min(counts):,} to {max(counts):,} samples"
    if odd is not None:
        details["differ"] = f"the fields of {odd.path.name} are not those of {first.path.name}"

    def take(wanted: int) -> list[Sample]:
        each = -(-wanted // len(shards))
        return [sample for shard in shards for sample in shard.take(each)][:wanted]

    name, _, rest = first.dataset.partition("(")
    place = str(folder / f"*{files[0].suffix}")
    text = f"{name}({place!r}{rest.partition(repr(str(first.path)))[2]}" if first.dataset else ""
    return replace(
        first,
        path=folder,
        kind=f"folder of {first.kind} shards",
        count=count,
        size=sum(shard.size for shard in shards),
        take=take,
        details=details,
        dataset=text,
        stored=importlib.import_module("feedline.packing.writers.npy").stored(folder),
        file_count=len(files),
    )


def _types(contents: Contents) -> list[tuple[str, str]]:
    return [(field.name, field.type.partition("[")[0]) for field in contents.fields]
