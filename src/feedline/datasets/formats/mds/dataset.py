"""Samples in MDS shards."""

from __future__ import annotations

import functools
import os

from feedline.datasets.formats.indexed_shards import Folder, OpenShards, starts_of
from feedline.datasets.formats.mds.encodings import BROKEN, Decoding, checked_decode, decoding_of
from feedline.datasets.formats.mds.index import Cutter, read_layout
from feedline.datasets.framework.form import Fields, Form
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform, checked_flag, is_column, stacked
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import protocol_of
from feedline.errors import BadOption, CorruptSource
from feedline.system.failures import words
from feedline.system.handle import Handle


class MDSDataset(TableSource):
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
        super().__init__(transform)
        self.decode = checked_decode(decode)
        self.allow_pickle = checked_flag("allow_pickle", allow_pickle)
        folder = Folder(path, remote, cache_bytes)
        self.remote = folder.remote
        self.is_remote = bool(protocol_of(folder.path))
        self._name = folder.name
        self._layout = read_layout(folder)
        self._shape = Form.of(fields, [column.name for column in self._layout.columns], self._name)
        self._starts = starts_of(self._layout.shards)
        self._cutter = Cutter(self._layout.columns, [place for place, _ in self._wanted()])
        for place, column in self._wanted():
            self._decoding(place, column)  # raises now the error that every sample would raise
        self._open: Handle[OpenShards] = Handle(
            functools.partial(OpenShards, self._layout.shards, folder.remote, folder.cache_bytes), OpenShards.close
        )

    def _wanted(self) -> list[tuple[int, str]]:
        """Return the place of each field in a stored sample, and its name."""
        places = {column.name: place for place, column in enumerate(self._layout.columns)}
        return [(places[name], name) for name in self._shape.names]

    def _decoding(self, place: int, name: str) -> Decoding:
        encoding = self._layout.columns[place].encoding
        try:
            return decoding_of(encoding, decode=self.decode, pickles=self.allow_pickle)
        except BadOption as exc:
            raise BadOption(
                f"The column {name!r} in {self._name} has the encoding {encoding!r:.100}. {words(exc)}."
            ) from exc

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _rows(self, indices: Indices) -> list[list[object]]:
        """Return the values of each sample."""
        decodings = [(name, self._decoding(place, name)) for place, name in self._wanted()]
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
                where = shown_address(self._layout.shards[shard].address)
                of = f"The column {name!r} of sample" if name else "Sample"
                raise CorruptSource(
                    f"{of} {index}, in {where}, cannot be decoded: {words(exc)}. Write or copy the shard again."
                ) from exc
            rows.append(row)
        return rows

    def _read(self, indices: Indices) -> list[object]:
        return [self._build(row) for row in self._rows(indices)]

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        columns = [stacked(list(values), empty) for values in zip(*self._rows(indices), strict=True)]
        self._has_columns = all(map(is_column, columns))
        return columns

    def close(self) -> None:
        """Close all shards in this process, and drop those that were unpacked."""
        self._upcoming.close()
        self._open.close()

    def _stored_in(self) -> list[str]:
        return [shard.address for shard in self._layout.shards]

    def _form(self) -> str:
        encodings = {column.name: column.encoding for column in self._layout.columns}
        return self._shape.describe([encodings[name] for name in self._shape.names])
