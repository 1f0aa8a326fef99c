"""One run of `pack`, from the first sample to the name of the output.

The loader makes items of samples (in workers), in order. They are written in blocks. When a shard is complete, a note
says where the loader is. A run that finds such a note goes on from there, and does what the interrupted one would have
done: where blocks and shards end depends on the samples alone, never on time or the number of workers. So both leave
the same bytes.

The first samples are held back until they are as many as a block: they decide what the fields hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedline.errors import BadOption, CorruptSource, PackError
from feedline.failures import words
from feedline.loader.loader import Loader
from feedline.packing.digest import START, chained, digest_of, digest_of_all, packed_samples, size_on_disk
from feedline.packing.line import loader_line
from feedline.packing.opening import Unused
from feedline.packing.options import Options
from feedline.packing.output import Output, WorkFolder
from feedline.packing.pictures import extension_of, is_picture
from feedline.packing.prepare import Item
from feedline.packing.schema import Agreement, Sample, Schema, Unfit
from feedline.packing.writers.contract import Format, Summary

_BLOCK_SAMPLES, _BLOCK_BYTES = 256, 1 << 24
"""How many are written together, and how many decide what the fields hold."""
_REASONS_KEPT = 20
_REASON_LENGTH = 400


@dataclass(frozen=True)
class Packed:
    """What `pack` did."""

    path: Path
    format: str
    count: int
    """Samples in the output."""
    digest: str
    """Of all samples, in order: equal for equal samples, whatever the format."""
    size: int
    """Bytes of the output."""
    skipped: int = 0
    """Samples that were left out: they could not be read, or did not fit."""
    reasons: tuple[str, ...] = ()
    """Which these were, and why: the first 20."""
    resumed: int = 0
    """Samples in shards that an earlier, interrupted run had written."""
    seconds: float = 0.0
    line: str = ""
    """The line of Python that reads it."""
    unused: Unused = field(default_factory=Unused)
    """What is in the source and was not packed, such as files that are no pictures in a folder of pictures."""


@dataclass(frozen=True)
class Stage:
    """How far `pack` is, for whoever shows it."""

    name: str
    """"packing" or "checking"."""
    done: int
    total: int | None
    """None if the dataset has no length."""


@dataclass
class Progress:
    """Where a run is. It is noted when a shard is complete."""

    loader: Any = None  # a state of the loader; "finished" behind the last sample
    done: int = 0
    """Items of the loader's next batch that were written as well."""
    taken: int = 0
    """Samples of the dataset that were dealt with."""
    count: int = 0
    digest: str = START
    form: str = "dict"
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)

    def leave_out(self, name: str, reason: str) -> None:
        """Count a sample that is left out, and note why, of the first ones."""
        self.taken += 1
        self.skipped += 1
        if len(self.reasons) < _REASONS_KEPT:
            text = " ".join(f"{name}: {reason}".split())
            self.reasons.append(text if len(text) <= _REASON_LENGTH else f"{text[: _REASON_LENGTH - 3]}...")


@dataclass
class Shard:
    """What is in the shard that is being written."""

    count: int = 0
    size: int = 0
    digest: str = START


@dataclass(frozen=True)
class Job:
    """What a run works with."""

    loader: Loader
    work: WorkFolder
    output: Output
    format: Format
    options: Options
    total: int | None
    """Samples of the dataset, if that is known."""
    called: Callable[[int], str]
    """Returns what people call a sample of the dataset, given its number."""

    @property
    def skips(self) -> bool:
        """True if samples that cannot be packed are left out."""
        return self.options.on_error == "skip"


