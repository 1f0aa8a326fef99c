"""Samples in chunks of LitData."""

from __future__ import annotations

import os
import struct
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.abc.source import ColumnSource
from feedline.datasets.formats.indexed_shards import AGAIN, Decoding, Folder, IndexedSource, OpenShards
from feedline.datasets.formats.litdata.index import read_layout
from feedline.datasets.formats.litdata.leaves import decoding_of, token_type
from feedline.datasets.formats.mds.encodings import BROKEN
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.form import Fields, Form
from feedline.datasets.framework.shard_files import ByteRange
from feedline.datasets.framework.source import Indices, Transform, has_own_samples
from feedline.datasets.storage.remote import Remote
from feedline.errors import BadOption, CorruptSource
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.options import checked_count

if TYPE_CHECKING:
    from pyarrow import Table

_MAGIC = b"LDARW01\0"
_FOOTER = struct.Struct("<I8s")
"""What a chunk with an Arrow table ends with: the size of the Arrow file, and the mark that it is there."""


class LitDataDataset(IndexedSource, ColumnSource):
    """The samples in chunks that `litdata.optimize` wrote, as a map-style dataset.

    Samples have the form in which they were stored: dicts, lists, tuples or single values. Values are those that
    LitData's `StreamingDataset` returns, with two exceptions: tensors come as NumPy arrays, and images, sounds and
    videos as the bytes of their files. `decode=` decodes images.

    Feedline reads chunks without compression, and chunks that are compressed as a whole with zstd
    (`compression_level="chunk"`), but not encrypted ones. Compressed chunks, and chunks whose samples are rows of an
    Arrow table, are held in memory; read them in an order that stays within a few chunks
    (`feedline.samplers.BlockSampler`).

    Args:
        path: the folder with the index.json, or its address: `https://...`, `s3://...`, `gs://...`.
        fields: for samples that are dicts, which of their fields to read, and in what form: a name for the value
            itself, a tuple of names for tuples, a list for dicts. None for the whole sample.
        block_size: for tokens, how many of them a sample has, as in LitData's `TokensLoader`. Tokens left over at the
            end of a chunk are not used. None for the arrays as they were stored.
        decode: the decoder of images, as in `TarDataset`: "pil", "rgb8", "torchrgb" and others. None for their bytes.
        transform: applied to each sample.
        allow_pickle: True to decode values that are pickles. The author of the chunks can then run any code here.
        cache_bytes: the memory of each process for compressed chunks, and as much again for Arrow tables.
        remote: how remote files are read.

    Raises:
        SourceError: there is no index.json, or, at first use, no chunk.
        CorruptSource: index.json or a chunk is damaged or cut off.
        BadOption: an option is invalid, or the chunks have a form that feedline does not read.

    Example:
        >>> import json, struct, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> tokens = np.arange(10, dtype=np.uint16)  # two arrays, of 6 and 4 tokens
        >>> with open(f"{folder}/chunk-0-0.bin", "wb") as file:
        ...     _ = file.write(struct.pack("<4I", 2, 16, 28, 36) + tokens.tobytes())
        >>> leaf = {"type": None, "context": None, "children_spec": []}
        >>> config = {"data_format": ["no_header_numpy:5"], "data_spec": json.dumps([1, leaf]), "compression": None}
        >>> chunk = {"filename": "chunk-0-0.bin", "chunk_bytes": 36, "chunk_size": 2, "dim": 10}
        >>> with open(f"{folder}/index.json", "w") as file:
        ...     json.dump({"chunks": [chunk], "config": config}, file)
        >>> dataset = LitDataDataset(folder, block_size=3)
        >>> dataset
        LitDataDataset(3 samples of uint16[3])
        >>> dataset[2].tolist(), LitDataDataset(folder)[1].tolist()
        ([6, 7, 8], [6, 7, 8, 9])
        >>> dataset.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Fields = None,
        *,
        block_size: int | None = None,
        decode: str | None = None,
        transform: Transform | None = None,
        allow_pickle: bool = False,
        cache_bytes: int | str = "256 MB",
        remote: Remote | None = None,
    ) -> None:
        folder = Folder(path, remote, cache_bytes)
        self._layout = layout = read_layout(folder)
        super().__init__(folder, layout.chunks, decode=decode, transform=transform, allow_pickle=allow_pickle)
        self._tables = BoundedCache[int, "Table"](folder.cache_bytes)
        """The Arrow tables of chunks."""
        self.block_size = None if block_size is None else checked_count("block_size", block_size, 1)
        if self.block_size is not None:
            if layout.tokens is None:
                raise BadOption(
                    f"block_size={block_size} is for tokens, but the samples of {self._name} are not tokens."
                )
            blocks = np.array(layout.tokens, np.int64) // self.block_size
            self._starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
        self._shape = self._chosen(fields)
        self._content_starts = 8 + 4 * np.array([chunk.count for chunk in layout.chunks], np.int64)
        """Where the samples begin in each chunk."""
        self._parts = self._parts_read()
        self._decodings()  # raises now the error that every sample would raise

    def _chosen(self, fields: Fields) -> Form | None:
        tree = self._layout.tree
        if fields is None:
            return None
        if tree.kind != "dict":
            raise BadOption(f"fields={fields!r} names fields, but the samples of {self._name} are not dicts.")
        return Form.of(fields, tree.keys, self._name)

    def _parts_read(self) -> list[tuple[int, int]]:
        """Return, for each field, the place of its first value and the place after its last."""
        tree, places = self._layout.tree, self._layout.tree.places()
        if self._shape is None:
            return [(0, len(self._layout.serializers))]
        numbers = [tree.keys.index(name) for name in self._shape.names]
        return [(places[number], places[number + 1]) for number in numbers]

    def _decoding_of(self, encoding: str) -> Decoding:
        return decoding_of(encoding, decode=self.decode, pickles=self.allow_pickle)

    def _decodings(self) -> dict[int, Decoding]:
        """Return the function that decodes each value that is read."""
        return {
            place: self._decoding(f"Value {place} of the samples", self._layout.serializers[place])
            for start, stop in self._parts
            for place in range(start, stop)
        }

    def _read(self, indices: Indices) -> list[object]:
        if self.block_size is not None:
            return list(self._blocks(indices, np.empty((len(indices), self.block_size), self._dtype())))
        decodings = self._decodings()
        contents = self._open.get().samples(indices)
        return [
            self._sample(index, chunk, data, decodings)
            for index, (chunk, data) in zip(indices.tolist(), contents, strict=True)
        ]

    def _sample(self, index: int, chunk: int, data: bytes, decodings: dict[int, Decoding]) -> object:
        if not data and self._layout.tokens is None:
            row = self._row(chunk, index - int(self._starts[chunk]))
            if self._shape is None:
                return row
            if not set(self._shape.names) <= set(row):
                raise CorruptSource(f"Sample {index}, in {self._shown(chunk)}, has only the fields {', '.join(row)}.")
            return self._shape.build([row[field] for field in self._shape.names])
        try:
            return self._decoded(data, decodings)
        except BadOption:
            raise
        except BROKEN as exc:
            raise CorruptSource(
                f"Sample {index}, in {self._shown(chunk)}, cannot be decoded: {words(exc)}. Write or copy the chunk "
                "again."
            ) from exc

    def _row(self, chunk: int, place: int) -> dict[str, object]:
        """Return a sample that is a row of an Arrow table. Raises CorruptSource: there is no such row."""
        name, chunks = self._shown(chunk), self._open.get()
        table = self._tables.load(chunk, lambda: _table_of(chunks, chunk, name))
        if place >= table.num_rows:
            raise CorruptSource(f"{name} has {table.num_rows} rows, but sample {place} is listed. {AGAIN}")
        found: dict[str, object] = table.slice(place, 1).to_pylist()[0]
        return found

    def _decoded(self, data: bytes, decodings: dict[int, Decoding]) -> object:
        tree, count = self._layout.tree, len(self._layout.serializers)
        if self._layout.tokens is not None:
            return decodings[0](data)
        bounds = list(accumulate(struct.unpack_from(f"<{count}I", data), initial=4 * count))
        if bounds[-1] != len(data):
            raise ValueError(f"its values take {bounds[-1]} bytes, but it has {len(data)}")
        values = {place: decoding(data[bounds[place] : bounds[place + 1]]) for place, decoding in decodings.items()}
        if self._shape is None:
            return tree.build(iter(values.values()))
        children = dict(zip(tree.keys, tree.children, strict=True))
        parts = zip(self._shape.names, self._parts, strict=True)
        return self._shape.build(
            [children[name].build(values[place] for place in range(start, stop)) for name, (start, stop) in parts]
        )

    def _dtype(self) -> np.dtype[np.generic]:
        return token_type(self._layout.serializers[0])

    def _blocks(self, indices: Indices, batch: NDArray[np.generic]) -> NDArray[np.generic]:
        """Read blocks of tokens into the rows of an array."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        size = batch.dtype.itemsize * batch.shape[1]
        starts = (self._content_starts[numbers] + (indices - self._starts[numbers]) * size).tolist()
        wanted = [ByteRange(number, at, at + size) for number, at in zip(numbers.tolist(), starts, strict=True)]
        for row, data in enumerate(self._open.get().read(wanted)):
            batch[row] = np.frombuffer(data, batch.dtype)
        return batch

    def read_columns(self, indices: Indices) -> NDArray[np.generic] | None:
        checked = self._checked(indices)
        if self.block_size is None or self.is_remote or self.transform is not None or has_own_samples(type(self)):
            return None
        return self._blocks(checked, memory.empty((len(checked), self.block_size), self._dtype()))

    def close(self) -> None:
        """Close all chunks in this process, and drop those that were unpacked."""
        super().close()
        self._tables.clear()

    def _form(self) -> str:
        if self._layout.tokens is not None:
            return f"{self._dtype()}[{self.block_size or 'any length'}]"
        tree, serializers = self._layout.tree, self._layout.serializers
        if self._shape is None:
            return tree.describe(iter(serializers))
        places, children = tree.places(), dict(zip(tree.keys, tree.children, strict=True))
        first = dict(zip(tree.keys, places, strict=False))
        return self._shape.describe(
            [children[name].describe(iter(serializers[first[name] :])) for name in self._shape.names]
        )


