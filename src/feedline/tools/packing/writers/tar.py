"""Writes tar files by the rules of the webdataset package: the members KEY.FIELD of one key are a sample.

What is known of all samples stands in a comment at the very beginning, whose room is taken first and filled last;
programs that read tar files pass over it. So they do over the checksum of each member, which stands in the twelve bytes
at the end of its header that the format leaves unused.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets.tar.members import SUM_AT, sum_field
from feedline.tools.packing.pictures import extension_of
from feedline.tools.packing.schema import Column, Sample, Schema, is_utf8
from feedline.tools.packing.writers.contract import VERSION, Summary, Writer, let_go, unfit
from feedline.types.checksums import sealed

_BLOCK = 512
_FACT_BYTES = 512
"""Room in the comment for all but the fields, which are known before: the count, the form, a few facts."""
_END = bytes(2 * _BLOCK)
_PICTURES = ("jpg", "png", "gif", "bmp", "tiff", "webp")


class TarWriter(Writer):
    """Appends members."""

    format = "tar"

    @classmethod
    def cannot_hold(cls, column: Column) -> str:
        if column.nullable:
            return f"a member is there or not, and is never None. {_fill_in(column)}"
        if column.name != column.name.lower():
            # The webdataset package reads all names in lower case, and two fields could become one.
            return "names of members are read in lower case. Rename it in the dataset, or use another format."
        return ""

    @property
    def _comment_bytes(self) -> int:
        # As if all extensions occurred: it is the same from the first sample to the last.
        fields = [{**column, "extension": ";".join((*_PICTURES, "bin"))} for column in self.schema.as_json()]
        return len(json.dumps(fields)) + _FACT_BYTES

    @classmethod
    def encoded(cls, schema: Schema, sample: Sample) -> list[bytes]:
        return [content_of(column, sample[column.name]) for column in schema.columns]

    def _open(self) -> None:
        self._next = self.first
        self._file = open(self.path, "w+b")  # noqa: SIM115  (closed by `close`)
        self._file.write(comment_of({"feedline": VERSION, "fields": self.schema.as_json()}, self._comment_bytes))

    def write(self, samples: Sequence[list[bytes]]) -> None:
        names = member_names(self.schema)
        for contents in samples:
            key = f"{self._next:09d}"
            for column, data in zip(self.schema.columns, contents, strict=True):
                ending = self._ending(column, data) if column.kind == "bytes" else names[column.name]
                name = f"{key}.{ending}"
                self._file.write(header_of(name, len(data), sum_field(name, data)))
                self._file.write(data)
                self._file.write(bytes(-len(data) % _BLOCK))
            self._next += 1

    def _ending(self, column: Column, data: bytes) -> str:
        """Return how a member of bytes ends: pictures by what each of them is."""
        extension = extension_of(data)
        if extension not in column.extension.split(";"):
            self.schema = self.schema.with_extension(column.name, extension)
        return ending_of(column, extension, self.schema)

    def finish(self, summary: Summary) -> None:
        facts = sealed(summary.as_json(self.schema))
        if len(json.dumps(facts)) > self._comment_bytes:
            facts = sealed({**summary.as_json(self.schema), "facts": {}})  # more than there is room for
        self._file.write(_END)
        self._file.seek(0)
        self._file.write(comment_of(facts, self._comment_bytes))
        self._file.close()

    def close(self) -> None:
        let_go(self._file)


def member_names(schema: Schema) -> dict[str, str]:
    """Return how the members of each field end; "jpg;png" if it is in one way or the other, as `TarDataset` takes it.

    FIELD.EXTENSION; only the extension for a field that is called like it, for a picture called "image" and a number
    called "label": so the usual names of webdataset, jpg and cls, come out.
    """
    return {
        column.name: ";".join(ending_of(column, one, schema) for one in extension_for(column).split(";"))
        for column in schema.columns
    }


def ending_of(column: Column, extension: str, schema: Schema) -> str:
    """Return how the members of a field with this extension end."""
    usual = (column.name == "image" and extension in _PICTURES) or (column.name == "label" and extension == "cls")
    is_short = column.name == extension or (usual and extension not in schema.names)
    return extension if is_short else f"{column.name}.{extension}"


def extension_for(column: Column) -> str:
    """Return by which extension a reader recognises what a field holds; several, if its pictures are of several."""
    if column.nullable or column.kind == "nested":
        return "json"
    if column.kind == "number":
        return "cls" if column.dtype == np.dtype(np.int64).str else "npy"
    return {"str": "txt", "bytes": column.extension or "bin"}.get(column.kind, "npy")


# Any: the value of a field.
def content_of(column: Column, value: Any) -> bytes:
    """Return the content of a member. Raises Unfit: a reader would not get the value back."""
    if value is None:  # the webdataset package takes a null for something that nobody has decoded
        raise unfit(TarWriter, column, "is None", _fill_in(column))
    extension = extension_for(column)
    if extension == "json":
        try:
            return json.dumps(_jsonable(value), ensure_ascii=False).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError) as exc:
            what = f"becomes JSON, and {exc}"
            raise unfit(TarWriter, column, what, "Use lmdb, or make arrays or strings of it in the dataset.") from exc
    if extension == "cls":
        return str(int(value)).encode()
    if isinstance(value, str):
        if not is_utf8(value):
            what = f"is the string {value!r:.80}, which has half of a surrogate pair in it"
            raise unfit(TarWriter, column, what, "Use lmdb, or take it out in the dataset.")
        return value.encode()
    if isinstance(value, bytes):
        return value
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(value), version=(1, 0), allow_pickle=False)
    return out.getvalue()


def _fill_in(column: Column) -> str:
    others = "lmdb" if column.kind in ("nested", "mixed") else "lmdb or parquet"
    return f"Give such samples a value in the dataset, such as 0 or '', or use {others}."


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(one) for one in value]
    if isinstance(value, np.generic) and value.dtype.kind in "mM":
        raise TypeError("that has no times")  # `item()` would make numbers of them
    return value.item() if isinstance(value, np.generic) else value


def header_of(name: str, size: int, checksum: bytes = b"") -> bytes:
    """Return the header of a member, with a checksum of its content; nothing depends on who writes, where or when."""
    raw, checksum = name.encode(), checksum.ljust(_BLOCK - SUM_AT, b"\0")
    if len(raw) > _NAME_BYTES or not raw.isascii() or size >= 1 << 33:
        blocks = _slow_header(name, size)
        header = bytearray(blocks[-_BLOCK:])
        total = int(header[148:154], 8) + sum(checksum)
        header[SUM_AT:], header[148:156] = checksum, b"%06o\0 " % total
        return blocks[:-_BLOCK] + header
    # The same bytes, in a tenth of the time: only the name, the size and the sums differ.
    digits = b"%011o" % size
    header = bytearray(_TEMPLATE)
    header[: len(raw)] = raw
    header[124:135] = digits
    header[SUM_AT:] = checksum
    header[148:156] = b"%06o\0 " % (_TEMPLATE_SUM + sum(raw) + sum(digits) + sum(checksum))
    return bytes(header)


def _slow_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o444
    return info.tobuf(tarfile.PAX_FORMAT)


_NAME_BYTES = 100
_TEMPLATE = _slow_header("", 0)
_TEMPLATE_SUM = sum(_TEMPLATE[:124]) + sum(_TEMPLATE[135:148]) + 8 * ord(" ") + sum(_TEMPLATE[156:])


def comment_of(facts: dict[str, Any], size: int) -> bytes:
    """Return the comment at the beginning, of the same length whatever the facts are."""
    text = json.dumps(facts).ljust(size)
    record = f" comment={text}\n"
    length = len(record) + len(str(len(record)))
    length += len(str(length)) - len(str(len(record)))  # the number counts its own digits
    body = f"{length}{record}".encode()
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size, info.mode = tarfile.XGLTYPE, len(body), 0o444
    return info.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % _BLOCK)


def stored(path: Path) -> dict[str, Any] | None:
    """Return what was stored about the samples, None if nothing was."""
    with tarfile.open(path, "r:") as archive:
        archive.next()
        try:
            facts = json.loads(archive.pax_headers.get("comment", ""))
        except ValueError:
            return None
    return facts if isinstance(facts, dict) and "count" in facts and "feedline" in facts else None
