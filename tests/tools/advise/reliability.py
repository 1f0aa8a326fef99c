"""How often the doctor is right on a busy machine: `python -m tests.tools.advise.reliability --runs 100 --busy 2`.

Each dataset of `fixes.CASES` is diagnosed repeatedly beside busy loops. A healthy one must get no
finding, a slow one its own and no other. A lane is a process that is pinned to its own cores together with its busy
loops, so that several lanes on one machine hardly disturb each other: `--lanes 8` on 16 cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from feedline.errors import FeedlineError
from feedline.tools.advise.diagnosis import diagnose
from feedline.tools.advise.finding import NOT_SURE
from feedline.tools.measure.probe import probe
from tests.tools.advise import slow_batches, slow_datasets, slow_files  # with torch, before forks
from tests.tools.advise.fixes import CASES, Case

__all__ = ["slow_batches", "slow_datasets", "slow_files"]  # they fill CASES
CORES_PER_LANE = 2
SECONDS = 10.0
"""The time that `feedline doctor` takes at most."""

PROBED = [case for case in CASES.values() if case.is_probed]


@dataclass
class Row:
    """The results of all runs of one dataset."""

    name: str
    own: str | None
    runs: int = 0
    found: int = 0
    """Runs with the dataset's own finding."""
    false: int = 0
    """Runs with a finding that is not its own."""
    not_sure: int = 0
    """Runs in which the doctor asked for a quiet machine."""

    def count(self, names: set[str], also: tuple[str, ...]) -> None:
        """Add a run that had these findings."""
        self.runs += 1
        self.found += self.own in names
        self.not_sure += NOT_SURE in names
        self.false += bool(names - {self.own, NOT_SURE, *also})

    @property
    def is_good(self) -> bool:
        """True if this is right as often as promised: in 100 runs, at most 1 false finding and at least 95 own ones."""
        return self.false <= max(1, self.runs // 100) and (self.own is None or self.found >= 0.95 * self.runs)


def run_once(case: Case) -> tuple[set[str], str]:
    """Diagnose a dataset once, in its own folder; return the names of all findings, and the text of unexpected ones."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # some of them write files here
        try:
            found = diagnose(probe(case.source, seconds=SECONDS))
        except FeedlineError as exc:
            return {type(exc).__name__}, str(exc)
        finally:
            os.chdir(before)
    names = {finding.name for finding in found}
    odd = [str(finding) for finding in found if finding.name not in (case.own, *case.also)]
    return names, "\n".join(odd)


def _spin() -> None:
    while True:
        pass


# Any: a queue of multiprocessing.
def _begin_lane(cores: Any, busy: int) -> None:
    """Pin this process to the next cores of a queue, and start busy loops there; they end with it."""
    os.sched_setaffinity(0, cores.get())
    for _ in range(busy):
        multiprocessing.get_context("fork").Process(target=_spin, daemon=True).start()


def _run_case(name: str) -> tuple[set[str], str]:
    return run_once(CASES[name])


def drill(cases: list[Case], runs: int, busy: int, lanes: int) -> list[Row]:
    """Run each of these cases `runs` times, in turns."""
    context = multiprocessing.get_context("fork")
    cores, pinned = sorted(os.sched_getaffinity(0)), context.SimpleQueue()
    for lane in range(lanes):
        own = cores[CORES_PER_LANE * lane : CORES_PER_LANE * (lane + 1)]
        pinned.put(own if lanes * CORES_PER_LANE <= len(cores) else cores)
    rows = {case.name: Row(case.name, case.own) for case in cases}
    with ProcessPoolExecutor(lanes, context, _begin_lane, (pinned, busy)) as pool:
        tasks = cases * runs
        results = pool.map(_run_case, [case.name for case in tasks])
        for case, (names, odd) in zip(tasks, results, strict=True):
            row = rows[case.name]
            row.count(names, case.also)
            if odd or (row.own is not None and row.own not in names):
                sys.stderr.write(f"{row.name}, run {row.runs}: {odd or 'nothing was found'}\n\n")
    return list(rows.values())


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the rows as lines."""
    yield f"{'dataset':20} {'own finding':18} {'runs':>5} {'own':>5} {'false':>5} {'not sure':>8}"
    for row in rows:
        found = "" if row.own is None else row.found
        mark = "" if row.is_good else "  <-- too often wrong"
        own = row.own or "(healthy)"
        yield f"{row.name:20} {own:18} {row.runs:5} {found:>5} {row.false:5} {row.not_sure:8}{mark}"
    totals = Counter({"healthy": 0, "false": 0, "slow": 0, "own": 0})
    for row in rows:
        totals.update({"healthy": row.runs, "false": row.false} if row.own is None else {"slow": row.runs})
        totals["own"] += row.found
    yield (
        f"{totals['false']} false findings in {totals['healthy']} runs of healthy datasets; {totals['own']} of "
        f"{totals['slow']} runs of slow ones had their own finding"
    )


def main() -> int:
    """Parse the arguments, run, print a table; return 0 if every row is right as often as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="of each dataset")
    parser.add_argument("--busy", type=int, default=2, help="busy loops in each lane")
    parser.add_argument("--lanes", type=int, default=1, help=f"each on {CORES_PER_LANE} cores of its own")
    parser.add_argument("--only", nargs="*", help="names of datasets")
    arguments = parser.parse_args()
    chosen = [case for case in PROBED if not arguments.only or case.name in arguments.only]
    skipped = [case for case in chosen if case.needs is not None and find_spec(case.needs) is None]
    cases = [case for case in chosen if case not in skipped]
    rows = drill(cases, arguments.runs, arguments.busy, arguments.lanes)
    lines = [*table(rows)]
    if skipped:
        lines.append(f"Skipped, as a package is missing: {', '.join(case.name for case in skipped)}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
