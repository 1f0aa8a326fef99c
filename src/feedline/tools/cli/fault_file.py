"""Read failed samples from a loader's state that was saved as JSON.

Files that start like a pickle are refused, because loading a pickle can run any code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feedline.delivery.state import Snapshot
from feedline.errors import BadState
from feedline.faults import FaultLog
from feedline.system.failures import words
from feedline.system.shown import counted, printable
from feedline.tools.advise.finding import Finding

ONE_CAUSE = 0.8  # share of all faults with one error that suggests a common cause
FEW_FAULTS = 10  # too few to suspect a common cause
SHOWN_FAULTS = 5
SHOWN_INDICES = 20

_PICKLES = (b"PK\x03\x04", b"\x80")
"""First bytes of files that `torch.save` and pickle write. Pickles of a protocol before version 2 have no such mark;
they are not JSON."""

_WANTED = (
    "Name a file that feedline.record or json.dump(loader.state_dict(), file) wrote. For a file of samples: feedline "
    "inspect."
)


@dataclass(frozen=True)
class FaultFile:
    """The contents of a file."""

    log: FaultLog
    snapshot: Snapshot
    """The loader's position."""


def read(file: Path) -> FaultFile:
    """Read a file. Raises BadState: it cannot be read, is damaged, or is something else."""
    try:
        data = file.read_bytes()
    except OSError as exc:
        raise BadState(f"{file} cannot be read: {exc.strerror}.") from exc
    if data.startswith(_PICKLES):
        raise BadState(
            f"{file} is a pickle, as torch.save and pickle.dump write it. Loading one can run any code, so it is not "
            "read here. Save the state as JSON: json.dump(loader.state_dict(), open('state.json', 'w')). For an "
            "existing checkpoint: torch.load(path, weights_only=True), then json.dump the loader's part of it."
        )
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise BadState(f"{file} is not JSON: {words(exc)}. {_WANTED}") from exc
    parts = [found, *found.values()] if isinstance(found, dict) else []  # of a checkpoint
    states = [part for part in parts if isinstance(part, dict) and "feedline" in part]
    if not states:
        raise BadState(f"{file} contains no state of a feedline loader: nothing in it has a key 'feedline'. {_WANTED}")
    log = FaultLog()
    try:
        snapshot = Snapshot.from_dict(states[0])
        log.restore(states[0].get("faults", {}))
    except BadState as exc:
        raise BadState(f"{file}: {words(exc)}.") from exc
    return FaultFile(log, snapshot)


# object: JSON-compatible values.
def describe(file: FaultFile) -> dict[str, object]:
    """Return the contents of a file for programs."""
    log, snapshot = file.log, file.snapshot
    details: dict[str, object] = {
        "total": sum(log.counts().values()),
        "dropped": log.dropped,
        "actions": log.counts(),
        "errors": [{"error": error, "action": action, "count": count} for (error, action), count in _kinds(log)],
        "lost": [fault["index"] for fault in log.state().get("quarantined", [])],
        "first": [fault.as_dict() for fault in log[:SHOWN_FAULTS]],
    }
    return {**details, "epoch": snapshot.epoch, "ended": snapshot.ended}


def find(file: FaultFile) -> list[Finding]:
    """Return findings on what the faults have in common, and what to do about them."""
    log, snapshot = file.log, file.snapshot
    findings = [Finding("state", f"{'at the end of' if snapshot.ended else 'in'} epoch {snapshot.epoch}")]
    total = sum(log.counts().values())
    if not total:
        return [*findings, Finding("faults", "none")]
    counts = ", ".join(f"{count} {action}" for action, count in log.counts().items() if count)
    older = f"{log.dropped} older ones are only counted" if log.dropped else ""
    findings.append(Finding("faults", f"{total}: {counts}", _common_cause(log), evidence=older))
    findings += [Finding(one_line(error), f"{count} {action}") for (error, action), count in _kinds(log)]
    killers = [fault.index for fault in log if fault.stage == "worker"]
    if killers:
        found = f"{counted(len(killers), 'sample')} killed or blocked every worker."
        advice = "Load each of them alone, in a separate process: python -X faulthandler, then dataset[index]."
        findings.append(Finding("killed workers", found, advice, evidence=_listed(killers)))
    lost = log.quarantined
    if lost:
        advice = "The loader does not load them again. Once fixed: loader.faults.release(index), or clear() for all."
        findings.append(Finding("in quarantine", counted(len(lost), "sample"), advice, evidence=_listed(lost)))
    return findings


def first_lines(file: FaultFile) -> list[str]:
    """Return the oldest faults that are kept in detail, one line each."""
    return [one_line(str(fault)) for fault in file.log[:SHOWN_FAULTS]]


def _kinds(log: FaultLog) -> list[tuple[tuple[str, str], int]]:
    return Counter((fault.error, fault.action) for fault in log).most_common()


def _common_cause(log: FaultLog) -> str | None:
    kinds = Counter(fault.error for fault in log).most_common(1)
    if len(log) < FEW_FAULTS or kinds[0][1] < ONE_CAUSE * len(log):
        return None
    error, count = kinds[0]
    return (
        f"{count} of {len(log)} are {one_line(error)}. Look first at what they have in common, such as a path, a "
        "mount, a quota or the version of a library, and then at the samples."
    )


def _listed(indices: Sequence[object]) -> str:
    shown = ", ".join(one_line(f"{index!r:.80}") for index in indices[:SHOWN_INDICES])
    return f"{len(indices)}: {shown}{', ...' if len(indices) > SHOWN_INDICES else ''}"


def one_line(text: str) -> str:
    """Return a text on one line, without characters that control a terminal."""
    return printable(" ".join(text.split()))
