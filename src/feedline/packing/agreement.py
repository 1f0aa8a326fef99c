"""What the fields hold, as the first samples agree on it and the format can hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from feedline.errors import PackError
from feedline.packing.schema import Column, Sample, Schema, check_ragged, said
from feedline.packing.writers.contract import Writer


class Agreement:
    """Decides what the fields hold.

    Args:
        samples: the first of the dataset, at least one.
        called: returns what people call the sample at a place among these.
        kind: the writer, which says what its format can hold.
        ragged: names of array fields whose shapes differ, even if those of these samples do not.
        skips: True if samples that do not fit are left out: what most of them have in common decides then. Else all
            of them have to be alike.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        called: Callable[[int], str],
        kind: type[Writer],
        *,
        ragged: Iterable[str] = (),
        skips: bool = False,
    ) -> None:
        self._samples = samples
        self._called = called
        self._kind = kind
        self._ragged = tuple(ragged)
        self._skips = skips

    def schema(self) -> Schema:
        """Return what the fields hold. Samples with other fields are not looked at.

        Raises:
            PackError: the format cannot hold it, or a field that is said to be ragged is not there.
        """
        sets = Counter(frozenset(sample) for sample in self._samples)
        wanted = sets.most_common(1)[0][0] if self._skips else self._samples[0].keys()
        places = [place for place, sample in enumerate(self._samples) if sample.keys() == wanted]
        names = list(self._samples[places[0]])
        varying = check_ragged(self._ragged, names)
        return Schema(tuple(self._column(name, places, ragged=name in varying) for name in names))

    def _column(self, name: str, places: list[int], *, ragged: bool) -> Column:
        column = Column.of(name, [self._samples[place][name] for place in places], ragged=ragged)
        reason = self._kind.cannot_hold(column)
        if not reason:
            return column
        present = [self._samples[place][name] for place in places if self._samples[place][name] is not None]
        if self._skips and column.nullable and present:
            without = Column.of(name, present, ragged=ragged)
            if not self._kind.cannot_hold(without):
                return without
        groups: dict[Any, list[int]] = {}  # Any: what values are alike in
        for place in places:
            groups.setdefault(_likeness(self._samples[place][name], ragged=ragged), []).append(place)
        columns = [
            (len(group), Column.of(name, [self._samples[place][name] for place in group], ragged=ragged))
            for group in groups.values()
        ]
        held = [(size, one) for size, one in columns if not self._kind.cannot_hold(one)]
        if held and self._skips:
            return max(held, key=lambda pair: pair[0])[1]
        raise PackError(self._refusal(column, reason, list(groups.values()), has_remedy=bool(held)))

    def _refusal(self, column: Column, reason: str, groups: list[list[int]], *, has_remedy: bool) -> str:
        start = f"{self._kind.format} cannot hold the field {column.name!r} ({column.described})"
        if len(groups) == 1:
            return f"{start}: {reason}"
        first, other = groups[0][0], groups[1][0]
        values = [said(self._samples[place][column.name]) for place in (first, other)]
        skip = " Or leave out the samples that differ from most: --on-error skip (on_error='skip')."
        return (
            f"{start}: it is {values[0]} in {self._called(first)}, and {values[1]} in {self._called(other)}, but "
            f"{reason}{skip if has_remedy else ''}"
        )


# Any: the value of a field, and what it has in common with others.
def _likeness(value: Any, *, ragged: bool) -> Any:
    column = Column.of("", [value], ragged=ragged)
    return (column.kind, column.dtype, column.shape) if column.kind in (
        "array",
        "ragged",
    ) else column.kind, value is None
