"""Samples as the content of a run: the first ones decide what the fields hold, then blocks go to a format's writer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from feedline.datasets.framework.checksums import KIND, sealed
from feedline.errors import BadOption, PackError
from feedline.system.failures import words
from feedline.tools.write.opening import count_samples, open_packed, size_on_disk
from feedline.tools.write.options import Options
from feedline.tools.write.pictures import extension_of, is_picture
from feedline.tools.write.place import remove
from feedline.tools.write.prepare import Item
from feedline.tools.write.run import Content
from feedline.tools.write.schema import Column, Sample, Schema, Unfit, describe, listed
from feedline.tools.write.writers.contract import FORMATS, VERSION, Format, Writer
from feedline.types import JsonObject

_BLOCK_SAMPLES, _BLOCK_BYTES = 256, 1 << 24
"""Limits of a block: of samples that are written together, and of the first samples, which decide what the fields hold.
"""
_REASONS_KEPT, _REASON_LENGTH = 20, 400


@dataclass
class Progress:
    """What was packed so far."""

    taken: int = 0
    """Samples processed: packed or skipped."""
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


class Samples(Content):
    """Samples on their way into one file, or into shards.

    Args:
        folder: where to write the file.
        total: number of samples in the dataset, if known.
        called: returns the name of a sample for messages, given its number.
        place: the address of an output in a store; it becomes part of the manifest.
    """

    stage, shard = "packing", "shard"

    def __init__(
        self,
        folder: Path,
        format_: Format,
        options: Options,
        total: int | None,
        called: Callable[[int], str],
        place: str = "",
    ) -> None:
        super().__init__(folder / f"output{format_.suffixes[0]}")
        self.schema = Schema(())
        self.progress = Progress()
        self._format = format_
        self._options = options
        self._total = total
        self._called = called
        self._place = place
        self._has_schema = False
        self._first: list[Item] = []
        """Items held back until the schema is decided."""
        # object: a sample as encoded by the format's writer.
        self._block: list[object] = []
        self._block_bytes = 0
        self._writer: Writer | None = None
        self._shard_count = self._shard_bytes = 0

    @property
    def count(self) -> int:
        return self.progress.count

    @property
    def taken(self) -> int:
        return self.progress.taken + len(self._first)

    def take(self, item: Item) -> None:
        if item.sample is None:
            self.progress.leave_out(self._called(item.number), item.failure)
        elif self._has_schema:
            self._add(item, item.sample)
        else:
            self._first.append(item)
            if self._first_is_full():
                self._decide()

    def _first_is_full(self) -> bool:
        count, size = len(self._first), sum(item.size for item in self._first)
        most, most_bytes = self._options.samples_per_shard, self._options.shard_bytes
        if self._total is not None:
            most = most and _share(self._total, most)
            most_bytes = most_bytes and _share(self._total * size / count, most_bytes)
        return count >= min(_BLOCK_SAMPLES, most or count + 1) or size >= min(_BLOCK_BYTES, most_bytes or size + 1)

    def _decide(self) -> None:
        """Decide what the fields hold, and add the samples that were held back."""
        first, self._first = self._first, []
        if not first:
            return
        samples = [item.sample or {} for item in first]
        agreement = Agreement(
            self._format, lambda place: self._called(first[place].number), self._options.ragged, self._options.skips
        )
        self.schema, self._has_schema = agreement.schema(samples), True
        self._check_pictures([sample for sample in samples if sample.keys() == set(self.schema.names)])
        for item, sample in zip(first, samples, strict=True):
            self._add(item, sample)

    def _check_pictures(self, samples: Sequence[Sample]) -> None:
        pictures = self._options.pictures
        values = (value for sample in samples for value in sample.values())
        if pictures.does_something and not any(map(_may_be_picture, values)):
            raise BadOption(
                f"encode={pictures.encode!r}, resize={pictures.resize!r} apply to pictures, but no field of the first "
                f"samples is one: {', '.join(map(repr, samples[0]))}. Leave out these options."
            )

    def _add(self, item: Item, sample: Sample) -> None:
        """Add a sample to the block, or skip it if it does not fit."""
        try:
            encoded = self._format.writer.encoded(self.schema, self.schema.fitted(sample))
        except Unfit as exc:
            name = self._called(item.number)
            if self._options.skips:
                self.progress.leave_out(name, str(exc))
                return
            raise PackError(
                f"{name[:1].upper()}{name[1:]} does not fit: {words(exc)}. {exc.advice} Or leave out "
                "such samples: --on-error skip (on_error='skip')."
            ) from exc
        self.progress.taken += 1
        self.progress.count += 1
        self.progress.form = item.form
        self.progress.size += item.size
        self._shard_count += 1
        self._shard_bytes += item.size
        self._block.append(encoded)
        self._block_bytes += item.size
        if len(self._block) >= _BLOCK_SAMPLES or self._block_bytes >= _BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write the block."""
        block, self._block, self._block_bytes = self._block, [], 0
        if not block:
            return
        if self._writer is None:
            remove(self.path)  # an interrupted run may have started it
            first = self.progress.count - self._shard_count
            self._writer = self._format.writer(self.path, self.schema, self._options.compression, first)
        self._writer.write(block)

    def is_full(self) -> bool:
        if self._first:  # `_first_is_full` respects the limits of a shard, too
            return False
        most, most_bytes = self._options.samples_per_shard, self._options.shard_bytes
        if self._total is None:
            is_full = most is not None and self._shard_count >= most
            return is_full or (most_bytes is not None and self._shard_bytes >= most_bytes)
        # The total is known, so divide what is left evenly: otherwise the last shard could be a tiny one. The result
        # depends only on the samples so far, so a resumed run divides them in the same way.
        left = max(0, self._total - self.progress.taken)
        if most is not None and self._shard_count >= _share(self._shard_count + left, most):
            return True
        left_bytes = left * self.progress.size / max(1, self.progress.taken)
        share = _share(self._shard_bytes + left_bytes, most_bytes or 1)
        # What is left is an estimate. If only a little seems to be left, it belongs to this shard.
        return most_bytes is not None and self._shard_bytes >= share and (left == 0 or left_bytes >= share / 2)

    def finish(self) -> int:
        self._decide()
        self._flush()
        writer, self._writer = self._writer, None
        if writer is None:
            return 0
        count, self._shard_count, self._shard_bytes = self._shard_count, 0, 0
        try:
            writer.finish(_summary(count, self.progress.form) if self._options.is_sharded else self._summary())
        finally:
            writer.close()
        self.schema = writer.schema  # the writer may have extended it
        return count

    def _summary(self) -> JsonObject:
        progress = self.progress
        return _summary(progress.count, progress.form, progress.skipped, self._options.metadata)

    def read_back(self, path: Path, report: Callable[[int], object]) -> int:
        dataset = open_packed(self._format.name, path, self.schema, self.progress.form)
        try:
            return count_samples(dataset, size_on_disk([path]), report)
        finally:
            dataset.close()

    def state(self) -> JsonObject:
        return {"progress": asdict(self.progress), "schema": self.schema.as_json()}

    def restore(self, state: JsonObject) -> None:
        self.progress, self.schema = Progress(**state["progress"]), Schema.from_json(state["schema"])
        self._has_schema = True

    def nothing(self) -> str:
        first = self.progress.reasons[0] if self.progress.reasons else "the dataset yielded no samples"
        return f"No sample could be packed, so there is nothing to write. The first failure: {first.rstrip('.')}."

    def index_of(self, path: Path, crc32: int) -> bytes:
        return self._format.writer.index_of(path, crc32)

    # object: JSON-compatible values.
    def manifest(self, shards: list[dict[str, object]]) -> JsonObject:
        facts = {"format": self._format.name, **self._format.writer.facts(self.schema)}
        place = {"place": self._place} if self._place else {}
        fields = {"fields": self.schema.as_json()}
        return sealed({**self._summary(), **fields, **facts, **place, "shards": shards})

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@dataclass(frozen=True)
class Agreement:
    """Decides from the first samples what the fields hold."""

    format: Format
    called: Callable[[int], str]
    """Returns the name of a sample for messages, given its position among the first."""
    ragged: tuple[str, ...] = ()
    """Array fields whose shapes differ, even if the first samples have equal shapes."""
    skips: bool = False
    """True if samples that do not fit are skipped, so that the most frequent kind of value decides."""

    def schema(self, samples: Sequence[Sample]) -> Schema:
        """Return the schema of the samples, ignoring samples with other fields.

        Raises PackError: the format cannot hold a field, or a field in `ragged` does not exist.
        """
        sets = Counter(frozenset(sample) for sample in samples)
        wanted = sets.most_common(1)[0][0] if self.skips else samples[0].keys()
        places = [place for place, sample in enumerate(samples) if sample.keys() == wanted]
        names = list(samples[places[0]])
        unknown = sorted({*self.ragged} - {*names})
        if unknown:
            raise PackError(f"ragged={unknown[0]!r} is not a field: samples have {listed(names)}.")
        return Schema(tuple(self._column(name, {place: samples[place][name] for place in places}) for name in names))

    def _column(self, name: str, values: dict[int, object]) -> Column:
        column = self._of(name, list(values.values()))
        lacking = self.format.writer.cannot_hold(column)
        if not lacking:
            return column
        groups: dict[object, list[int]] = {}  # by the properties in which values are alike
        for place, value in values.items():
            kind = self._of(name, [value])
            alike = (kind.kind, kind.kind != "number" and kind.dtype, kind.shape, value is None)
            groups.setdefault(alike, []).append(place)
        by_size = sorted(groups.values(), key=len, reverse=True)
        kinds = [[value for value in values.values() if value is not None]]
        kinds += [[values[place] for place in group] for group in by_size]
        held = [
            one for one in (self._of(name, kind) for kind in kinds if kind) if not self.format.writer.cannot_hold(one)
        ]
        if held and self.skips:
            return held[0]
        problem = f"{self.format.name} cannot hold {lacking}, as in the field {name!r}"
        if len(groups) > 1:
            (first, *_), (other, *_) = list(groups.values())[:2]
            problem += f": it is {describe(values[first])} in {self.called(first)}, and {describe(values[other])} in "
            problem += self.called(other)
        others = " or ".join(name for name, one in FORMATS.items() if one.can_hold(column))
        advice = f" Use {others}, or change it in the dataset."
        if any(isinstance(value, np.ndarray) and is_picture(value) for value in values.values()):
            advice += " Pictures can be made equal (--resize 256x256) or encoded (--encode png)."
        elif column.extension not in ("", "bin"):
            advice += " Pictures can be decoded (--encode raw)."
        skip = " Or leave out the samples that differ from most: --on-error skip (on_error='skip')." if held else ""
        raise PackError(f"{problem}.{advice}{skip}")

    def _of(self, name: str, values: Sequence[object]) -> Column:
        return Column.of(name, values, ragged=name in self.ragged)


def _summary(count: int, form: str, skipped: int = 0, metadata: JsonObject | None = None) -> JsonObject:
    """Return what is stored with the samples, besides the fields."""
    facts = {"count": count, "form": form, "skipped": skipped, "metadata": metadata or {}}
    return {"feedline": VERSION, **facts, "checksum": KIND}


def _share(left: float, most: int) -> int:
    """Return the size of a shard if what is left is divided evenly into shards of at most `most`."""
    return max(1, math.ceil(left / max(1, math.ceil(left / most))))  # values may have no bytes at all


# object: the value of a field.
def _may_be_picture(value: object) -> bool:
    if isinstance(value, bytes):
        return extension_of(value) != "bin"
    return hasattr(value, "dtype") and is_picture(value)
