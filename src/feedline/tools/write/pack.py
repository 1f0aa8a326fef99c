"""`feedline.pack`: read a dataset in parallel and write it in a format that reads fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from feedline.datasets.formats.arrays import ArrayDataset
from feedline.datasets.framework.kind import kind_of
from feedline.datasets.storage.addresses import identity_of, shown_address, shown_url
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import protocol_of
from feedline.errors import BadOption, PackError
from feedline.system.sizes import byte_count
from feedline.tools.write.opening import called, dataset_fingerprint, dataset_text, loader_text, open_given
from feedline.tools.write.options import (
    Options,
    as_fields,
    as_names,
    as_path,
    check_place,
    check_store_place,
)
from feedline.tools.write.pictures import Pictures
from feedline.tools.write.place import LocalPlace, Place
from feedline.tools.write.prepare import Prepare, numbered
from feedline.tools.write.run import Run, Stage, loader_of
from feedline.tools.write.samples import Samples
from feedline.tools.write.store import StorePlace
from feedline.tools.write.writers.contract import format_of
from feedline.types import DatasetKind, EngineName, is_arrays

BATCH = 16
"""Number of samples in one task of a worker."""
_SHARD_BYTES = 1 << 30
"""Default shard size; about what the authors of the webdataset package recommend."""


@dataclass(frozen=True)
class Packed:
    """The result of `pack`."""

    path: Any  # a Path; for an output in a store, its address as a string
    format: str
    count: int
    """Samples in the output."""
    size: int
    """Bytes of the output."""
    skipped: int = 0
    """Samples that were left out because they could not be read, or did not fit."""
    reasons: tuple[str, ...] = ()
    """The first 20 skipped samples, each with the reason."""
    resumed: int = 0
    """Samples in shards that an earlier, interrupted run had written."""
    seconds: float = 0.0
    line: str = ""
    """The line of Python that reads the output."""
    left_out: int = 0
    """Files of a folder that are not samples, such as texts among pictures."""


def pack(
    dataset: object,
    out: object,
    *,
    format: str | None = None,  # noqa: A002  (what users call it)
    workers: int | None = None,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    encode: str = "keep",
    resize: int | tuple[int, int] | None = None,
    quality: int = 90,
    ragged: Sequence[str] = (),
    samples_per_shard: int | None = None,
    shard_bytes: int | str | None = None,
    compression: str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    restart: bool = False,
    verify: bool = True,
    engine: EngineName = "auto",
    start_method: str | None = None,
    source: str | None = None,
    metadata: Mapping[str, object] | None = None,
    remote: Remote | None = None,
    report: Callable[[Stage], object] | None = None,
) -> Packed:
    """Write a dataset in one of the formats that read fast.

    The output is built in `OUT.packing`, beside `out`, checked, and only then renamed to `out`. If a run that writes
    shards is interrupted in any way, the same call resumes after the last complete shard, and the result has the same
    bytes. A single file is started over.

    An output may also be the address of a folder in a store, such as `s3://bucket/train`. Each shard is written to a
    temporary file, read back, uploaded, compared and deleted. The job file from which a run resumes is in the
    store, too, so any machine can resume it.

    Args:
        dataset: map-style or iterable; an array, or a tuple or dict of arrays. Samples are dicts, tuples or single
            values of arrays, numbers, strings, bytes, pictures. It may also be a name as on the command line: the path
            of a folder or a store, or "module:object".
        out: a file whose suffix selects the format, or a folder: of shards (tar, hdf5, parquet) or arrays (npy). In a
            store: the address of a folder, for shards of tar or parquet.
        format: "lmdb", "hdf5", "tar", "parquet" or "npy".
        workers: number of workers that read, decode and encode; by default, the number of cores.
        fields: names of the fields to keep, or names for the elements of tuples ("0", "1" by default). A dict that maps
            new names to the dataset's names renames fields.
        encode: "jpg" or "png" to encode pictures, "raw" to store arrays of pixels, "keep" to leave pictures unchanged.
        resize: a number shrinks the shorter side of pictures to that length; (width, height) sets the exact size.
        quality: JPEG quality, 1 to 100.
        ragged: array fields whose shapes differ, if the first samples do not show it.
        samples_per_shard: the most samples in a shard. If the dataset has a length, all shards get about as many.
        shard_bytes: approximate size of the largest shard in bytes, or a text such as "500MB". If the dataset has a
            length, all shards get about the same size.
        compression: "gzip" or "lzf" (hdf5); "snappy", "zstd", "lz4", "gzip" or "none" (parquet).
        on_error: "raise", or "skip" to leave out samples that cannot be read, or that do not fit the other samples or
            the format.
        overwrite: True to replace an existing output, which can be read until the new one is complete.
        restart: True to start over instead of resuming an interrupted run.
        verify: False to skip reading each file back before it gets its name. In a store, each shard is then compared
            with the checksum that the store computed.
        engine: the loader's engine.
        start_method: the start method of the loader's worker processes.
        source: a name for the dataset; an interrupted run is resumed only if the name is the same. Without a name, the
            dataset itself has to be the same: its contents, and the code that makes its samples.
        metadata: values about all samples to store with them, such as the names of classes; compatible with JSON. A
            single tar file stores them only if they are short.
        remote: how a store is written to, and how a dataset that is given as an address is read.
        report: called with a `Stage` from time to time.

    Raises:
        BadOption: an option cannot work, or the output exists already.
        SourceError: the dataset is a path that does not exist.
        PackError: a sample cannot be packed, the disk is full, or the output differs when it is read back.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import feedline
        >>> folder = Path(tempfile.mkdtemp())
        >>> data = {"x": np.zeros((100, 3), np.float32), "y": np.arange(100)}
        >>> packed = feedline.pack(data, folder / "train.lmdb", workers=0)
        >>> packed.count, packed.skipped
        (100, 0)
    """
    begin = time.monotonic()
    address = out if isinstance(out, str) and protocol_of(out) else ""
    path = Path(address.rstrip("/")) if address else as_path(out)
    chosen = as_fields(fields)
    if address and isinstance(dataset, str) and f"{dataset.rstrip('/')}/".startswith(f"{address.rstrip('/')}/"):
        raise BadOption(f"{shown_address(dataset)} lies in the output itself. Choose another place for the output.")
    with open_given(dataset, None if address else path, fields=chosen, remote=remote) as opened:
        options = Options(
            pictures=Pictures(encode, resize, quality),
            fields=as_fields(opened.fields) if chosen is None else chosen,
            ragged=as_names(ragged, "ragged"),
            samples_per_shard=samples_per_shard,
            shard_bytes=byte_count("shard_bytes", shard_bytes),
            compression=compression,
            on_error=on_error,
            metadata={**opened.metadata, **(metadata or {})},
        )
        format_ = format_of(path, format)
        check = partial(check_place, path, format_, options, overwrite=overwrite)
        is_sharded = check_store_place(address, format_, options) if address else check()
        if is_sharded and not options.is_sharded:
            options = replace(options, shard_bytes=_SHARD_BYTES)
        dataset = ArrayDataset(opened.dataset) if is_arrays(opened.dataset) else opened.dataset
        total = len(dataset) if kind_of(dataset, "dataset") is DatasetKind.MAP else None
        if total == 0:
            raise PackError(f"The dataset has no samples, so there is nothing to pack into {path.name}.")
        # Compute the fingerprint before reading, because reading may change the dataset.
        job = {"samples": total, "format": format_.name, **asdict(options)}
        job["source"] = source or opened.text or type(dataset).__name__
        if not (source or opened.text):
            job["dataset"] = dataset_fingerprint(dataset)
        prepare = Prepare(options.pictures, options.fields, skips=options.skips)
        samples_in_order = numbered(dataset, skips=options.skips)
        loader = loader_of(samples_in_order, BATCH, prepare, workers, engine=engine, start_method=start_method)
        place: Place
        if address:
            store = checked_remote(remote)
            place = StorePlace(address, job, store, restart=restart, overwrite=overwrite, verify=verify)
        else:
            place = LocalPlace(path, job, restart=restart, verify=verify, check=check)
        name = partial(called, dataset)
        samples = Samples(place.folder, format_, options, total, name, identity_of(address.rstrip("/")))
        run = Run(loader, samples, place, is_sharded, total, verify, report or (lambda _: None))
        run.run(path)
    shown = shown_address(str(out))
    if address:
        shown = f"{shown.rstrip('/')}/"
    elif is_sharded:
        shown = str(Path(shown) / f"shard-*{format_.suffixes[0]}")
    progress = samples.progress
    return Packed(
        shown_url(address) if address else path,
        format_.name,
        progress.count,
        run.size,
        progress.skipped,
        tuple(progress.reasons),
        run.resumed,
        time.monotonic() - begin,
        loader_text(dataset_text(format_.name, shown, samples.schema, progress.form), samples.schema),
        opened.left_out,
    )
