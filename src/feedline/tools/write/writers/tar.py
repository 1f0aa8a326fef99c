"""Write tar files by the conventions of the webdataset package: the members KEY.FIELD with one key form a sample.

The summary of all samples is stored in a comment at the very beginning, for which space is reserved first and filled
last. Programs that read tar files skip it. They also skip the checksum of each member, which is stored in the twelve
bytes at the end of the member's header that the format leaves unused.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets.formats.tar.index import encode, scan
from feedline.datasets.formats.tar.members import SUM_AT, sum_field
from feedline.datasets.storage.blob import LocalBlob
from feedline.tools.write.pictures import extension_of
from feedline.tools.write.schema import Column, Sample, Schema, is_utf8
from feedline.tools.write.writers.contract import VERSION, Writer, let_go, unfit
from feedline.types import JsonObject

_BLOCK = 512
_METADATA_BYTES = 512
"""Space in the comment for everything but the fields, which are known in advance: the count, the form, metadata."""
_END = bytes(2 * _BLOCK)
_PICTURES = ("jpg", "png", "gif", "bmp", "tiff", "webp", "avif", "jxl")


class TarWriter(Writer):
    """Appends members."""

    format = "tar"

    @classmethod
    def cannot_hold(cls, column: Column) -> str:
        if column.name != column.name.lower():
            # The webdataset package reads all names in lower case, so two fields could become one.
            return "names with upper-case letters"
        return super().cannot_hold(column)

    @property
    def _comment_bytes(self) -> int:
        # Assume that all extensions occur, so that the size is the same for the first sample and the last.
        fields = [{**column, "extension": ";".join((*_PICTURES, "bin"))} for column in self.schema.as_json()]
        return len(json.dumps(fields)) + _METADATA_BYTES

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
        """Return the name ending of a member of bytes; for a picture, it depends on the picture's file type."""
        extension = extension_of(data)
        if extension not in column.extension.split(";"):
            self.schema = self.schema.with_extension(column.name, extension)
        return ending_of(column, extension, self.schema)

    def finish(self, summary: JsonObject) -> None:
        metadata = self.sealed(summary)
        if len(json.dumps(metadata)) > self._comment_bytes:
            metadata = self.sealed({**summary, "metadata": {}})  # too long for the reserved space
        self._file.write(_END)
        self._file.seek(0)
        self._file.write(comment_of(metadata, self._comment_bytes))
        self._file.close()

    def close(self) -> None:
        let_go(self._file)

    @classmethod
    def index_of(cls, path: Path, crc32: int) -> bytes:
        blob = LocalBlob(str(path))
        try:
            return encode(scan(blob, unique=True), crc32)
        finally:
            blob.close()

    @classmethod
    def facts(cls, schema: Schema) -> dict[str, object]:
        return {"members": [name for names in member_names(schema).values() for name in names.split(";")]}


def member_names(schema: Schema) -> dict[str, str]:
    """Return the name endings of each field's members, as `TarDataset` takes them: "jpg;png" if there are several.

    An ending is FIELD.EXTENSION. It is the extension alone if the field has that name, or for a picture named "image"
    and an integer named "label"; this gives jpg and cls, the usual names in webdataset.
    """
    return {
        column.name: ";".join(ending_of(column, one, schema) for one in extension_for(column).split(";"))
        for column in schema.columns
    }


def ending_of(column: Column, extension: str, schema: Schema) -> str:
    """Return the name ending of a field's members with this extension."""
    usual = (column.name == "image" and extension in _PICTURES) or (column.name == "label" and extension == "cls")
    is_short = column.name == extension or (usual and extension not in schema.names)
    return extension if is_short else f"{column.name}.{extension}"


def extension_for(column: Column) -> str:
    """Return the extension by which a reader recognises a field's type; several if its pictures have several types."""
    if column.nullable or column.kind == "nested":
        return "json"
    if column.kind == "number":
        return "cls" if column.dtype == np.dtype(np.int64).str else "npy"
    return {"str": "txt", "bytes": column.extension or "bin"}.get(column.kind, "npy")


# Any: the value of a field.
def content_of(column: Column, value: Any) -> bytes:
    """Return the content of a member. Raises Unfit: a reader would not get the value back."""
    if value is None:  # the webdataset package treats null as a value that was not decoded
        raise unfit(TarWriter, column, "is None", "lmdb")
    extension = extension_for(column)
    if extension == "json":
        try:
            return json.dumps(_jsonable(value), ensure_ascii=False).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError) as exc:
            what = f"has a value that JSON cannot represent ({exc})"
            raise unfit(TarWriter, column, what, "lmdb") from exc
    if extension == "cls":
        return str(int(value)).encode()
    if isinstance(value, str):
        if not is_utf8(value):
            what = f"is the string {value!r:.80} with an unpaired surrogate in it"
            raise unfit(TarWriter, column, what, "lmdb")
        return value.encode()
    if isinstance(value, bytes):
        return value
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(value), version=(1, 0), allow_pickle=False)
    return out.getvalue()


def _jsonable(value: object) -> object:
    if isinstance(value, dict):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(one) for one in value]
    if isinstance(value, np.generic) and value.dtype.kind in "mM":
        raise TypeError("it has no times")  # `item()` would turn them into numbers
    return value.item() if isinstance(value, np.generic) else value


def header_of(name: str, size: int, checksum: bytes = b"") -> bytes:
    """Return the header of a member with a checksum of its content; it does not depend on user, machine or time."""
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


def comment_of(metadata: dict[str, object], size: int) -> bytes:
    """Return the comment at the beginning of the file, padded to a length that does not depend on the metadata."""
    text = json.dumps(metadata).ljust(size)
    record = f" comment={text}\n"
    length = len(record) + len(str(len(record)))
    length += len(str(length)) - len(str(len(record)))  # the number includes its own digits
    body = f"{length}{record}".encode()
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size, info.mode = tarfile.XGLTYPE, len(body), 0o444
    return info.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % _BLOCK)


def stored(path: Path) -> JsonObject | None:
    """Return the stored summary; None if there is none."""
    with tarfile.open(path, "r:") as archive:
        archive.next()
        try:
            metadata = json.loads(archive.pax_headers.get("comment", ""))
        except ValueError:
            return None
    return metadata if isinstance(metadata, dict) and "count" in metadata and "feedline" in metadata else None
