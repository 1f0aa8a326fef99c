"""One run of `pack`, from the first sample to the name of the output.

The loader makes items of samples (in workers), in order. They are written in blocks; every few thousand samples there
is a checkpoint: everything is on the disk, with a note of where the loader is. A run that finds such a note goes on
from there, and does what the interrupted one would have done: where checkpoints, blocks and shards end depends on the
samples alone, never on time or the number of workers. So both leave the same bytes.

The first samples are held back until they are as many as a block: they decide what the fields hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from feedline.errors import BadOption, PackError
from feedline.failures import words
from feedline.loader.loader import Loader
from feedline.packing.agreement import Agreement
from feedline.packing.digest import START, chained, digest_of
from feedline.packing.formats import Format
from feedline.packing.line import loader_line
from feedline.packing.options import Options
from feedline.packing.output import Output, Shards
from feedline.packing.pictures import extension_of, is_picture
from feedline.packing.prepare import Item
from feedline.packing.progress import Packed, Progress, Stage
from feedline.packing.reading import read_as_printed
from feedline.packing.schema import Sample, Unfit
from feedline.packing.work import WorkFolder
from feedline.packing.writers.contract import Summary

_BLOCK_SAMPLES, _BLOCK_BYTES = 256, 1 << 24
"""How many are written together, and how many decide what the fields hold."""
_CHECKPOINT_BYTES = 1 << 28


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
        self._first: list[Item] = []
        """Held back until it is decided what the fields hold."""
        self._first_bytes = 0
        # Any: whatever the format's writer makes of a sample.
        self._block: list[Any] = []
        self._block_bytes = 0
        self._since = [0, 0]
        """Samples and bytes since the last checkpoint."""
        self._has_begun = False
        self.has_stored = not job.work.is_empty
        """True if a later run has something to go on with."""

    def run(self, path: Path, given: str, *, verify: bool) -> Packed:
        """Write, check and deliver the output.

        Args:
            path: of the output.
            given: the same, as the user wrote it.
            verify: True to read everything again.
        """
        done = self._job.work.done
        format_name = self._job.format.name
        if done is None:
            resumed = self._resume()
            done = {**self._write(), "resumed": resumed}
            done["size"] = size_on_disk(self._output.path)
            if verify:
                self._check(done)
            place = str(self._place(Path(given)))
            done["line"] = loader_line(format_name, place, self._output.schema, done.pop("form"))
            self._job.work.note_done(done)
        self._job.work.deliver(self._output.path)
        return Packed(path, format_name, **{**done, "reasons": tuple(done["reasons"])})

    def _place(self, path: Path) -> Path:
        """Return what a source is given to read the output at a path."""
        return path / f"shard-*{self._job.format.suffixes[0]}" if isinstance(self._output, Shards) else path

    def _resume(self) -> int:
        note = self._output.resume()
        if note is None:
            self.has_stored = False  # whatever is there, it is of a run that was killed before its first checkpoint
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
            self._decide()
            self._flush()
            if self._progress.count == 0:
                self.has_stored = False
                first = self._progress.reasons[0] if self._progress.reasons else "the dataset yielded none"
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
        loader = self._job.loader
        if self._progress.loader is not None:
            loader.load_state_dict(self._progress.loader)
        self._report(Stage("packing", self._progress.taken, self._job.total))
        skip = self._progress.done
        before = loader.state_dict() if self._options.is_sharded else None
        for batch in loader:
            yield batch[skip:], before
            skip = 0
            self._report(Stage("packing", self._progress.taken + len(self._first), self._job.total))
            if self._options.is_sharded:
                before = loader.state_dict()

    def _take(self, batch: list[Item], before: Any) -> None:
        offset = self._progress.done
        self._progress.done = 0
        for place, item in enumerate(batch):
            self._since[0] += 1
            self._since[1] += item.size
            if item.sample is None:
                self._leave_out(item, item.failure)
            elif self._has_begun:
                self._add(item)
            else:
                self._first.append(item)
                self._first_bytes += item.size
                if self._first_is_full():
                    self._decide()
            # Of a first block no shard is full before its end.
            if self._shard_is_full():
                self._flush()
                self._checkpoint(before, offset + place + 1)
                self._leave_shard()
        if self._since[0] >= self._options.checkpoint_every or self._since[1] >= _CHECKPOINT_BYTES:
            self._decide()
            self._flush()
            self._checkpoint(self._job.loader.state_dict(), 0)

    def _first_is_full(self) -> bool:
        options = self._options
        return len(self._first) >= min(_BLOCK_SAMPLES, options.samples_per_shard or _BLOCK_SAMPLES) or (
            self._first_bytes >= min(_BLOCK_BYTES, options.shard_bytes or _BLOCK_BYTES)
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
            self._job.format.writer,
            ragged=self._options.ragged,
            skips=self._job.skips,
        )
        schema = agreement.schema()
        self._check_pictures([sample for sample in samples if sample.keys() == set(schema.names)])
        self._output.begin(schema)
        self._has_begun = True
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
                raise PackError(
                    f"{_capital(self._job.called(item.number))} does not fit: {words(exc)}. {exc.advice} Or leave out "
                    "such samples: --on-error skip (on_error='skip')."
                ) from exc
            self._leave_out(item, str(exc))
            return
        # Made by the worker, unless the fields stand in another order here, or hold something else.
        is_same = tuple(item.sample) == schema.names and not schema.has_complex
        digest = item.digest if is_same else digest_of(sample)
        self._progress.add(item, digest)
        self._block.append(encoded)
        self._block_bytes += item.size
        if len(self._block) >= _BLOCK_SAMPLES or self._block_bytes >= _BLOCK_BYTES:
            self._flush()

    def _leave_out(self, item: Item, reason: str) -> None:
        self._progress.leave_out(lambda: self._job.called(item.number), reason)

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

    def _check(self, done: Mapping[str, Any]) -> None:
        """Read everything again, as the printed line will, and compare.

        Raises:
            PackError: something else was read than was written.
        """
        chain, number = START, 0
        count, digest = done["count"], done["digest"]
        self._report(Stage("checking", 0, count))
        place = self._place(self._output.path)
        format_name = self._job.format.name
        if format_name == "tar" and "{" in str(place):  # which a source takes for a pattern of its own
            samples = self._output.read()
        else:
            samples = read_as_printed(format_name, place, self._output.schema, done["form"], done["size"])
        try:
            for number, sample in enumerate(samples, 1):
                chain = chained(chain, [digest_of(sample)])
                if number % 256 == 0:
                    self._report(Stage("checking", number, count))
        except Exception as exc:  # whatever a library makes of damaged bytes
            what = f"reading sample {number} failed: {type(exc).__name__}: {exc}"
            raise _differs(self._job.work.path, what) from exc
        if (number, chain) != (count, digest):
            what = f"{number} of {count} samples came back, with digest {chain}, not {digest}"
            raise _differs(self._job.work.path, what)
        self._report(Stage("checking", number, count))

    def close(self) -> None:
        """Let go of the output."""
        self._output.close()


def _differs(work: Path, what: str) -> PackError:
    return PackError(
        f"What was read back is not what was written: {what}. The disk or memory of this machine may be faulty. The "
        f"output did not get its name; it is in {work}. Run again with --restart (restart=True)."
    )


# Any: the value of a field.
def _may_be_picture(value: Any) -> bool:
    if isinstance(value, bytes):
        return extension_of(value) != "bin"
    return hasattr(value, "dtype") and is_picture(value)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def size_on_disk(path: Path) -> int:
    """Return how many bytes a file has, or all files in a folder."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)
