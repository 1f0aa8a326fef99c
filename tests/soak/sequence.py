"""The expected batches, and whether they came: exactly once per epoch, in the seeded order, despite all kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

from tests.drill.troubles import Troubles
from tests.soak.data import Record, bad_samples, build_dataset, build_loader, configuration, record_of, troubles_of
from tests.soak.settings import Settings

_MOST_PROBLEMS = 20


class Expected:
    """The batches of an undisturbed loader, by number. Those before the last checkpoint are dropped."""

    def __init__(self, batches: Iterator[Record]) -> None:
        self._batches = batches
        self._known: dict[int, Record] = {}
        self._next = 0

    def __getitem__(self, step: int) -> Record:
        while self._next <= step:
            self._known[self._next] = next(self._batches)
            self._next += 1
        return self._known[step]

    def forget(self, before: int) -> None:
        """Drop batches that no program can deliver again."""
        for step in [step for step in self._known if step < before]:
            del self._known[step]


def undisturbed(settings: Settings, name: str, folder: Path) -> Generator[Record]:
    """Yield the batches of a configuration without faults, epoch after epoch.

    Raises:
        AssertionError: an epoch does not have every good sample exactly once.
    """
    kind = configuration(name)
    troubles: Troubles = troubles_of(settings, name, {}, folder, 0).tamed()
    loader = build_loader(kind, settings, build_dataset(kind, settings, troubles), plain=True)
    once = Counter(set(range(settings.size)) - bad_samples(settings, name))
    while True:
        seen: Counter[int] = Counter()
        for batch in loader:
            record = record_of(batch)
            seen.update(record.indices)
            yield record
        assert seen == once, f"an epoch of {name} lost {once - seen} and repeated {seen - once}"


class Checker:
    """Compares the batches that a program delivers, life after life, with the expected ones."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._next = 0
        """The step that must come next."""
        self._saved = 0
        self.delivered = 0
        """Steps delivered, each counted once."""
        self.repeated = 0
        """Steps delivered again, because the program was killed after its last checkpoint."""
        self.samples = 0
        self.problems: list[str] = []

    def begin(self, step: int) -> None:
        """Note that a life starts with this step."""
        if not self._saved <= step <= self.delivered:
            self._complain(f"resumed at step {step}, although {self._saved} were saved and {self.delivered} delivered")
        self._next = step

    def take(self, step: int, record: Record) -> None:
        """Check a delivered batch."""
        if step != self._next:
            self._complain(f"step {step} came where step {self._next} was due")
        expected = self._expected[step]
        if record.indices != expected.indices:
            self._complain(f"step {step} has samples {record.indices} instead of {expected.indices}")
        elif record != expected:
            self._complain(f"step {step} has the right samples with other bytes")
        self._next = step + 1
        if step >= self.delivered:
            self.delivered = step + 1
            self.samples += len(record.indices)
        else:
            self.repeated += 1

    def save(self, step: int) -> None:
        """Note that a checkpoint after this many steps was written."""
        self._saved = step
        self._expected.forget(step)

    def _complain(self, text: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(text)