def _table_of(chunks: OpenShards, chunk: int, name: str) -> tuple[Table, int]:
    """Return the Arrow table at the end of a chunk, and its size: dicts of texts, numbers and lists.

    Newer versions of LitData store JSON-like samples in it. The chunk's own table lists the samples as empty. The Arrow
    file that follows has record batches of 256 rows each. Raises CorruptSource: there is none, or it is damaged;
    MissingExtra: pyarrow is not installed.
    """
    arrow = require("pyarrow", extra="parquet", purpose="reading rows of LitData")
    ipc = require("pyarrow.ipc", extra="parquet", purpose="reading rows of LitData")

    def read(start: int, stop: int) -> bytes:
        return chunks.read([ByteRange(chunk, start, stop)])[0]

    end = chunks.size(chunk)
    size, magic = _FOOTER.unpack(read(max(0, end - _FOOTER.size), end))
    if magic != _MAGIC or size > end - _FOOTER.size:
        raise CorruptSource(f"{name} lists empty samples, and no Arrow table follows them. {AGAIN}")
    data = read(end - _FOOTER.size - size, end - _FOOTER.size)
    opened = ipc.open_file if data.startswith(b"ARROW1") else ipc.open_stream
    try:
        table = opened(arrow.BufferReader(data)).read_all()
        table.validate(full=True)
    except (arrow.ArrowException, OSError, ValueError) as exc:
        raise CorruptSource(f"The Arrow table in {name} is damaged: {words(exc)}. {AGAIN}") from exc
    return table.combine_chunks(), max(size, table.nbytes)
