"""`recognise`: what a path contains. Only this module decides that, for `open_dataset`, `pack` and `inspect`."""

from __future__ import annotations

import glob
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from feedline.datasets.derived.cache.sample_store import FILE as SAMPLES
from feedline.datasets.derived.formats import COMPRESSED, READABLE, format_by_content, format_by_name, kind_of_file
from feedline.datasets.formats.csv.parsing import delimiter_of
from feedline.datasets.formats.files.image_folder import IMAGES
from feedline.datasets.formats.indexed_shards import INDEX
from feedline.datasets.formats.tfrecord.framing import is_record
from feedline.datasets.framework.manifest import FACTS, Manifest, folder_of, manifest_in, refuse_unfinished
from feedline.datasets.framework.paths import files_below
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.content import packing_of
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import Storage, protocol_of
from feedline.errors import SourceError
from feedline.system.shown import counted

_PAIR = (".idx", ".bin")
"""Suffixes of the two files that Megatron-LM writes."""
_DATABASES = (".db", ".sqlite", ".sqlite3")
ENVIRONMENT = "data.mdb"
"""The file that makes its folder an LMDB environment."""
_BESIDE = (".json", ".md", ".txt", ".yaml", ".yml")
"""Suffixes of files that describe the shards beside them."""
_KNOWN = "feedline reads folders, SQLite, and files that end in " + ", ".join(
    suffix for known in READABLE.values() for suffix in known.suffixes if suffix.count(".") == 1
)


@dataclass(frozen=True)
class Recognised:
    """The recognised content of a path."""

    path: str
    """As given."""
    format: str
    """A key of `READABLE`; "stores" for a folder of several stores that are not read as one dataset."""
    files: list[Path] = field(default_factory=list)
    """The shards of a folder, or the stores in it, in order."""
    beside: list[Path] = field(default_factory=list)
    """Other files in that folder."""
    manifest: Manifest | None = None
    """The manifest of a folder in a store."""

    @property
    def is_compressed(self) -> bool:
        """True for tar and TFRecord files that can only be read from front to back."""
        first = self.files[0] if self.files else self.path
        if os.path.isfile(first):
            with open(first, "rb") as file:
                head = file.read(12)
                return packing_of(head) is not None and not is_record(head)
        return str(first).lower().endswith(COMPRESSED)

    def options(self) -> dict[str, object]:
        """Return options for the source that users need not set themselves."""
        if self.format == "csv" and self.path.lower().endswith((".csv", ".tsv")) and os.path.isfile(self.path):
            with open(self.path, encoding="utf-8-sig", errors="replace") as file:
                delimiter = delimiter_of(file.readline())
            usual = "\t" if self.path.lower().endswith(".tsv") else ","
            return {} if delimiter == usual else {"delimiter": delimiter}
        if self.format == "pictures":
            root = self.path.rstrip(os.sep)
            folders = (names for folder, _, names in os.walk(root) if folder != root)
            return {} if any(any(map(_is_picture, names)) for names in folders) else {"labels": None}
        return {}


def recognise(path: str | os.PathLike[str], remote: Remote | None = None) -> Recognised:
    """Recognise what a path holds. Raises SourceError: it does not exist, or no source reads it."""
    text = os.path.expanduser(os.fspath(path))
    manifest = _packed_at(text, remote)
    if manifest is not None:
        return Recognised(f"{manifest.folder}/", manifest.format, manifest=manifest)
    if os.path.isdir(text):
        return _folder(text)
    if os.path.basename(text) == INDEX and os.path.isfile(text) and (listed := _listed_in(text)) is not None:
        return Recognised(text, listed)
    if all(map(os.path.isfile, _pair_of(text))):
        return Recognised(text, "megatron", [Path(_pair_of(text)[0])])
    if os.path.isfile(text):
        return _file(text)
    if os.path.exists(text):
        raise SourceError(f"{text} is neither a file nor a folder, but a device or a pipe.")
    shown, is_pattern = shown_address(text), "{" in text or "::" in text or glob.has_magic(text)
    named = format_by_name(text)
    if named is not None and (is_pattern or "://" in text):
        return Recognised(text, named)
    if "://" in text:
        raise SourceError(
            f"The name {shown} does not indicate a format, and there is no manifest of `feedline pack`. {_KNOWN}."
        )
    if matched := sorted(filter(os.path.isfile, glob.glob(text, recursive=True))):
        first = _file(matched[0])  # raises an error, unless it can be read
        raise SourceError(
            f"The name {text} does not indicate the format of its {counted(len(matched), 'file')}. By content, "
            f"{READABLE[first.format].source.__name__} reads {matched[0]}: open them with it."
        )
    raise SourceError(f"{'No file matches' if is_pattern else 'There is nothing at'} {shown}. {_KNOWN}.")


