"""Write a folder with one FIELD.npy per field."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from feedline.datasets.framework.checksums import BlockSums, as_text
from feedline.datasets.framework.manifest import FACTS
from feedline.tools.write.schema import Column, Sample
from feedline.tools.write.writers.contract import Writer, let_go
from feedline.types import JsonObject

_COPY_ROWS = 4096
BLOCK_BYTES = 1 << 16
"""Bytes per checksum. The first read of a row reads all of its blocks: larger blocks take longer, smaller ones mean
more checksums."""
_MOST_CHARACTERS = ((1 << 31) - 1) // 4
"""Longest string: NumPy counts the bytes of a string in 31 bits, and each character takes four."""


class NpyWriter(Writer):
    """Appends numbers and arrays to their files; the header, with the number of rows, is completed last.

    All strings in an .npy file take the length of the longest, which is known only at the end. Until then, strings are
    stored in FIELD.text, and their lengths in FIELD.lengths.
    """

    format = "npy"
    kinds = ("array", "number", "str")  # not bytes: NumPy drops zeros at their end

    @classmethod
    def _refusal(cls, column: Column, value: Any) -> tuple[str, str] | None:
        if column.kind == "str" and value.endswith("\0"):
            return f"is the string {value!r:.80} with a NUL character at the end", "lmdb"
        if column.kind == "str" and len(value) > _MOST_CHARACTERS:
            return f"is a string of {len(value):,} characters", "lmdb, hdf5 or tar"
        return None

    def _open(self) -> None:
        self.path.mkdir(parents=True)
        self._count = 0
        self._files: dict[str, IO[bytes]] = {}
        self._sums: dict[str, BlockSums] = {}
        self._headers: dict[str, int] = {}
        """Checksums of the headers."""
        for column in self.schema.columns:
            if column.kind == "str":
                for ending in ("text", "lengths"):
                    self._files[f"{column.name}.{ending}"] = open(self._spool(column, ending), "w+b")  # noqa: SIM115
            else:
                file = open(self.path / f"{column.name}.npy", "w+b")  # noqa: SIM115  (closed by `close`)
                self._files[column.name] = file
                file.write(header_of(column, 0))
                self._sums[column.name] = BlockSums(BLOCK_BYTES)

    def _spool(self, column: Column, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{column.name}.{ending}")

    def write(self, samples: Sequence[Sample]) -> None:
        for column in self.schema.columns:
            values = [sample[column.name] for sample in samples]
            if column.kind == "str":
                self._write_texts(column.name, values)
            elif column.kind == "number":
                self._append(column.name, np.array(values, column.dtype).tobytes())
            else:
                for value in values:
                    self._append(column.name, np.ascontiguousarray(value).tobytes())
        self._count += len(samples)

    def _append(self, name: str, data: bytes) -> None:
        self._files[name].write(data)
        self._sums[name].add(data)

    def _write_texts(self, name: str, texts: list[str]) -> None:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._files[f"{name}.text"].write(b"".join(encoded))
        lengths = [(len(data), len(text)) for data, text in zip(encoded, texts, strict=True)]
        self._files[f"{name}.lengths"].write(np.array(lengths, np.int64).tobytes())

    def finish(self, summary: JsonObject) -> None:
        for column in self.schema.columns:
            if column.kind == "str":
                self._write_strings(column)
            else:
                file, header = self._files[column.name], header_of(column, self._count)
                file.seek(0)
                file.write(header)
                file.close()
                self._headers[column.name] = zlib.crc32(header)
        self.close()
        sums = {
            name: {"header": self._headers[name], "bytes": one.block_bytes, "blocks": as_text(one.finish())}
            for name, one in self._sums.items()
        }
        (self.path / FACTS).write_text(json.dumps(self.sealed(summary, sums=sums)))

    def _write_strings(self, column: Column) -> None:
        texts, lengths = self._files[f"{column.name}.text"], self._files[f"{column.name}.lengths"]
        texts.seek(0)
        lengths.seek(0)
        sizes = np.frombuffer(lengths.read(), np.int64).reshape(-1, 2)
        dtype = np.dtype(f"<U{max(1, int(sizes[:, 1].max(initial=0)))}")
        header, sums = header_of(Column(column.name, "number", dtype.str), self._count), BlockSums(BLOCK_BYTES)
        self._headers[column.name], self._sums[column.name] = zlib.crc32(header), sums
        with open(self.path / f"{column.name}.npy", "wb") as file:
            file.write(header)
            for first in range(0, len(sizes), _COPY_ROWS):
                rows = sizes[first : first + _COPY_ROWS, 0].tolist()
                array = np.array([texts.read(size).decode("utf-8", "surrogatepass") for size in rows], dtype)
                data = array.tobytes()
                file.write(data)
                sums.add(data)

    def close(self) -> None:
        files, self._files = self._files, {}
        for file in files.values():
            let_go(file)
        for column in self.schema.columns:
            for ending in ("text", "lengths"):
                self._spool(column, ending).unlink(missing_ok=True)


def header_of(column: Column, count: int) -> bytes:
    """Return the header of an .npy file. Its length is the same for any number of rows, because NumPy pads it."""
    out = io.BytesIO()
    shape = (count, *column.shape)
    np.lib.format.write_array_header_1_0(
        out, {"descr": np.lib.format.dtype_to_descr(np.dtype(column.dtype)), "fortran_order": False, "shape": shape}
    )
    return out.getvalue()


def stored(path: Path) -> JsonObject | None:
    """Return the stored summary; None if there is none."""
    try:
        meta: dict[str, object] = json.loads((path / FACTS).read_bytes())
    except FileNotFoundError:
        return None
    return meta
