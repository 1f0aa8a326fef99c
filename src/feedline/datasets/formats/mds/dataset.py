"""Samples in MDS shards."""

from __future__ import annotations

import os

from feedline.datasets.formats.indexed_shards import Decoding, Folder, IndexedSource
from feedline.datasets.formats.mds.encodings import BROKEN, decoding_of
from feedline.datasets.formats.mds.index import Cutter, read_layout
from feedline.datasets.framework.form import Fields, Form
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform, is_column, stacked
from feedline.datasets.storage.remote import Remote
from feedline.errors import CorruptSource
from feedline.system.failures import words


class MDSDataset(IndexedSource, TableSource):
    """The samples of MDS shards, which `MDSWriter` of MosaicML Streaming writes, as a map-style dataset.

    Values are those that `StreamingDataset` returns, except for images: these are the bytes of JPEG or PNG files unless
    you choose a decoder with `decode=`. Shards that are not compressed are read in place, one read per sample.
    Compressed shards are unpacked into memory; read them in an order that stays within a few shards
    (`feedline.samplers.BlockSampler`). The hashes in index.json are not compared.

    Args:
        path: the folder with the index.json, or its address: `https://...`, `s3://...`, `gs://...`.
        fields: which columns a sample has, and in what form: a name for the value itself, a tuple of names for tuples,
            a list for dicts. None for a dict of all.
        decode: the decoder of images, as in `TarDataset`: "pil", "rgb8", "torchrgb" and others. None for their bytes.
        transform: applied to each sample.
        allow_pickle: True to decode columns that are pickles. The author of the shards can then run any code here.
        cache_bytes: the memory of each process for unpacked shards. The last one is kept in any case.
        remote: how remote files are read.

    Raises:
        SourceError: there is no index.json, or, at first use, no shard.
        CorruptSource: index.json or a shard is damaged or cut off.
        BadOption: an option is invalid, or the shards have a form that feedline does not read.

    Example:
        >>> import json, struct, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> samples = [struct.pack("<Iq", len(text), number) + text for number, text in enumerate([b"red", b"blue"])]
        >>> shard = struct.pack("<4I", 2, 16, 16 + len(samples[0]), 16 + len(b"".join(samples))) + b"".join(samples)
        >>> with open(f"{folder}/shard.00000.mds", "wb") as file:
        ...     _ = file.write(shard)
        >>> columns = {"column_names": ["label", "text"], "column_encodings": ["int", "str"], "column_sizes": [8, None]}
        >>> raw = {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}}
        >>> entry = {**columns, "format": "mds", "version": 2, "raw_data": raw, "zip_data": None, "samples": 2}
        >>> with open(f"{folder}/index.json", "w") as file:
        ...     json.dump({"version": 2, "shards": [entry]}, file)
        >>> dataset = MDSDataset(folder)
        >>> dataset
        MDSDataset(2 samples of {'label': int, 'text': str})
        >>> dataset[1]
        {'label': 1, 'text': 'blue'}
        >>> dataset.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Fields = None,
        *,
        decode: str | None = None,
        transform: Transform | None = None,
        allow_pickle: bool = False,
        cache_bytes: int | str = "256 MB",
        remote: Remote | None = None,
    ) -> None:
        folder = Folder(path, remote, cache_bytes)
        columns, shards = read_layout(folder)
        super().__init__(folder, shards, decode=decode, transform=transform, allow_pickle=allow_pickle)
        names = [column.name for column in columns]
        self._encodings = {column.name: column.encoding for column in columns}
        self._shape = Form.of(fields, names, self._name)
        self._cutter = Cutter(columns, [names.index(name) for name in self._shape.names])
        self._decodings()  # raises now the error that every sample would raise

    def _decoding_of(self, encoding: str) -> Decoding:
        return decoding_of(encoding, decode=self.decode, pickles=self.allow_pickle)

    def _decodings(self) -> list[tuple[str, Decoding]]:
        """Return the name of each field, and the function that decodes it."""
        return [(name, self._decoding(f"The column {name!r}", self._encodings[name])) for name in self._shape.names]

    def _rows(self, indices: Indices) -> list[list[object]]:
        """Return the values of each sample."""
        decodings = self._decodings()
        contents = self._open.get().samples(indices)
        rows = []
        for index, (shard, data) in zip(indices.tolist(), contents, strict=True):
            name = ""
            try:
                parts = self._cutter.cut(data)
                row = []
                for (name, decoding), part in zip(decodings, parts, strict=True):  # noqa: B007  (for the error)
                    row.append(decoding(part))
            except BROKEN as exc:
                of = f"The column {name!r} of sample" if name else "Sample"
                raise CorruptSource(
                    f"{of} {index}, in {self._shown(shard)}, cannot be decoded: {words(exc)}. Write or copy the shard "
                    "again."
                ) from exc
            rows.append(row)
        return rows

    def _read(self, indices: Indices) -> list[object]:
        return [self._build(row) for row in self._rows(indices)]

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        columns = [stacked(list(values), empty) for values in zip(*self._rows(indices), strict=True)]
        self._has_columns = all(map(is_column, columns))
        return columns

    def _form(self) -> str:
        return self._shape.describe([self._encodings[name] for name in self._shape.names])