class Run:
    """One call of `pack`."""

    def __init__(self, job: Job, report: Callable[[Stage], Any] | None) -> None:
        self._job = job
        self._output = job.output
        self._options = job.options
        self._report = report or (lambda _: None)
        self._progress = Progress()
        self._shard = Shard()
        self._first: list[Item] = []
        """Held back until it is decided what the fields hold."""
        # Any: whatever the format's writer makes of a sample.
        self._block: list[Any] = []
        self._block_bytes = 0
        self._has_schema = False

    def run(self, path: Path, given: str, *, verify: bool) -> Packed:
        """Write, check and deliver the output."""
        resumed = self._resume()
        if self._progress.loader != "finished":
            self._write()
        progress, output = self._progress, self._output
        output.finish(Summary(progress.count, progress.digest, progress.form, progress.skipped, self._options.facts))
        size = size_on_disk([output.path])
        if verify:
            self._check()
        place = Path(given) / f"shard-*{self._job.format.suffixes[0]}" if output.is_sharded else given
        line = loader_line(self._job.format.name, str(place), output.schema, progress.form)
        self._job.work.deliver(output.path)
        return Packed(
            path,
            self._job.format.name,
            progress.count,
            progress.digest,
            size,
            progress.skipped,
            tuple(progress.reasons),
            resumed,
            line=line,
        )

    def _resume(self) -> int:
        """Go on where an interrupted run was, and return how many samples it had written."""
        note = self._job.work.note
        if note is None or not self._output.resume(
            note["shards"], note["progress"]["count"], Schema.from_json(note["schema"])
        ):
            return 0
        self._progress, self._has_schema = Progress(**note["progress"]), True
        return self._progress.count

    def _write(self) -> None:
        for batch, before in self._batches():
            self._take(batch, before)
        self._decide()
        self._flush()
        if self._progress.count == 0:
            first = self._progress.reasons[0] if self._progress.reasons else "the dataset yielded none"
            raise PackError(
                f"No sample could be packed, so that there is nothing to write. The first: {first.rstrip('.')}."
            )
        if self._output.is_sharded:
            self._leave_shard("finished", 0)

    def _batches(self) -> Iterator[tuple[list[Item], Any]]:
        """Yield batches, and the state of the loader before each, where it is needed."""
        loader = self._job.loader
        if self._progress.loader is not None:
            loader.load_state_dict(self._progress.loader)
        self._report(Stage("packing", self._progress.taken, self._job.total))
        skip = self._progress.done
        before = loader.state_dict() if self._output.is_sharded else None
        for batch in loader:
            yield batch[skip:], before
            skip = 0
            self._report(Stage("packing", self._progress.taken + len(self._first), self._job.total))
            if self._output.is_sharded:
                before = loader.state_dict()

    def _take(self, batch: list[Item], before: Any) -> None:
        offset, self._progress.done = self._progress.done, 0
        for place, item in enumerate(batch, offset + 1):
            if item.sample is None:
                self._leave_out(item, item.failure)
            elif self._has_schema:
                self._add(item)
            else:
                self._first.append(item)
                if self._first_is_full():
                    self._decide()
            # Of a first block no shard is full before its end.
            if self._shard_is_full():
                self._flush()
                self._leave_shard(before, place)

    def _first_is_full(self) -> bool:
        options = self._options
        return len(self._first) >= min(_BLOCK_SAMPLES, options.samples_per_shard or _BLOCK_SAMPLES) or (
            sum(item.size for item in self._first) >= min(_BLOCK_BYTES, options.shard_bytes or _BLOCK_BYTES)
        )

    def _decide(self) -> None:
        """Decide what the fields hold, and begin the output with the samples that were held back."""
        first, self._first = self._first, []
        if not first:
            return
        samples = [item.sample or {} for item in first]
        agreement = Agreement(
            samples,
            lambda place: self._job.called(first[place].number),
            self._job.format.name,
            self._job.format.writer.cannot_hold,
            ragged=self._options.ragged,
            skips=self._job.skips,
        )
        schema = agreement.schema()
        self._check_pictures([sample for sample in samples if sample.keys() == set(schema.names)])
        self._output.schema, self._has_schema = schema, True
        for item in first:
            self._add(item)

    def _add(self, item: Item) -> None:
        """Put a sample into the block, unless it does not fit."""
        assert item.sample is not None
        schema = self._output.schema
        try:
            sample = schema.fitted(item.sample)
            encoded = self._job.format.writer.encoded(schema, sample)
        except Unfit as exc:
            if not self._job.skips:
                name = self._job.called(item.number)
                raise PackError(
                    f"{name[:1].upper()}{name[1:]} does not fit: {words(exc)}. {exc.advice} Or leave out "
                    "such samples: --on-error skip (on_error='skip')."
                ) from exc
            self._leave_out(item, str(exc))
            return
        # Made by the worker, unless the fields stand in another order here, or hold something else.
        is_same = tuple(item.sample) == schema.names and not schema.has_complex
        digest = item.digest if is_same else digest_of(sample)
        progress, shard = self._progress, self._shard
        progress.taken += 1
        progress.count += 1
        progress.form = item.form
        progress.digest = chained(progress.digest, [digest])
        shard.count += 1
        shard.size += item.size
        shard.digest = chained(shard.digest, [digest])
        self._block.append(encoded)
        self._block_bytes += item.size
        if len(self._block) >= _BLOCK_SAMPLES or self._block_bytes >= _BLOCK_BYTES:
            self._flush()

    def _leave_out(self, item: Item, reason: str) -> None:
        self._progress.leave_out(self._job.called(item.number), reason)

    def _flush(self) -> None:
        """Write the block."""
        block, self._block, self._block_bytes = self._block, [], 0
        if block:
            self._output.write(block)

    def _check_pictures(self, samples: Sequence[Sample]) -> None:
        pictures = self._options.pictures
        values = (value for sample in samples for value in sample.values())
        if pictures.does_something and not any(map(_may_be_picture, values)):
            raise BadOption(
                f"encode={pictures.encode!r}, resize={pictures.resize!r} are about pictures, but no field of the first "
                f"samples is one: they have {', '.join(map(repr, samples[0]))}. Pictures are the bytes of files that "
                "Pillow reads, its images, and uint8 arrays of height, width and colours. Leave the options out."
            )

    def _shard_is_full(self) -> bool:
        most, most_bytes = self._options.samples_per_shard, self._options.shard_bytes
        is_full = most is not None and self._shard.count >= most
        return is_full or (most_bytes is not None and self._shard.size >= most_bytes)

    def _leave_shard(self, state: Any, done: int) -> None:
        """Complete a shard, and note that the run is in front of the loader's next batch, of which `done` are done."""
        shard, self._shard = self._shard, Shard()
        self._output.finish_shard(Summary(shard.count, shard.digest, self._progress.form))
        self._job.work.write_note(
            {
                "progress": {**asdict(self._progress), "loader": state, "done": done},
                "schema": self._output.schema.as_json(),
                "shards": self._output.shard_count,
            }
        )

    def _check(self) -> None:
        """Read everything again, as the printed line will, and compare.

        Raises PackError: something else was read than was written, or it could not be read.
        """
        count, digest = self._progress.count, self._progress.digest
        output = self._output
        number = 0

        def report(done: int) -> None:
            nonlocal number
            number = done
            self._report(Stage("checking", done, count))

        report(0)
        samples = packed_samples(self._job.format.name, output.files, output.schema, self._progress.form)
        try:
            found, chain = digest_of_all(samples, report)
        except CorruptSource as exc:
            raise self._differs(f"reading a sample after {number} failed: {words(exc)}") from exc
        except Exception as exc:  # says nothing of the bytes: an option, a library, too many open files
            raise PackError(
                f"Everything was written, but could not be read back to check it: after {number} samples came "
                f"{type(exc).__name__}: {words(exc)}. The output did not get its name. If that can be mended, do so "
                "and run again; if the fault seems to be feedline's, report it."
            ) from exc
        if (found, chain) != (count, digest):
            what = f"{found} of {count} samples came back, with digest {chain}, not {digest}"
            raise self._differs(what)
        report(found)

    def _differs(self, what: str) -> PackError:
        restart = f" with --restart (restart=True): the shards are in {self._job.work.path}"
        return PackError(
            f"What was read back is not what was written: {what}. The disk or memory of this machine may be faulty. "
            f"The output did not get its name. Run again{restart if self._output.is_sharded else ''}."
        )


# Any: the value of a field.
def _may_be_picture(value: Any) -> bool:
    if isinstance(value, bytes):
        return extension_of(value) != "bin"
    return hasattr(value, "dtype") and is_picture(value)
