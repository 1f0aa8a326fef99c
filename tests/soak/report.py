"""The result of a soak as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any  # values of JSON

from tests.soak.cycle import WARM_UP
from tests.soak.settings import Settings
from tests.soak.trial import Result
from tests.soak.verdict import findings, growth_bytes

GOOD = "PASSED: every sample came once per epoch in the seeded order; memory, descriptors and threads are flat"


# Any: values of JSON.
def as_json(settings: Settings, results: Sequence[Result]) -> dict[str, Any]:
    """Return the result as plain values."""
    found = [asdict(one) for result in results for one in findings(result, settings.tolerance_bytes)]
    return {
        "ok": not found and all(result.steps for result in results),
        "settings": asdict(settings),
        "findings": found,
        "configurations": [result.as_json() for result in results],
    }


def as_text(settings: Settings, results: Sequence[Result]) -> str:
    """Return the result as text."""
    rows = [["", *(result.name for result in results)]]
    for title, values in _table(results).items():
        rows.append([title, *values])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [f"seed {settings.seed}, {settings.hours:g} hours, killed and resumed {settings.resumes} times each", ""]
    lines += ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    found = [one for result in results for one in findings(result, settings.tolerance_bytes)]
    lines += ["", *(f"FAILED {one.configuration}: {one.what}" for one in found)]
    return "\n".join([*lines, *([] if found else [GOOD])]) + "\n"


def _table(results: Sequence[Result]) -> dict[str, list[str]]:
    faults = sorted({name for result in results for name in result.faults})
    return {
        "minutes": [f"{result.seconds / 60:.1f}" for result in results],
        "steps": [f"{result.steps:,}" for result in results],
        "samples": [f"{result.samples:,}" for result in results],
        "steps repeated after a kill": [f"{result.repeated_steps:,}" for result in results],
        "cycles": [f"{sum(len(life.cycles) for life in result.lives):,}" for result in results],
        "killed and resumed": [f"{result.kills}" for result in results],
        "workers replaced": [f"{result.restarts:,}" for result in results],
        **{name: [f"{result.faults.get(name, 0):,}" for result in results] for name in faults},
        "memory after warm-up, MiB": [_ends(result, "private_bytes", 1 << 20)[0] for result in results],
        "memory at the end, MiB": [_ends(result, "private_bytes", 1 << 20)[1] for result in results],
        "growth by its slope, MiB": [
            f"{growth_bytes(result.lives[-1].cycles) / (1 << 20):+.1f}" if result.lives else "-" for result in results
        ],
        "descriptors, after warm-up and end": [" ".join(_ends(result, "descriptors")) for result in results],
        "threads, after warm-up and end": [" ".join(_ends(result, "threads")) for result in results],
    }


def _ends(result: Result, name: str, unit: int = 1) -> tuple[str, str]:
    """Return a figure of the last life, after its warm-up and at its end."""
    cycles = result.lives[-1].cycles[WARM_UP - 1 :] if result.lives else []
    if not cycles:
        return "-", "-"
    return f"{cycles[0][name] / unit:.0f}", f"{cycles[-1][name] / unit:.0f}"


def write(settings: Settings, results: Sequence[Result]) -> None:
    """Write soak.json and soak.txt into the folder of the soak."""
    folder = Path(settings.folder)
    (folder / "soak.json").write_text(json.dumps(as_json(settings, results), indent=1), encoding="utf-8")
    (folder / "soak.txt").write_text(as_text(settings, results), encoding="utf-8")
