"""`feedline.pack`: a dataset, read in parallel, into a format that reads fast.

The loader makes items of samples (in workers), in order. They are written in blocks; every few thousand samples there
is a checkpoint: everything is on the disk, with a note of where the loader is. A run that finds such a note goes on
from there, and does what the interrupted one would have done: where checkpoints, blocks and shards end depends on the
samples alone, never on time or the number of workers. So both leave the same bytes.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from feedline.datasets.arrays import ArrayDataset, is_arrays
from feedline.datasets.kind import kind_of
from feedline.errors import BadOption, PackError
from feedline.loader.loader import Loader
from feedline.packing.digest import START, chained, digest_of
from feedline.packing.formats import Format, format_of
from feedline.packing.line import loader_line
from feedline.packing.opening import Opened, dataset_fingerprint, open_source
from feedline.packing.options import Options, as_names, as_path, check_apart, check_place
from feedline.packing.output import Output, Shards, Single
from feedline.packing.pictures import Pictures, extension_of, is_picture
from feedline.packing.prepare import Item, Prepare, numbered
from feedline.packing.progress import Packed, Progress, Stage
from feedline.packing.schema import Sample, Schema
from feedline.packing.work import WorkFolder
from feedline.packing.writers.contract import Layout, Summary
from feedline.types import DatasetKind

BATCH = 16
"""Samples that a worker makes at a time."""
_BLOCK_SAMPLES, _BLOCK_BYTES = 256, 1 << 24
"""How many are written together. The first block decides what the fields hold."""
_CHECKPOINT_BYTES = 1 << 28
_SHARD_BYTES = 1 << 30
"""Of a shard, if nothing was said. What the webdataset package's authors advise, about."""


