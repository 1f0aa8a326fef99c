"""`feedline doctor`: examine this machine, a dataset, a recording or saved faults, and recommend changes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from feedline.datasets.derived.objects import check_name
from feedline.errors import BadOption
from feedline.insight.recording import FORMAT, Recording
from feedline.system.shown import printable
from feedline.tools.advise import running
from feedline.tools.advise.diagnosis import as_dict, diagnose, summary
from feedline.tools.advise.finding import NOTHING, Finding, sentence
from feedline.tools.advise.machine import find
from feedline.tools.cli import fault_file, options
from feedline.tools.measure import machine, rows
from feedline.tools.measure.measured import STAGES
from feedline.tools.screen import Screen, Styled, Table

SERIOUS = 3
"""Exit code for a serious finding; see `main.FAILED` for the codes of datasets that cannot be tried."""


@dataclass(frozen=True)
class _Report:
    """The findings about one subject, with its details."""

    title: str
    # object: JSON-compatible values.
    details: dict[str, object]
    findings: list[Finding]
    before: list[str] = field(default_factory=list)
    """Lines above the table; `after` has the lines below it."""
    after: list[str] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.epilog = f"Exit codes: 0 nothing serious was found; 3 something serious was; {options.FAILED}"
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help=f"{options.DATASET}; or a file: a recording, or a state saved as JSON. Without it, this machine is "
        "examined",
    )
    limit = "time limit in seconds for trying a dataset (%(default)s)"
    parser.add_argument("--seconds", type=options.positive, default=10.0, help=limit)
    parser.add_argument("--json", action="store_true", help="write JSON to standard output instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Write the findings to standard output, as a table or as JSON; return the exit code.

    Raises BadOption: there is no such dataset; DatasetFailed: it cannot be tried; BadState, BadRecording: the file
    cannot be read, is damaged, or is something else.
    """
    what: str | None = arguments.what
    if what is None:
        report = _examine_machine()
    elif not os.path.exists(what) or what.endswith(".py"):
        check_name(what)
        report = _examine_dataset(what, arguments.seconds, with_bar=not arguments.json)
    else:
        report = _examine_recording(Path(what)) if _is_recording(Path(what)) else _examine_faults(Path(what))
    if arguments.json:
        result = {**report.details, "findings": [finding.as_dict() for finding in report.findings]}
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        show(report.title, report.findings, Screen(), before=report.before, after=report.after)
    return SERIOUS if any(finding.is_serious for finding in report.findings) else 0


def _examine_machine() -> _Report:
    details = machine.collect_details()
    return _Report("This machine", {"machine": asdict(details)}, find(details))


def _examine_faults(file: Path) -> _Report:
    held = fault_file.read(file)
    lines = fault_file.first_lines(held)
    after = ["The first of them:", *(f"  {line}" for line in lines)] if lines else []
    title = fault_file.one_line(f"Faults in {file.name}")
    return _Report(title, {"faults": fault_file.describe(held)}, fault_file.find(held), after=after)


def _is_recording(file: Path) -> bool:
    """True for a file that starts like a recording, even a damaged one."""
    try:
        with file.open("rb") as opened:
            start = opened.read(256)
    except OSError:  # the next attempt to read it reports why
        return False
    return start.startswith(b"\x1f\x8b") or FORMAT.encode() in start


def _examine_recording(file: Path) -> _Report:
    recording = Recording.load(file)
    stats, findings = recording.stats(), running.of_recording(recording)
    after = [] if findings else [NOTHING]
    return _Report(f"Run in {file.name}", {"run": stats.as_dict()}, findings, [stats.verdict], after)


def check_linux(source: str) -> None:
    """Raise BadOption on systems where a dataset cannot be tried."""
    if sys.platform != "linux":
        raise BadOption(f"{source}: datasets can be tried only on Linux, where their processes can be watched.")


def _examine_dataset(source: str, seconds: float, *, with_bar: bool) -> _Report:
    check_linux(source)
    from feedline.tools.measure.probe import probe  # importable only on Linux

    with rows.progress(len(STAGES)) if with_bar else nullcontext(lambda _: None) as on_stage:
        measured = probe(source, seconds=seconds, on_stage=on_stage)
    findings = diagnose(measured)
    after = [] if findings else [NOTHING]
    return _Report(source, {"measured": as_dict(measured)}, findings, summary(measured), after)


def show(
    title: str, findings: Sequence[Finding], screen: Screen, *, before: Sequence[str] = (), after: Sequence[str] = ()
) -> None:
    """Draw the findings as a table with one line each, then the advice on each, between the given lines.

    Findings that need a change are coloured. Code is printed below the table, never wrapped: it can be pasted.
    """
    for line in before:
        screen.line(printable(line))
    if before and findings:
        screen.line()
    has_gains = any(finding.has_gain for finding in findings)
    table = Table(title, ["what", "found", *(["gain"] if has_gains else [])])
    colours = {"serious": "red", "advice": "yellow", "unsure": "yellow", "fine": ""}
    for finding in findings:
        cells: list[Styled] = [(printable(finding.name), colours[finding.severity]), printable(finding.problem)]
        if has_gains:
            cells.append(f"{finding.gain:.1f}x" if finding.has_gain else "")
        table.rows.append(cells)
    if findings:
        screen.table(table)
    explained = [finding for finding in findings if finding.fix is not None or finding.evidence]
    for place, finding in enumerate(explained):
        if not place or finding.fix is not None:
            screen.line()
        screen.line((printable(finding.name), colours[finding.severity]), ": ", _advice(finding))
        for line in (finding.code or "").splitlines():
            screen.line((printable(line), "cyan"), indent=4, wraps=False)
        if finding.fix is not None and finding.evidence:
            screen.line(printable(sentence(finding.evidence)), indent=2)
    if after:
        screen.line()
    for line in after:
        screen.line(printable(line))


def _advice(finding: Finding) -> str:
    return printable(sentence(finding.evidence) if finding.fix is None else finding.fix)
