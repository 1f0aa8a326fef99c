"""The chunks of a LitData dataset and the form of its samples, as its index.json describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from feedline.datasets.formats.indexed_shards import AGAIN, Folder, Shard
from feedline.datasets.formats.litdata.leaves import token_type
from feedline.errors import BadOption, CorruptSource
from feedline.system.failures import words
from feedline.types import JsonObject

_KINDS = {
    "builtins.dict": "dict",
    "collections.OrderedDict": "dict",
    "builtins.list": "list",
    "builtins.tuple": "tuple",
}


@dataclass(frozen=True)
class Node:
    """A container in a sample, or one of its values."""

    kind: str
    """Its kind: "dict", "list", "tuple", or "leaf" for a value."""
    keys: tuple[Any, ...] = ()
    """The keys of a dict. Any: what JSON holds."""
    children: tuple[Node, ...] = ()

    @property
    def leaves(self) -> int:
        """How many values there are."""
        return 1 if self.kind == "leaf" else sum(child.leaves for child in self.children)

    def build(self, values: Iterator[object]) -> object:
        """Put values into these containers."""
        if self.kind == "leaf":
            return next(values)
        built = [child.build(values) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, built, strict=True))
        return tuple(built) if self.kind == "tuple" else built

    def places(self) -> list[int]:
        """Return the place of the first value of each child."""
        return list(accumulate((child.leaves for child in self.children), initial=0))

    def describe(self, texts: Iterator[str]) -> str:
        """Describe a sample for people."""
        if self.kind == "leaf":
            return next(texts)
        parts = [child.describe(texts) for child in self.children]
        if self.kind == "dict":
            return f"{{{', '.join(f'{key!r}: {part}' for key, part in zip(self.keys, parts, strict=True))}}}"
        text = ", ".join(parts)
        return f"[{text}]" if self.kind == "list" else f"({text}{',' * (len(parts) == 1)})"


@dataclass(frozen=True)
class Layout:
    """What index.json says."""

    serializers: tuple[str, ...]
    """The name of the serializer of each value."""
    tree: Node
    chunks: tuple[Shard, ...]
    tokens: tuple[int, ...] | None
    """How many tokens each chunk has; None if samples are not tokens without a header."""


def read_layout(folder: Folder) -> Layout:
    """Read index.json. Raises CorruptSource: it is damaged; BadOption: feedline does not read such chunks."""
    found = folder.read_index()
    listed, config = found.get("chunks"), found.get("config")
    if not isinstance(listed, list) or not isinstance(config, dict):
        advice = "It belongs to MosaicML Streaming: open it with MDSDataset." if "shards" in found else AGAIN
        raise CorruptSource(f"{folder.name} is not the index of a LitData dataset: it lists no chunks. {advice}")
    packing = _packing(folder, config)
    chunks, tokens = [], []
    for entry in listed:
        if not isinstance(entry, dict):
            raise CorruptSource(f"{folder.name} lists a chunk that is not a JSON object. {AGAIN}")
        name, size, count = entry.get("filename"), entry.get("chunk_bytes"), entry.get("chunk_size")
        chunks.append(folder.shard(name, size, count, packing, with_table=False))
        tokens.append(entry.get("dim"))
    serializers, tree = _form(folder, config)
    is_tokens = len(serializers) == 1 and serializers[0].startswith("no_header_") and tree.kind == "leaf"
    counts = tuple(one for one in tokens if type(one) is int)
    if not is_tokens or len(counts) < len(tokens):
        return Layout(serializers, tree, tuple(chunks), None)
    try:
        item = token_type(serializers[0]).itemsize
    except BadOption as exc:
        raise BadOption(f"{folder.name} cannot be used: {words(exc)}.") from exc
    for chunk, one in zip(chunks, counts, strict=True):
        size = 8 + 4 * chunk.count + one * item
        if size not in chunk.sizes:
            raise CorruptSource(
                f"{folder.name}: {one} tokens of a chunk take {size} bytes, but it has {chunk.sizes[0]}. {AGAIN}"
            )
    return Layout(serializers, tree, tuple(chunks), counts)


def _packing(folder: Folder, config: JsonObject) -> str | None:
    """Return the compression of whole chunks. Raises BadOption: feedline does not read such chunks."""
    loader = config.get("item_loader")
    if loader == "ParquetLoader":
        raise BadOption(f"{folder.name} lists Parquet files: open them with ParquetDataset.")
    if loader not in (None, "PyTreeLoader", "TokensLoader") or config.get("encryption"):
        what = "encrypted chunks" if config.get("encryption") else f"chunks of the item loader {loader!r:.50}"
        raise BadOption(f"{folder.name} lists {what}, which feedline does not read. Use LitData's StreamingDataset.")
    compression, level = config.get("compression"), config.get("compression_level")
    if compression is None:
        return None
    if str(compression).partition(":")[0] != "zstd" or level not in (None, "chunk"):
        raise BadOption(
            f"{folder.name} lists chunks with the compression {compression!r:.50} of every {level or 'chunk'!r:.50}. "
            'feedline reads chunks without compression, or with zstd and compression_level="chunk".'
        )
    return "zstd"


def _form(folder: Folder, config: JsonObject) -> tuple[tuple[str, ...], Node]:
    serializers = config.get("data_format")
    if not isinstance(serializers, list) or not all(isinstance(one, str) for one in serializers):
        raise CorruptSource(f"{folder.name} does not name the serializers of its samples. {AGAIN}")
    try:
        protocol, spec = json.loads(config.get("data_spec") or "null")
        if protocol != 1:
            raise ValueError("unknown protocol")
        tree = _node(spec)
        if tree.leaves != len(serializers):
            raise ValueError("its values do not match the serializers")
    except BadOption as exc:
        raise BadOption(f"{folder.name} cannot be used: {words(exc)}.") from exc
    except (ValueError, TypeError, LookupError, RecursionError) as exc:
        raise CorruptSource(f"{folder.name} does not describe the form of its samples: {exc!r:.100}. {AGAIN}") from exc
    return tuple(serializers), tree


def _node(spec: JsonObject) -> Node:
    """Return a part of a sample. Raises one of the errors that `_form` expects: it is damaged."""
    kind, context, children = spec["type"], spec["context"], spec["children_spec"]
    if kind is None and not children:
        return Node("leaf")
    if kind not in _KINDS:
        raise BadOption(f"feedline does not read samples with a {kind!r:.50}, only dicts, lists and tuples.")
    keys = tuple(json.loads(context)) if _KINDS[kind] == "dict" else ()
    nodes = tuple(map(_node, children))
    if _KINDS[kind] == "dict" and len(set(keys)) != len(nodes):
        raise ValueError("a dict has more or fewer keys than values")
    return Node(_KINDS[kind], keys, nodes)
