"""One run of `pack`: the loop from the first sample to the finished output.

The loader turns samples into items (in workers), in order. They are written in blocks. After each complete shard, a
note records the loader's position. A run that finds such a note resumes from there, and does what the interrupted run
would have done: where blocks and shards end depends only on the samples, never on time or the number of workers. So
both produce the same bytes.

The first samples are held back until they fill a block: they decide what the fields hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedline.errors import BadOption, CorruptSource, PackError
from feedline.loader.loader import Loader
from feedline.system.failures import words
from feedline.tools.write.options import Options
from feedline.tools.write.output import Output
from feedline.tools.write.pictures import extension_of, is_picture
from feedline.tools.write.prepare import Item
from feedline.tools.write.reading import count_samples, dataset_text, loader_text, open_packed, size_on_disk
from feedline.tools.write.schema import Agreement, Sample, Schema, Unfit
from feedline.tools.write.work import Work
from feedline.tools.write.writers.contract import Format, Summary

_BLOCK_SAMPLES, _BLOCK_BYTES = 256, 1 << 24
"""Limits of a block: of samples that are written together, and of the first samples, which decide what the fields hold.
"""
_REASONS_KEPT = 20
_REASON_LENGTH = 400


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


@dataclass(frozen=True)
class Stage:
    """The progress of `pack`, for display."""

    name: str
    """"packing" or "checking"."""
    done: int
    total: int | None
    """None if the dataset has no length."""


@dataclass
class Progress:
    """The position of a run, recorded after each complete shard."""

    loader: Any = None  # the loader's state; "finished" after the last sample
    done: int = 0
    """Items already written from the first batch that the loader returns in this state."""
    taken: int = 0
    """Samples processed so far: packed or skipped."""
    count: int = 0
    form: str = "dict"
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)
    size: int = 0
    """Approximate bytes of the samples that were packed."""

    def leave_out(self, name: str, reason: str) -> None:
        """Count a skipped sample, and keep the reason if it is among the first ones."""
        self.taken += 1
        self.skipped += 1
        if len(self.reasons) < _REASONS_KEPT:
            text = " ".join(f"{name}: {reason}".split())
            self.reasons.append(text if len(text) <= _REASON_LENGTH else f"{text[: _REASON_LENGTH - 3]}...")


@dataclass
class Run:
    """One call of `pack`."""

    loader: Loader
    work: Work
    output: Output
    format: Format
    options: Options
    total: int | None
    """Number of samples in the dataset, if known."""
    called: Callable[[int], str]
    """Returns the name of a sample for messages, given its number."""
    report: Callable[[Stage], object]
    _progress: Progress = field(default_factory=Progress, init=False)
    _has_schema: bool = field(default=False, init=False)
    _first: list[Item] = field(default_factory=list, init=False)
    """Items held back until the schema is decided."""
    # object: a sample as encoded by the format's writer.
    _block: list[object] = field(default_factory=list, init=False)
    _block_bytes: int = field(default=0, init=False)
    _shard_count: int = field(default=0, init=False)
    _shard_bytes: int = field(default=0, init=False)
    _checks_shards: bool = field(default=False, init=False)
    """True to read each shard again before it is uploaded."""

    def run(self, path: Path | str, given: str, *, verify: bool) -> Packed:
        """Write, check and deliver the output."""
        resumed = self._resume()
        self._checks_shards = verify and self.work.is_remote
        if self._progress.loader != "finished":
            self._write()
        progress, output = self._progress, self.output
        self.work.settle()
        output.finish(Summary(progress.count, progress.form, progress.skipped, self.options.metadata))
        if output.is_sharded:
            size = sum(int(str(entry["bytes"])) for entry in output.entries)
        else:
            size = size_on_disk([output.path])
        if verify and not self.work.is_remote:
            self._check(output.files, progress.count, size)
        place = given
        if self.work.is_remote:
            place = f"{given.rstrip('/')}/"
        elif output.is_sharded:
            place = str(Path(given) / f"shard-*{self.format.suffixes[0]}")
        line = loader_text(dataset_text(self.format.name, place, output.schema, progress.form), output.schema)
        self.work.deliver(output.path)
        reasons = tuple(progress.reasons)
        return Packed(path, self.format.name, progress.count, size, progress.skipped, reasons, resumed, line=line)

    def _resume(self) -> int:
        """Resume an interrupted run, if there is one; return how many samples it had written."""
        note = self.work.note
        if note is None:
            return 0
        self.output.resume(note["entries"], note["progress"]["count"], Schema.from_json(note["schema"]))
        self._progress, self._has_schema = Progress(**note["progress"]), True
        return self._progress.count

    def _write(self) -> None:
        for batch, before in self._batches():
            self._take(batch, before)
        self._decide()
        self._flush()
        if self._progress.count == 0:
            first = self._progress.reasons[0] if self._progress.reasons else "the dataset yielded no samples"
            raise PackError(
                f"No sample could be packed, so there is nothing to write. The first failure: {first.rstrip('.')}."
            )
        if self.output.is_sharded:
            self._finish_shard("finished", 0)

    def _batches(self) -> Iterator[tuple[list[Item], object]]:
        """Yield batches, each with the loader's state before it; None without shards, which do not need it."""
        if self._progress.loader is not None:
            self.loader.load_state_dict(self._progress.loader)
        self.report(Stage("packing", self._progress.taken, self.total))
        skip = self._progress.done
        before = self.loader.state_dict() if self.output.is_sharded else None
        for batch in self.loader:
            yield batch[skip:], before
            skip = 0
            self.report(Stage("packing", self._progress.taken + len(self._first), self.total))
            if self.output.is_sharded:
                before = self.loader.state_dict()

    def _take(self, batch: list[Item], before: object) -> None:
        offset, self._progress.done = self._progress.done, 0
        for place, item in enumerate(batch, offset + 1):
            if item.sample is None:
                self._progress.leave_out(self.called(item.number), item.failure)
            elif self._has_schema:
                self._add(item, item.sample)
            else:
                self._first.append(item)
                if self._first_is_full():
                    self._decide()
            # A shard cannot fill up before the end of the first block: `_first_is_full` respects the shard limits, too.
            if self._shard_is_full():
                self._flush()
                self._finish_shard(before, place)

    def _first_is_full(self) -> bool:
        count, size = len(self._first), sum(item.size for item in self._first)
        most, most_bytes = self.options.samples_per_shard, self.options.shard_bytes
        if self.total is not None:
            most = most and _share(self.total, most)
            most_bytes = most_bytes and _share(self.total * size / count, most_bytes)
        return count >= min(_BLOCK_SAMPLES, most or count + 1) or size >= min(_BLOCK_BYTES, most_bytes or size + 1)

    def _decide(self) -> None:
        """Decide what the fields hold, and start the output with the samples that were held back."""
        first, self._first = self._first, []
        if not first:
            return
        samples = [item.sample or {} for item in first]
        agreement = Agreement(
            self.format.name,
            self.format.writer.cannot_hold,
            lambda place: self.called(first[place].number),
            self.options.ragged,
            self.options.skips,
        )
        schema = agreement.schema(samples)
        self._check_pictures([sample for sample in samples if sample.keys() == set(schema.names)])
        self.output.schema, self._has_schema = schema, True
        for item, sample in zip(first, samples, strict=True):
            self._add(item, sample)

    def _add(self, item: Item, sample: Sample) -> None:
        """Add a sample to the block, or skip it if it does not fit."""
        schema = self.output.schema
        try:
            encoded = self.format.writer.encoded(schema, schema.fitted(sample))
        except Unfit as exc:
            name = self.called(item.number)
            if self.options.skips:
                self._progress.leave_out(name, str(exc))
                return
            raise PackError(
                f"{name[:1].upper()}{name[1:]} does not fit: {words(exc)}. {exc.advice} Or leave out "
                "such samples: --on-error skip (on_error='skip')."
            ) from exc
        self._progress.taken += 1
        self._progress.count += 1
        self._progress.form = item.form
        self._progress.size += item.size
        self._shard_count += 1
        self._shard_bytes += item.size
        self._block.append(encoded)
        self._block_bytes += item.size
        if len(self._block) >= _BLOCK_SAMPLES or self._block_bytes >= _BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write the block."""
        block, self._block, self._block_bytes = self._block, [], 0
        if block:
            self.output.write(block)

    def _check_pictures(self, samples: Sequence[Sample]) -> None:
        pictures = self.options.pictures
        values = (value for sample in samples for value in sample.values())
        if pictures.does_something and not any(map(_may_be_picture, values)):
            raise BadOption(
                f"encode={pictures.encode!r}, resize={pictures.resize!r} apply to pictures, but no field of the first "
                f"samples is one. Leave out these options. The fields are {', '.join(map(repr, samples[0]))}. Pictures "
                "are bytes of files that Pillow reads, Pillow images, and uint8 arrays of height, width and colours."
            )

    def _shard_is_full(self) -> bool:
        most, most_bytes = self.options.samples_per_shard, self.options.shard_bytes
        if self.total is None:
            is_full = most is not None and self._shard_count >= most
            return is_full or (most_bytes is not None and self._shard_bytes >= most_bytes)
        # The total is known, so divide what is left evenly: otherwise the last shard could be a tiny one. The result
        # depends only on the samples so far, so a resumed run divides them in the same way.
        left = max(0, self.total - self._progress.taken)
        if most is not None and self._shard_count >= _share(self._shard_count + left, most):
            return True
        left_bytes = left * self._progress.size / max(1, self._progress.taken)
        share = _share(self._shard_bytes + left_bytes, most_bytes or 1)
        # What is left is an estimate. If only a little seems to be left, it belongs to this shard.
        return most_bytes is not None and self._shard_bytes >= share and (left == 0 or left_bytes >= share / 2)

    def _finish_shard(self, state: object, done: int) -> None:
        """Complete a shard and record the position: the loader's `state` before a batch, and the items done of it."""
        check = self._check_shard if self._checks_shards else None
        self.output.finish_shard(Summary(self._shard_count, self._progress.form), check)
        self._shard_count = self._shard_bytes = 0
        self.work.write_note(
            {
                "progress": {**asdict(self._progress), "loader": state, "done": done},
                "schema": self.output.schema.as_json(),
                "shards": self.output.shard_count,
            },
            self.output.entries,
        )

    def _check_shard(self, path: Path) -> None:
        """Read a shard again before it is uploaded. The store compares its own copy with it."""
        self._check([path], self._shard_count, path.stat().st_size, quiet=True)

    def _check(self, files: list[Path], expected: int, size: int, *, quiet: bool = False) -> None:
        """Read everything again, as the printed line will, so that the source compares all checksums.

        Raises PackError: the samples differ from what was written, or cannot be read.
        """
        found = 0

        def report(done: int) -> None:
            nonlocal found
            found = done
            if not quiet:
                self.report(Stage("checking", done, expected))

        report(0)
        try:
            dataset = open_packed(self.format.name, files, self.output.schema, self._progress.form)
            try:
                count_samples(dataset, size, report)
            finally:
                dataset.close()
        except CorruptSource as exc:
            raise self._differs(f"reading failed after {found} samples: {words(exc)}") from exc
        except Exception as exc:  # does not mean damage: an option, a library, too many open files
            raise PackError(
                f"The output was written, but reading it back to check it failed after {found} samples with "
                f"{type(exc).__name__}: {words(exc)}. The output was not moved to its final name. Fix the cause and "
                "run again; if it seems to be a bug in feedline, report it."
            ) from exc
        if found != expected:
            raise self._differs(f"{found} of {expected} samples came back")

    def _differs(self, what: str) -> PackError:
        restart = f" with --restart (restart=True): the shards are in {self.work.name}"
        return PackError(
            f"The data read back is not what was written: {what}. The disk or memory of this machine may be faulty. "
            f"The output was not moved to its final name. Run again{restart if self.output.is_sharded else ''}."
        )


def _share(left: float, most: int) -> int:
    """Return the size of a shard if what is left is divided evenly into shards of at most `most`."""
    return math.ceil(left / max(1, math.ceil(left / most)))


# object: the value of a field.
def _may_be_picture(value: object) -> bool:
    if isinstance(value, bytes):
        return extension_of(value) != "bin"
    return hasattr(value, "dtype") and is_picture(value)
