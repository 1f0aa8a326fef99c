"""The command line: damages files of one format, case by case, with limits on memory and time.

Run by `process.py`, or by hand to repeat a failure: `python -m tests.fuzz tar --seed 7 --case 61`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.case import Fuzz
from tests.fuzz.targets import TARGETS

_MEMORY = 1 << 30
"""Bytes that the cases of a format may allocate, beyond what the undamaged file needs."""
_CASE_CPU_S = 20
"""Seconds of CPU time that a case may take; wall-clock time depends on how busy the machine is."""
_CASE_S = 600
"""Seconds after which a case counts as hanging without using the CPU."""


def main() -> int:
    """Run cases; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("formats", nargs="+", choices=TARGETS, metavar="format", help=", ".join(TARGETS))
    parser.add_argument("--seed", type=int, default=0, help="decides about the damage")
    parser.add_argument("--cases", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--case", type=int, help="the only one")
    parser.add_argument("--json", action="store_true", help="print each case as it begins, and failures, as JSON lines")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # for example that a damaged cache is dropped, which is expected
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    failed = False
    for format_ in given.formats:
        first, given.first = given.first, 0  # applies to the first format only
        numbers = range(first, given.cases) if given.case is None else [given.case]
        with tempfile.TemporaryDirectory() as folder:
            failed |= _run(Fuzz(TARGETS[format_], given.seed, Path(folder)), numbers, as_json=given.json)
    return int(failed)


def _run(fuzz: Fuzz, numbers: Iterable[int], *, as_json: bool) -> bool:
    """Run the cases of a format; return whether one failed."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _MEMORY, most))
    failed = False
    for number in numbers:
        if as_json:
            _print_json({"begins": number, "format": fuzz.target.name})
        signal.setitimer(signal.ITIMER_PROF, _CASE_CPU_S)  # both kill the process, whatever it is doing
        signal.alarm(_CASE_S)
        failure = fuzz.run(number)
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if failure is None:
            continue
        failed = True
        if as_json:
            _print_json(dataclasses.asdict(failure))
        else:
            sys.stdout.write(f"{failure.format} {number} ({failure.damage}) {failure.kind}: {failure.text}\n")
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return failed


def _print_json(what: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