def _file(path: str) -> Recognised:
    if (found := format_by_content(path)) is not None:
        return Recognised(path, found)
    kind = kind_of_file(path)
    if not (kind.is_text and path.lower().endswith((".tar", *COMPRESSED))):
        found = format_by_name(path)
    if found is None:
        raise SourceError(f"feedline cannot read {path}: it looks like {kind.words}. {kind.advice or f'{_KNOWN}.'}")
    return Recognised(path, found)


def _packed_at(address: str, remote: Remote | None) -> Manifest | None:
    """Return the manifest of a folder in a store; None if the address names something else."""
    folder = folder_of(address)
    names_a_file = "." in address.rsplit("/", 1)[-1] or glob.has_magic(address)
    if not protocol_of(address) or (folder is None and names_a_file):
        return None
    storage = Storage(checked_remote(remote))
    try:
        found = manifest_in(folder or address, storage)
        if found is None:
            refuse_unfinished(folder or address, storage)
    finally:
        storage.close()
    return found if found is not None and found.format in READABLE else None


def _folder(path: str) -> Recognised:
    if os.path.exists(os.path.join(path, ENVIRONMENT)):
        return Recognised(path, "lmdb")
    if os.path.exists(os.path.join(path, SAMPLES)):
        return Recognised(path, "precomputed")
    if os.path.isdir(os.path.join(path, "_versions")) and format_by_name(path.rstrip("/")) == "lance":
        return Recognised(path, "lance")
    if (listed := _listed_in(os.path.join(path, INDEX))) is not None:
        return Recognised(path, listed)
    files = sorted(
        (file for file in files_below(path) if os.path.basename(file) != FACTS), key=lambda one: one.split(os.sep)
    )
    if not files:
        hidden = " except hidden ones" if os.listdir(path) else ""
        raise SourceError(f"{path} is empty: there are no files in it{hidden}.")
    known = set(files)
    pairs = [file for file in files if file.endswith(_PAIR[0]) and f"{file[:-4]}{_PAIR[1]}" in known]
    if 2 * len(pairs) >= max(2, len(files) - 1):
        return Recognised(path, "megatron" if len(pairs) == 1 else "stores", list(map(Path, pairs)))
    fallback = "pictures" if any(map(_is_picture, files)) else "files"
    return _shards(path, files) or _stores(path, files) or Recognised(path, fallback)


def _shards(path: str, files: list[str]) -> Recognised | None:
    """Return what a folder holds if its files are one dataset."""
    stores = {file: one for file in files if (one := _store_of(file)) is not None}
    shards, others = list(stores), [file for file in files if file not in stores]
    # A few texts beside shards describe them and are not samples. If there are as many texts as shards, they are
    # samples.
    few = len(others) <= max(1, len(shards) // 2) and all(one.lower().endswith(_BESIDE) for one in others)
    found = {(one, file.lower().endswith(COMPRESSED)) for file, one in stores.items()}
    if not few or len(found) != 1:
        return None
    ((one, _),) = found
    beside = list(map(Path, others))
    if READABLE[one].is_sharded:
        return Recognised(path, one, list(map(Path, shards)), beside)
    if one == "npy" and all(os.path.dirname(file) == path.rstrip(os.sep) for file in files):
        return Recognised(path, one, beside=beside)
    return None


def _store_of(path: str) -> str | None:
    """Return the format of a store by its name; None for tables and texts, which may be samples or describe them."""
    found = format_by_name(path)
    return found if found is not None and READABLE[found].is_store else None


def _is_picture(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in IMAGES


def _stores(path: str, files: list[str]) -> Recognised | None:
    """Return what a folder holds if it holds several stores, or one among few other files."""
    # An array or a table may well be one sample of many. Another store is not, unless there are far more other files:
    # then it may list recordings, or contain thumbnails of images.
    stores = [
        file
        for file in files
        if _store_of(file) not in (None, "npy")
        or file.lower().endswith(_DATABASES)
        or os.path.basename(file) in (ENVIRONMENT, SAMPLES)
    ]
    pictures = sum(map(_is_picture, files))
    if not 4 * len(stores) >= len(files) > 2 * pictures:
        return None
    found = set(stores)
    return Recognised(path, "stores", list(map(Path, stores)), [Path(one) for one in files if one not in found])


def _pair_of(path: str) -> tuple[str, str]:
    """Return the files of Megatron-LM that a path means, if they exist."""
    stem = path[:-4] if path.endswith(_PAIR) else path
    return f"{stem}{_PAIR[0]}", f"{stem}{_PAIR[1]}"


def _listed_in(path: str) -> str | None:
    """Return the format of the shards that an index.json lists; None if it is something else, or not there."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("chunks"), list) and isinstance(found.get("config"), dict):
        return "litdata"
    shards = found.get("shards")
    is_mds = isinstance(shards, list) and all(isinstance(one, dict) and one.get("format") == "mds" for one in shards)
    return "mds" if is_mds else None
