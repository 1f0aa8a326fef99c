"""Compares what is in a store with the digest that was stored when it was packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from feedline.errors import BadOption, CorruptSource
from feedline.packing.contents.contents import Contents
from feedline.packing.digest import START, chained, digest_of
from feedline.packing.formats import FORMATS, Format
from feedline.packing.output import read_file, shard_paths
from feedline.packing.schema import Sample

_KINDS = (("HDF5", "hdf5"), ("LMDB", "lmdb"), ("tar", "tar"), ("Parquet", "parquet"), (".npy", "npy"))


def verify(contents: Contents, report: Callable[[int], Any] | None = None) -> str:
    """Read all samples and return their digest, which is the one that was stored.

    Raises:
        BadOption: no digest was stored.
        CorruptSource: it is another one, or samples cannot be read.
    """
    if contents.stored is None or "digest" not in contents.stored:
        raise BadOption(f"{contents.path} has no digest: it was not written by feedline pack, and cannot be verified.")
    chain, count = START, 0
    try:
        for sample in _samples(contents):
            chain = chained(chain, [digest_of(sample)])
            count += 1
            if report is not None and count % 256 == 0:
                report(count)
    except Exception as exc:  # whatever a library makes of damaged bytes
        raise CorruptSource(
            f"{contents.path} is damaged: reading sample {count} failed: {str(exc).rstrip('.')}."
        ) from exc
    expected = contents.stored
    if (count, chain) != (expected["count"], expected["digest"]):
        raise CorruptSource(
            f"{contents.path} is damaged or was changed: it has {count} samples with digest {chain}, but "
            f"{expected['count']} with digest {expected['digest']} were packed. Pack it again, or restore it."
        )
    return chain


def _samples(contents: Contents) -> Iterator[Sample]:
    format_ = _format_of(contents)
    is_sharded = contents.path.is_dir() and format_.name not in ("npy", "lmdb")
    for path in shard_paths(contents.path, format_) if is_sharded else [contents.path]:
        yield from read_file(format_, path)


def _format_of(contents: Contents) -> Format:
    name = next(name for word, name in _KINDS if word in contents.kind)
    return FORMATS[name]
