"""Files of JSON lines, and of text, as datasets."""

from __future__ import annotations

from feedline.datasets.formats.lines.format import JSONFormat, TextFormat
from feedline.datasets.formats.lines.source import PART_BYTES, LineSource, limit_of
from feedline.datasets.framework.form import Fields, check_fields
from feedline.datasets.framework.paths import Paths
from feedline.datasets.framework.source import Transform
from feedline.datasets.framework.store import Cache
from feedline.datasets.storage.content import PACKED
from feedline.datasets.storage.remote import Remote

_JSON_ENDINGS = tuple(f"{kind}{packed}" for kind in (".jsonl", ".ndjson", ".jsonlines") for packed in ("", *PACKED))
_TEXT_ENDINGS = tuple(f".txt{packed}" for packed in ("", *PACKED))


class JSONLines(LineSource):
    r"""The lines of files of JSON lines as a map-style dataset; `stream()` makes an iterable one.

    Every line is a JSON value, usually an object. A sample is what `json.loads` returns for its line; orjson is used if
    it is installed. Blank lines are no samples. Lines end with \n or \r\n, and the last one may lack its end.

    For random access, an index records where blocks of lines begin. It is built when the length or a sample is first
    requested, by reading all files once, and kept on disk. `stream()` needs neither an index nor disk.

    Args:
        paths: a file, a folder (all `.jsonl`, `.ndjson` and `.jsonlines` files below it, also compressed ones), a
            pattern such as `data/part-*.jsonl.gz`, an address (`https://...`, `s3://...`, `gs://...`, `hf://...`), or a
            list of these. Files of a folder or pattern come in natural order. Files may be compressed with gzip, zstd,
            bzip2 or xz. For random access, such a file is unpacked to disk once, unless it consists of small parts
            that can be unpacked by themselves, as files of bgzip do.
        fields: which fields of the objects to return, and in which form: a name for the value itself, a tuple of names
            for tuples, a list of names for dicts, a dict from your own names to fields; None for the whole value. Every
            line must have these fields.
        transform: applied to each sample.
        cache: where indices and unpacked copies are kept: True for the user's cache folder (`$FEEDLINE_CACHE`), a
            folder, or False to keep none. All processes of a machine share them.
        part_bytes: how much content of a file is one part of a shuffled stream. `stream(window=...)` counts such parts.
            With a disk cache, parts have at least 2 MB, the size of its pieces.
        max_line_bytes: the most bytes of a line. `$FEEDLINE_MAX_SAMPLE_BYTES` by default, or 2 GiB.
        remote: how remote files are read.

    Raises:
        MissingExtra: a package that a store, or zstd, needs is not installed.
        BadOption: an option has an invalid value.
        SourceError: at first use: a file is missing; at any time: a file is unreachable, or a line lacks a field.
        CorruptSource: a line is not JSON or not UTF-8, or a file is damaged; names file and line.
        SourceChanged: a file was written to while it was in use.

    Example:
        >>> import tempfile, pathlib
        >>> from feedline.datasets import JSONLines
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "people.jsonl")
        ...     _ = path.write_text('{"name": "Ada", "born": 1815}\n{"name": "Alan", "born": 1912}\n')
        ...     dataset = JSONLines(path, ("name", "born"), cache=False)
        ...     dataset[1]
        ...     list(dataset.stream())
        ...     dataset
        ('Alan', 1912)
        [('Ada', 1815), ('Alan', 1912)]
        JSONLines(2 samples of (name, born))
    """

    _endings = _JSON_ENDINGS

    def __init__(
        self,
        paths: Paths,
        fields: Fields = None,
        *,
        transform: Transform | None = None,
        cache: Cache = True,
        part_bytes: int | str = PART_BYTES,
        max_line_bytes: int | str | None = None,
        remote: Remote | None = None,
    ) -> None:
        check_fields(fields)
        self.fields = fields
        super().__init__(
            paths,
            JSONFormat(limit_of(max_line_bytes), fields),
            transform=transform,
            cache=cache,
            part_bytes=part_bytes,
            remote=remote,
        )


class TextLines(LineSource):
    r"""The lines of text files as a map-style dataset of strings; `stream()` makes an iterable one.

    Text is UTF-8; a byte order mark at the beginning of a file is skipped. Lines end with \n or \r\n, which are not
    part of the sample, and the last one may lack its end. Blank lines are samples too.

    Args:
        paths: as for `JSONLines`; of a folder, all `.txt` files below it, also compressed ones.
        transform: applied to each sample.
        cache: as for `JSONLines`, and so are all other options.
        part_bytes: how much content of a file is one part of a shuffled stream.
        max_line_bytes: the most bytes of a line.
        remote: how remote files are read.

    Raises:
        MissingExtra: a package that a store, or zstd, needs is not installed.
        BadOption: an option has an invalid value.
        SourceError: at first use: a file is missing; at any time: a file is unreachable.
        CorruptSource: a line is not UTF-8, or a file is damaged; names file and line.
        SourceChanged: a file was written to while it was in use.

    Example:
        >>> import tempfile, pathlib
        >>> from feedline.datasets import TextLines
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "poem.txt")
        ...     _ = path.write_text("Tyger Tyger,\nburning bright,\n")
        ...     dataset = TextLines(path, cache=False)
        ...     dataset[1], len(dataset)
        ('burning bright,', 2)
    """

    _endings = _TEXT_ENDINGS

    def __init__(
        self,
        paths: Paths,
        *,
        transform: Transform | None = None,
        cache: Cache = True,
        part_bytes: int | str = PART_BYTES,
        max_line_bytes: int | str | None = None,
        remote: Remote | None = None,
    ) -> None:
        super().__init__(
            paths,
            TextFormat(limit_of(max_line_bytes)),
            transform=transform,
            cache=cache,
            part_bytes=part_bytes,
            remote=remote,
        )
