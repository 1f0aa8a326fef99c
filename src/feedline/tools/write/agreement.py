"""What the fields of a dataset hold, as far as its first samples tell, and as a format can hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from feedline.errors import PackError
from feedline.tools.write.pictures import is_picture
from feedline.tools.write.schema import Column, Sample, Schema, describe, listed
from feedline.tools.write.writers.contract import FORMATS, Format


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
