"""Datasets with one sample per file."""

from __future__ import annotations

import functools
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.files import labels as label_sources
from feedline.datasets.formats.files.labels import Labels
from feedline.datasets.formats.files.listing import Endings, list_files
from feedline.datasets.formats.tar.arrays import decode_npy
from feedline.datasets.framework.form import Fields, Form
from feedline.datasets.framework.paths import checked_path
from feedline.datasets.framework.source import Indices, Source, Transform
from feedline.datasets.framework.store import Cache, checked_cache
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.images.medium import MediumPipeline
from feedline.memory.sharing.packed import Packed
from feedline.system.failures import add_note, words

Path = str | os.PathLike[str]

LabelSource = Path | Callable[[str], object] | Sequence[object] | None
"""Where labels come from: see `FileDataset`."""

Read = Callable[[str], object]
"""Takes a path and returns a value."""

_CHECKED_FILES = 10_000
"""Files that a cache checks for changes when an epoch begins; of more files, about this many, evenly spread."""


class FileDataset(Source):
    """A dataset with a sample for each file.

    The constructor lists the files of a folder with several threads, in torchvision's order: the directories of the
    folder by name, in each of them all directories by path, in each of those the files by name. The listing is cached,
    and reused unless a directory has changed. Paths are stored compactly, a few bytes each, once for all workers.

    Args:
        files: a folder, whose files are used at any depth; or paths, in the order of the samples.
        fields: which of "data", "label" and "path" a sample has, and in what form: a name for the value itself, a tuple
            of names for tuples, a list for dicts. None for a dict of all.
        extensions: allowed endings of names, ignoring case; such as ".txt" or (".jpg", ".png"). None for any.
        labels: "folder" for the name of the file's top-level directory in the folder; the path of a CSV file with the
            columns `file`, relative to the folder, and `label`; a function that takes a path; or, with a list of paths,
            a list. Names become numbers, in sorted order.
        unlabelled: "error" or "skip": what to do with files that a CSV file does not name, or gives an empty label.
        allow_empty: True if a directory without files is also a class.
        read: "bytes", "text" in UTF-8, "npy" for arrays that `numpy.save` wrote, or a function that takes a path.
        transform: applied to each sample.
        cache: True to cache listings of 10,000 files or more in the user's cache folder (`$FEEDLINE_CACHE`), False to
            disable caching, or a folder to cache this listing in.

    Raises:
        SourceError: the folder is missing, cannot be listed, or has no such files; or a table of labels does not match.
        BadOption: an option is invalid.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("b", "a"):
        ...     _ = (folder / f"{name}.txt").write_text(name * 3)
        >>> dataset = FileDataset(folder, extensions=".txt", read="text", fields=("path", "data"))
        >>> len(dataset), dataset[0][1]
        (2, 'aaa')
    """

    _value = "data"
    """Name of the field with the value."""
    _further: tuple[str, ...] = ()
    """Names of other fields that a subclass makes from the file."""
    _lazy = ("_unwanted",)  # files that are not samples: adding one must not invalidate a cache

    def __init__(
        self,
        files: Path | Iterable[Path],
        fields: Fields = None,
        *,
        extensions: str | Iterable[str] | None = None,
        labels: LabelSource = None,
        unlabelled: str = "error",
        allow_empty: bool = False,
        read: str | Read = "bytes",
        transform: Transform | None = None,
        cache: Cache = True,
    ) -> None:
        super().__init__(transform)
        if unlabelled not in ("error", "skip"):
            raise BadOption(f'unlabelled={unlabelled!r} is neither "error" nor "skip".')
        available = [self._value, *self._further, *(() if labels is None else ("label",)), "path"]
        self._fields = form = Form.of(fields, available, f"a dataset of files with labels={labels!r}")
        pipeline, is_field = self.transform, self._value in form.names and not form.is_one
        if is_field and isinstance(pipeline, MediumPipeline) and pipeline.field is None:
            place = form.names.index(self._value)
            self.transform = pipeline.on(place if form.keys is None else form.keys[place])
        self._reads = _reader(read)
        endings = _endings(extensions)
        cache = checked_cache(cache)
        if isinstance(files, (str, os.PathLike)):
            self.root: str | None = checked_path(files)
            self._list_folder(self.root, endings, labels, cache, skip=unlabelled == "skip", allow_empty=allow_empty)
        else:
            self.root = None
            self._take_paths([os.fspath(path) for path in files], endings, labels)
        if not len(self):
            wanted = "" if endings is None else f" that end in {' or '.join(endings)}"
            others = f" ({self.left_out} others were left out)" if self.left_out else ""
            raise SourceError(f"{self.root or 'The list'} has no files{wanted}{others}, so the dataset would be empty.")

    @classmethod
    def _folder_fields(cls, root: object, fields: Fields, labels: LabelSource) -> Fields:
        """Return `fields=` of a dataset of one folder: without labels, a sample is the value alone.

        Raises:
            BadOption: `root` is not the path of a folder.
        """
        if not isinstance(root, (str, os.PathLike)):
            raise BadOption(
                f"root={reprlib.repr(root)} is not the path of a folder. For a list of paths, use FileDataset."
            )
        return cls._value if labels is None and fields == (cls._value, "label") else fields

    def _list_folder(
        self, root: str, endings: Endings, labels: LabelSource, cache: Cache, *, skip: bool, allow_empty: bool
    ) -> None:
        listing = list_files(root, endings, cache)
        self._paths = listing.paths
        self._unwanted = listing.left_out
        """Number of files with other endings."""
        self._chosen: range | NDArray[np.int64] = range(len(self._paths))
        """Which paths are samples."""
        self._labels: Labels | None = None
        if labels == "folder":
            self._labels = label_sources.of_folders(listing, root, allow_empty=allow_empty)
            first = int(listing.counts[0])  # files before this are in no directory
            self._chosen = self._chosen[first:]
            self._labels = Labels(self._labels.values[first:], self._labels.classes)
        elif isinstance(labels, (str, os.PathLike)):
            paths = self._paths.each(range(len(self._paths)))
            self._labels, chosen = label_sources.of_table(checked_path(labels), root, paths, skip=skip)
            if len(chosen) < len(self._chosen):
                self._chosen = chosen
        elif callable(labels):
            self._labels = label_sources.of_function(labels, len(self), self.path_of)
        elif labels is not None:
            raise BadOption(
                "labels= is a list, but the files of a folder have no order that it could match. Pass a list of paths, "
                "or a CSV file or a function as labels=."
            )

    def _take_paths(self, paths: list[str], endings: Endings, labels: LabelSource) -> None:
        for path in paths:
            if "://" in path:  # only these are checked in full: there may be millions of paths
                checked_path(path)
        is_wanted = [endings is None or path.lower().endswith(endings) for path in paths]
        kept = [path for path, wanted in zip(paths, is_wanted, strict=True) if wanted]
        self._paths = Packed(kept, is_text=True)
        self._unwanted = len(paths) - len(kept)
        self._chosen = range(len(kept))
        if labels == "folder":
            parents = [os.path.basename(os.path.dirname(path)) for path in kept]
            self._labels = label_sources.of_values(parents, 'labels="folder"', kept.__getitem__)
        elif isinstance(labels, (str, os.PathLike)):
            raise BadOption(
                f"labels={labels!r} needs a folder: the table names files relative to it. Pass a folder, not paths."
            )
        elif callable(labels):
            self._labels = label_sources.of_function(labels, len(kept), kept.__getitem__)
        elif labels is not None:
            if len(labels) != len(paths):
                raise BadOption(f"labels= has {len(labels)} labels for {len(paths)} paths. Pass one for each path.")
            wanted_labels = [label for label, wanted in zip(labels, is_wanted, strict=True) if wanted]
            self._labels = label_sources.of_values(wanted_labels, "labels=", kept.__getitem__)
        else:
            self._labels = None

    def __len__(self) -> int:
        return len(self._chosen)

    def path_of(self, index: int) -> str:
        """Return the path of a sample's file."""
        path: str = self._paths.get(int(self._chosen[index]))
        return path if self.root is None else os.path.join(self.root, path)

    def _read(self, indices: Indices) -> list[object]:
        return [self._sample(index) for index in indices.tolist()]

    def _sample(self, index: int) -> object:
        path = self.path_of(index)
        values: list[object] = []
        for name in self._fields.names:
            if name == self._value:
                values.append(self._read_value(index, path))
            else:
                values.append(path if name == "path" else self._label(index))
        return self._fields.build(values)

    def _read_value(self, index: int, path: str) -> object:
        """Return the value of a sample, read from its file."""
        return self._reads(path)

    def _label(self, index: int) -> object:
        assert self._labels is not None  # without labels there is no such field
        return self._labels.values.item(index)

    @property
    def left_out(self) -> int:
        """Number of files found that are not samples: wrong ending, not in a class directory, or without a label."""
        return self._unwanted + len(self._paths) - len(self)

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes, by number; None if there are no labels, or they are already numbers."""
        return None if self._labels is None or self._labels.classes is None else list(self._labels.classes)

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        """The numbers of the classes, by name."""
        classes = self.classes
        return None if classes is None else {name: number for number, name in enumerate(classes)}

    @property
    def targets(self) -> NDArray[np.generic] | None:
        """The labels of all samples, as an array; None if there are none."""
        if self._labels is None:
            return None
        values = self._labels.values
        return values.astype(np.int64 if values.dtype.kind in "iu" else np.float64)

    # Any: labels are integers or floats.
    @property
    def samples(self) -> Sequence[tuple[str, Any]]:
        """Path and label of each sample, without reading a file; the label is None if there are none."""
        return _Samples(self)

    def _stored_in(self) -> Iterable[str]:
        return map(self.path_of, range(0, len(self), -(-len(self) // _CHECKED_FILES)))

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""

    def _form(self) -> str:
        kinds = {self._value: "file", "path": "str", "label": "label", **dict.fromkeys(self._further, "int")}
        if self.classes is not None:
            kinds["label"] = f"class of {len(self.classes)}"
        return self._fields.describe([kinds[name] for name in self._fields.names])

    def __repr__(self) -> str:
        text = super().__repr__()
        if not self.left_out:
            return text
        return f"{text[:-1]}, {self.left_out} other {'file' if self.left_out == 1 else 'files'} left out)"


class _Samples(Sequence[tuple[str, Any]]):
    def __init__(self, dataset: FileDataset) -> None:
        self._dataset = dataset
        self._indices = range(len(dataset))

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._sample(one) for one in self._indices[index]]
        try:
            return self._sample(self._indices[index])
        except IndexError:
            raise IndexError(f"index {index} is out of range for {len(self)} samples") from None

    def _sample(self, index: int) -> tuple[str, object]:
        dataset = self._dataset
        return dataset.path_of(index), None if dataset._labels is None else dataset._label(index)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return map(self._sample, self._indices)

    def __repr__(self) -> str:
        return f"<path and label of {len(self)} samples>"


def _endings(extensions: str | Iterable[str] | None) -> Endings:
    if extensions is None:
        return None
    endings = (extensions,) if isinstance(extensions, str) else tuple(extensions)
    if not all(endings) or not endings:
        raise BadOption(
            f'extensions={extensions!r} names no endings. Pass some, such as (".jpg", ".png"), or None for any.'
        )
    return tuple(sorted({ending.lower() for ending in endings}))


def _reader(read: str | Read) -> Read:
    """Return the function for `read=`. Raises BadOption: `read` is unknown."""
    if callable(read):
        return functools.partial(by_user, read, None)
    known: dict[str, Read] = {"bytes": read_bytes, "text": _read_text, "npy": _read_npy}
    if read not in known:
        raise BadOption(f"read={read!r} is neither one of {', '.join(map(repr, known))} nor a function of a path.")
    return known[read]


def read_bytes(path: str) -> bytes:
    """Return the content of a file."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _read_text(path: str) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise CorruptSource(f'{path} is not text in UTF-8: {words(exc)}. Read it with read="bytes".') from exc


def _read_npy(path: str) -> NDArray[np.generic]:
    try:
        return decode_npy(read_bytes(path))
    except (ValueError, CorruptSource) as exc:
        raise CorruptSource(f"{path} does not contain an array that numpy.save wrote: {words(exc)}.") from exc


# Any: a path, or bytes.
def by_user(function: Callable[[Any], object], load: Callable[[str], bytes] | None, path: str) -> object:
    """Call a user's function on a path, or on the bytes that `load` reads from it; its errors name the file."""
    content = path if load is None else load(path)
    try:
        return function(content)
    except Exception as exc:
        add_note(exc, f"while reading {path}" if load is None else f"while decoding {path}, {len(content)} bytes")
        raise
