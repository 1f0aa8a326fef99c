"""What one iteration delivered, and whether it is correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.drill.digests import Digest
from tests.drill.script import KEEP, SPLIT_STREAMS, Script
from tests.drill.troubles import FLAKY

ERROR: tuple[Digest, ...] = (b"an exception instead of a batch",)


@dataclass
class Take:
    """The batches of one iteration, in order of delivery."""

    entries: list[tuple[Digest, ...]] = field(default_factory=list)
    """For each batch, the checksums of its samples; `ERROR` for an exception."""
    indices: Counter[int] = field(default_factory=Counter)
    """How often each sample came."""
    corrupted: int = 0
    """Samples that are not in the dataset."""
    ended: bool = False
    """True if the iteration reached its end."""
    streams: int = 1
    """The number of streams, each with its own last batch."""

    def repeated(self, script: Script) -> list[int]:
        """Return the samples that came too often."""
        return sorted((self.indices - expected(script)).elements())

    def missing(self, script: Script) -> list[int]:
        """Return the samples that are missing."""
        return sorted((expected(script) - self.indices).elements())


def expected(script: Script) -> Counter[int]:
    """Return how often each sample should come: good ones once, and with "replace" the neighbours of bad ones again."""
    good = [index for index in range(script.size) if index not in script.bad]
    counts = Counter(good)
    if script.on_error == "replace":
        for index in script.bad:
            counts[next(other for other in (*good, good[0] + script.size) if other > index) % script.size] += 1
    return counts


def lost(take: Take, script: Script) -> int:
    """Return how many samples are missing from a complete iteration without an excuse.

    A batch with a sample that raises is not delivered, and `drop_last` drops incomplete batches.
    """
    size = script.batch_size or 1
    excused = take.entries.count(ERROR) * size
    if script.drop_last:
        excused += take.streams * (size - 1)
    return max(0, len(take.missing(script)) - excused)


def complaints(take: Take, script: Script) -> list[str]:
    """Return what is wrong with a complete iteration, apart from lost and repeated samples."""
    found = []
    raises = script.bad and script.on_error == "raise"
    if raises and ERROR not in take.entries and not script.drop_last:
        found.append(f"samples {sorted(script.bad)} are bad, and nothing was raised")
    # An iterator that is kept still prefetches: its attempts count too, so another one may see three fail in a row.
    shares_attempts = FLAKY in script.troubles.values() and any(act.ending == KEEP for act in script.acts)
    if not raises and ERROR in take.entries and not shares_attempts:
        found.append(f"something was raised, although on_error is {script.on_error!r}")
    return found + _wrong_sizes(take, script) + _wrong_count(take, script)


def _wrong_count(take: Take, script: Script) -> list[str]:
    if script.dataset in SPLIT_STREAMS or script.leaves_short:
        return []
    size = script.batch_size or 1
    count = script.size // size if script.drop_last else -(-script.size // size)
    return [] if len(take.entries) == count else [f"{len(take.entries)} batches came instead of {count}"]


def _wrong_sizes(take: Take, script: Script) -> list[str]:
    full = script.batch_size or 1
    sizes = [len(entry) for entry in take.entries if entry is not ERROR]
    short = sum(size < full for size in sizes)
    most = len(sizes) if script.leaves_short else 0 if script.drop_last else take.streams
    if short > most or any(size > full or size == 0 for size in sizes):
        return [f"batches of {full} samples had {sizes}"]
    if short and script.in_order and take.streams == 1 and not script.leaves_short and sizes[-1] == full:
        return [f"a batch that is not the last is not full: {sizes}"]
    return []


def difference(mine: Sequence[tuple[Digest, ...]], theirs: Sequence[tuple[Digest, ...]], *, ordered: bool) -> str:
    """Describe where two runs differ; empty if they do not."""
    if not ordered:
        mine, theirs = sorted(mine), sorted(theirs)
    if list(mine) == list(theirs):
        return ""
    if len(mine) != len(theirs):
        return f"{len(mine)} batches came, and {len(theirs)} without workers and troubles"
    first = next(place for place, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
    kind = "an exception" if ERROR in (mine[first], theirs[first]) else "samples"
    return f"batch {first} of {len(mine)} is another than without workers and troubles: {kind} differ"
