"""Describes files that no source reads, and suggests how to load them anyway."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from feedline.datasets.storage.unpacking import packing_of, unpacked_file
from feedline.errors import CorruptSource, MissingExtra

_START_BYTES = 1 << 16
"""Bytes to examine at the beginning of a file, after decompression."""
_UNPACKED_BY = {"gzip": "gzip", "bzip2": "bz2", "xz": "lzma"}
"""The standard library module whose `open` decompresses a file."""
_PACKED = {"zstd": 'Decompress it, or run `pip install "feedline[tar]"`: feedline needs zstandard to read it.'}


class FileKind(NamedTuple):
    """What a file appears to be."""

    kind: str
    """In words, such as "JSON lines compressed with gzip"."""
    advice: str = ""
    """How to load it, in a sentence or two."""
    is_text: bool = False
    """True if it contains text, including JSON."""


def beginning_of(path: str) -> tuple[bytes, str | None]:
    """Return the first bytes of a file, decompressed if needed, and its compression.

    The bytes are empty if they cannot be decompressed, because the file is damaged or a package is missing.
    """
    with open(path, "rb") as file:
        start = file.read(_START_BYTES)
    packing = packing_of(start)
    if packing is None:
        return start, None
    try:
        return unpacked_file(path, packing).take(_START_BYTES), packing
    except (CorruptSource, MissingExtra):
        return b"", packing


def guess_kind(path: str) -> FileKind:
    """Identify a file by its first bytes, and by its name where these are not enough."""
    start, packing = beginning_of(path)
    if not os.path.getsize(path):
        return FileKind("an empty file")
    if packing is not None and not start:
        return FileKind(f"a damaged or empty file compressed with {packing}", _PACKED.get(packing, ""))
    name = os.path.basename(path).lower()
    binary = _binary(start)
    guess = binary or _text(start, name)
    kind = f"{guess.kind} compressed with {packing}" if packing else guess.kind
    opened = f"{_UNPACKED_BY.get(packing, 'zstandard')}.open(path, 'rt')" if packing else "open(path)"
    return FileKind(kind, guess.advice.format(open=opened), is_text=binary is None)


_BINARY = (
    (
        rb"\xff\xd8\xff|\x89PNG\r\n|GIF8[79]a|RIFF....WEBP|II\*\0|MM\0\*|....ftyp(avi[fs]|mif1)|\0\0\0\x0cJXL ",
        "an image",
    ),
    (rb"RIFF....WAVE|fLaC|OggS|ID3", "a sound"),
    (rb"....ftyp|\x1aE\xdf\xa3|RIFF....AVI ", "a video"),
    (rb"Obj\x01", "Avro"),
    (rb"ORC", "ORC"),
    (rb"\0\0[\x08\x09\x0b-\x0e][\x01-\x04]", "an IDX array, as in MNIST"),
    (rb"%PDF-", "PDF"),
    (rb"\x93FEEDTOK", "a token file of feedline"),
)
_ONE_SAMPLE = "A file of this kind is one sample: name the folder that contains all of them."
_ADVICE = {
    **dict.fromkeys(("an image", "a sound", "a video"), _ONE_SAMPLE),
    "a token file of feedline": "`feedline.text.TokenDataset(path, block=2048)` reads blocks of tokens from it, and "
    "`feedline.text.verify(path)` checks it.",
}
_MADE_ONCE = (
    "Write a dataset class of your own that reads it (`__len__` and `__getitem__`, or `__iter__`). `feedline pack "
    "module:dataset out.parquet` then writes its samples into a format that reads fast."
)


def _binary(start: bytes) -> FileKind | None:
    for pattern, kind in _BINARY:
        if re.match(pattern, start, re.DOTALL):
            return FileKind(kind, _ADVICE.get(kind, _MADE_ONCE))
    if start.startswith(b"PK\x03\x04"):
        if b"/data.pkl" in start[:4096]:
            return FileKind(
                "a file of torch.save", "`torch.load(path)` reads it. A list of samples is a dataset already."
            )
        return FileKind("a zip archive", "Extract it, and name the folder.")
    if re.match(rb"\x80[\x02-\x05]", start):
        return FileKind(
            "a pickle", "`pickle.load(open(path, 'rb'))` reads it, and runs any code in the file. " + _MADE_ONCE
        )
    try:
        text = start.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        if exc.start < len(start) - 4:  # not just a character cut in two
            return FileKind("binary data of an unknown kind", _MADE_ONCE)
        text = start[: exc.start].decode("utf-8-sig")
    return FileKind("binary data of an unknown kind", _MADE_ONCE) if re.search(r"[\0-\x08\x0e-\x1a]", text) else None


_LINES = "feedline.datasets.JSONLines(path) reads it, under any name."
_JSON = (
    "There is no reader for JSON. If it contains a list of samples, that list is a dataset: "
    "DataLoader(json.load({open}))."
)
_PLAIN = (
    "If each line is a sample, feedline.datasets.TextLines(path) reads it. If it is a table, CSVDataset(path, "
    "delimiter=...) does."
)


def _text(start: bytes, name: str) -> FileKind:
    text = start.decode("utf-8-sig", errors="replace").lstrip()
    if not text.startswith(("{", "[")):
        return FileKind("lines of text", _PLAIN)
    try:
        _, end = json.JSONDecoder().raw_decode(text)
        rest = text[end:].lstrip()
    except (ValueError, RecursionError):
        # A value that extends beyond the examined bytes is not an error.
        rest = "" if len(start) == _START_BYTES else "broken"
    is_one_value = not rest and re.search(r"\.(jsonl|ndjson|jsonlines)\b", name) is None
    if is_one_value:
        return FileKind("JSON", _JSON)
    return FileKind("JSON lines", _LINES) if rest[:1] in ("{", "[", "") else FileKind("lines of text", _PLAIN)


def described(paths: Sequence[str], most: int = 100) -> tuple[str, str]:
    """Return how many of the files appear to be of each kind, and how to load the most frequent kind.

    Only the first `most` files are opened.
    """
    guesses = [guess_kind(path) for path in paths[:most]]
    kinds: dict[str, list[FileKind]] = {}
    for guess in guesses:
        kinds.setdefault(guess.kind, []).append(guess)
    ranked = sorted(kinds.values(), key=len, reverse=True)
    counts = ", ".join(f"{len(found)} look{'s' * (len(found) == 1)} like {found[0].kind}" for found in ranked)
    seen = f"of the first {most}, {counts}" if len(paths) > most else counts
    return seen, ranked[0][0].advice