# Any: a dataset is any object that fits, and so is the path of an output.
def pack(
    dataset: Any,
    out: Any,
    *,
    format: str | None = None,  # noqa: A002  (what users call it)
    workers: int | None = None,
    fields: Sequence[str] | None = None,
    encode: str = "keep",
    resize: int | tuple[int, int] | None = None,
    quality: int = 90,
    ragged: Sequence[str] = (),
    samples_per_shard: int | None = None,
    shard_bytes: int | None = None,
    compression: str | None = None,
    on_error: str = "raise",
    overwrite: bool = False,
    restart: bool = False,
    verify: bool = True,
    checkpoint_every: int = 4096,
    engine: str = "auto",
    start_method: str | None = None,
    source: str | None = None,
    facts: Mapping[str, Any] | None = None,
    report: Callable[[Stage], Any] | None = None,
) -> Packed:
    """Write a dataset into one of the formats that read fast.

    The output is built in `OUT.packing`, beside `out`, checked, and only then gets its name. If the run is interrupted
    in any way, the same call goes on where it was; the result has the same bytes.

    Args:
        dataset: map-style or iterable; an array, or a tuple or dict of arrays. Samples are dicts, tuples or single
            values of arrays, numbers, strings, bytes, pictures. Or what the command takes: the path of a folder, of a
            table of files or of a store, or "module:object".
        out: a file whose suffix says the format, or a folder: of shards for tar, hdf5 and parquet, of arrays for npy.
        format: "lmdb", "hdf5", "tar", "parquet" or "npy".
        workers: that read, decode and encode; as many as there are cores if not given.
        fields: names of the fields to keep, or names for the elements of tuples ("0", "1" if not given).
        encode: pictures become "jpg" or "png", "raw" arrays of pixels, or "keep" what they are.
        resize: a number makes the shorter side of pictures that short; (width, height) makes them exactly so large.
        quality: of JPEG, 1 to 100.
        ragged: array fields whose shapes differ, if the first samples do not show it.
        samples_per_shard: how many samples a shard has.
        shard_bytes: about how many bytes a shard has.
        compression: "gzip" or "lzf" (hdf5); "snappy", "zstd", "lz4", "gzip" or "none" (parquet).
        on_error: "raise", or "skip" to leave out samples that fail.
        overwrite: True to replace what is there.
        restart: True to begin again instead of going on with an interrupted run.
        verify: False to leave out the check at the end, which reads everything again.
        checkpoint_every: samples between two points from which an interrupted run goes on.
        engine: of the loader.
        start_method: of the loader's worker processes.
        source: what the dataset is, in words; an interrupted run is gone on with only if it is the same. If not given,
            the dataset itself has to be: what it consists of, and the code that makes its samples.
        facts: anything about all samples that is to be stored with them, such as the names of classes; in values that
            JSON keeps. A single tar file has no place for it.
        report: called with a `Stage` from time to time.

    Raises:
        BadOption: an option that cannot work, or the output exists already.
        SourceError: the dataset is a path at which nothing is.
        PackError: a sample cannot be packed, the disk is full, or what was read back differs.

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
    path = as_path(out)
    with _opened(dataset, path) as opened:
        options = Options(
            pictures=Pictures(encode, resize, quality),
            fields=as_names(opened.fields if fields is None else fields),
            ragged=as_names(ragged) or (),
            samples_per_shard=samples_per_shard,
            shard_bytes=shard_bytes,
            layout=Layout(compression=compression),
            on_error=on_error,
            facts={**opened.facts, **(facts or {})},
            checkpoint_every=checkpoint_every,
        )
        format_ = format_of(path, format)
        sharded = check_place(path, format_, options, overwrite=overwrite)
        if sharded and not options.is_sharded:
            options = replace(options, shard_bytes=_SHARD_BYTES)
        dataset = ArrayDataset(opened.dataset) if is_arrays(opened.dataset) else opened.dataset
        is_map = kind_of(dataset, "dataset") is DatasetKind.MAP
        total = len(dataset) if is_map else None
        if total == 0:
            raise PackError(f"The dataset has no samples, so that there is nothing to pack into {path.name}.")
        skips = on_error == "skip"
        # Before anything is read, which may change what the dataset holds.
        named = {"source": source or opened.text} if source or opened.text else _nameless(dataset)
        loader = Loader(
            numbered(dataset, skips=skips),
            BATCH,
            collate=Prepare(options.pictures, options.fields, skips=skips),
            workers=core_count() if workers is None else workers,
            engine=engine,
            start_method=start_method,
            seed=0,
        )
        job = {"samples": total, "format": format_.name, **options.as_json(), **named}
        work = WorkFolder(path, job, restart=restart)
        run = _Run(loader, work, _output(work.path, format_, options, sharded=sharded), options, total, report)
        try:
            with _explained(path, work.path, run):
                packed = run.run(path, str(out), format_, verify=verify)
        finally:
            run.close()
            loader.close()
            if not run.has_stored:  # there is nothing to go on with
                work.remove()
            work.close()
    return replace(packed, seconds=time.monotonic() - begin)


# Any: a dataset of any class.
@contextmanager
def _opened(dataset: Any, out: Path) -> Iterator[Opened]:
    """Open what is named by a path or as module:object, as the command does; a dataset stays what it is."""
    if isinstance(dataset, os.PathLike):
        dataset = os.fspath(dataset)
    if isinstance(dataset, (bytes, bytearray, memoryview)):
        raise BadOption(
            f"{bytes(dataset[:40])!r} is no dataset. Give one, or the path of a folder or store as a string."
        )
    if not isinstance(dataset, str):
        yield Opened(dataset, "")
        return
    check_apart(dataset, out)
    with open_source(dataset) as opened:
        yield opened


def _nameless(dataset: Any) -> dict[str, str]:
    return {"source": type(dataset).__name__, "dataset": dataset_fingerprint(dataset)}


def core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _output(folder: Path, format_: Format, options: Options, *, sharded: bool) -> Output:
    return (Shards if sharded else Single)(folder, format_, options.layout)


class _Run:
    """One call of `pack`, from the first sample to the name of the output."""

    def __init__(
        self,
        loader: Loader,
        work: WorkFolder,
        output: Output,
        options: Options,
        total: int | None,
        report: Callable[[Stage], Any] | None,
    ) -> None:
        self._loader = loader
        self._work = work
        self._output = output
        self._options = options
        self._total = total
        self._report = report or (lambda _: None)
        self._progress = Progress()
        self._block: list[Sample] = []
        self._block_bytes = 0
        self._since = [0, 0]
        """Samples and bytes since the last checkpoint."""
        self._has_begun = False
        self.has_stored = not work.is_empty
        """True if a later run has something to go on with."""

    def run(self, path: Path, given: str, format_: Format, *, verify: bool) -> Packed:
        done = self._work.done
        if done is None:
            resumed = self._resume()
            done = {**self._write(), "resumed": resumed}
            if verify:
                self._check(done["digest"], done["count"])
            done["line"] = loader_line(format_.name, given, self._output.schema, done.pop("form"))
            done["size"] = size_on_disk(self._output.path)
            self._work.note_done(done)
        self._work.deliver(self._output.path)
        return Packed(path, format_.name, **{**done, "reasons": tuple(done["reasons"])})

    def _resume(self) -> int:
        note = self._output.resume()
        if note is None:
            return 0
        self._has_begun = True
        if "finished" in note:
            facts = note["finished"]
            self._progress = Progress(**{name: facts[name] for name in ("count", "digest", "form", "skipped")})
            self._progress.loader = "finished"
        else:
            self._progress = Progress(**note)
        if isinstance(self._output, Shards) and not self._output.is_open:
            self._progress.shard = Progress().shard
        elif self._shard_is_full():
            self._leave_shard()
        return self._progress.count

    def _write(self) -> dict[str, Any]:
        if self._progress.loader != "finished":
            for batch, before in self._batches():
                self._take(batch, before)
            self._flush()
            if not self._has_begun:
                first = self._progress.reasons[0] if self._progress.reasons else "it yielded none"
                raise PackError(
                    f"No sample could be packed, so that there is nothing to write. The first: {first.rstrip('.')}."
                )
            self._checkpoint("finished", 0)
        self._leave_shard()
        progress = self._progress
        self._output.finish(
            Summary(progress.count, progress.digest, progress.form, progress.skipped, self._options.facts)
        )
        facts = ("count", "digest", "form", "skipped", "reasons")
        return {name: getattr(progress, name) for name in facts}

    def _batches(self) -> Iterator[tuple[list[Item], Any]]:
        """Yield batches, and the state of the loader before each, where it is needed."""
        if self._progress.loader is not None:
            self._loader.load_state_dict(self._progress.loader)
        self._report(Stage("packing", self._progress.taken, self._total))
        skip = self._progress.done
        before = self._loader.state_dict() if self._options.is_sharded else None
        for batch in self._loader:
            yield batch[skip:], before
            skip = 0
            self._report(Stage("packing", self._progress.taken, self._total))
            if self._options.is_sharded:
                before = self._loader.state_dict()

    def _take(self, batch: list[Item], before: Any) -> None:
        offset = self._progress.done
        self._progress.done = 0
        for place, item in enumerate(batch):
            self._progress.add(item)
            self._since[0] += 1
            if item.sample is None:
                continue
            self._block.append(item.sample)
            self._block_bytes += item.size
            self._since[1] += item.size
            if len(self._block) >= _BLOCK_SAMPLES or self._block_bytes >= _BLOCK_BYTES:
                self._flush()
            if self._shard_is_full():
                self._flush()
                self._checkpoint(before, offset + place + 1)
                self._leave_shard()
        if self._since[0] >= self._options.checkpoint_every or self._since[1] >= _CHECKPOINT_BYTES:
            self._flush()
            self._checkpoint(self._loader.state_dict(), 0)

    def _flush(self) -> None:
        """Write the block."""
        block, self._block, self._block_bytes = self._block, [], 0
        if not block:
            return
        if not self._has_begun:
            schema = Schema.of(block, ragged=self._options.ragged)
            self._check_pictures(block)
            self._output.begin(schema)
            self._has_begun = True
        first = self._progress.count - len(block)
        schema = self._output.schema
        self._output.write([schema.fitted(sample, first + place) for place, sample in enumerate(block)])

    def _check_pictures(self, block: list[Sample]) -> None:
        pictures = self._options.pictures
        if not pictures.does_something:
            return
        changed = [value for value in block[0].values() if _may_be_picture(value)]
        if not changed:
            raise BadOption(
                f"encode={pictures.encode!r}, resize={pictures.resize!r} are about pictures, but no field of the first "
                f"sample is one: it has {', '.join(map(repr, block[0]))}. Pictures are the bytes of files that Pillow "
                "reads, its images, and uint8 arrays of height, width and colours. Leave the options out."
            )

    def _checkpoint(self, state: Any, done: int) -> None:
        if not self._has_begun:
            return  # nothing but samples that failed
        self._progress.loader, self._progress.done = state, done
        self._output.checkpoint(asdict(self._progress))
        self.has_stored = True
        self._progress.done = 0
        self._since = [0, 0]

    def _shard_is_full(self) -> bool:
        options, shard = self._options, self._progress.shard
        by_count = options.samples_per_shard is not None and shard["count"] >= options.samples_per_shard
        return by_count or (options.shard_bytes is not None and shard["size"] >= options.shard_bytes)

    def _leave_shard(self) -> None:
        if isinstance(self._output, Shards):
            shard = self._progress.shard
            self._output.leave(Summary(shard["count"], shard["digest"], self._progress.form))
            self._progress.shard = Progress().shard

    def _check(self, digest: str, count: int) -> None:
        """Read everything again, and compare.

        Raises:
            PackError: something else was read than was written.
        """
        chain, number = START, 0
        self._report(Stage("checking", 0, count))
        try:
            for number, sample in enumerate(self._output.read(), 1):
                chain = chained(chain, [digest_of(sample)])
                if number % 256 == 0:
                    self._report(Stage("checking", number, count))
        except Exception as exc:  # whatever a library makes of damaged bytes
            raise _differs(self._work.path, f"reading sample {number} failed: {type(exc).__name__}: {exc}") from exc
        if (number, chain) != (count, digest):
            raise _differs(self._work.path, f"{number} of {count} samples came back, with digest {chain}, not {digest}")
        self._report(Stage("checking", number, count))

    def close(self) -> None:
        self._output.close()


def _differs(work: Path, what: str) -> PackError:
    return PackError(
        f"What was read back is not what was written: {what}. The disk or memory of this machine may be faulty. The "
        f"output did not get its name; it is in {work}. Run again with --restart (restart=True)."
    )


def _may_be_picture(value: Any) -> bool:
    if isinstance(value, bytes):
        return extension_of(value) != "bin"
    return hasattr(value, "dtype") and is_picture(value)


class _explained:  # noqa: N801  (a context manager that reads like a word)
    """Says what to do about a full disk."""

    def __init__(self, out: Path, work: Path, run: _Run) -> None:
        self._out = out
        self._work = work
        self._run = run

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = (
                f"What was written is kept in {self._work}: make room and run again to go on, or remove that folder."
                if self._run.has_stored
                else "Make room and run again."
            )
            raise PackError(f"There is no room left for {self._out.name}: {error}. {advice}") from error


def size_on_disk(path: Path) -> int:
    """Return how many bytes a file has, or all files in a folder."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)
