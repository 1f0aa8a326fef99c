"""The result of a soak as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
        "configurations": [asdict(result) for result in results],
    }


def as_text(settings: Settings, results: Sequence[Result]) -> str:
    """Return the result as text."""
    lines = [f"seed {settings.seed}, {settings.hours:g} hours, killed and resumed {settings.resumes} times each", ""]
    for result in results:
        faults = ", ".join(f"{count:,} {name}" for name, count in sorted(result.faults.items()))
        lines += [
            f"{result.name}: {result.seconds / 60:.1f} minutes, {result.kills} kills",
            f"  {result.steps:,} steps ({result.repeated_steps:,} repeated), {result.samples:,} samples",
            f"  faults: {faults or 'none'}; {result.restarts:,} workers replaced",
            *(f"  {line}" for line in _growth(result)),
        ]
    found = [one for result in results for one in findings(result, settings.tolerance_bytes)]
    lines += ["", *(f"FAILED {one.configuration}: {one.what}" for one in found)]
    return "\n".join([*lines, *([] if found else [GOOD])]) + "\n"


def _growth(result: Result) -> Iterator[str]:
    """Describe the last life, after its warm-up and at its end."""
    cycles = result.lives[-1].cycles if result.lives else []
    if len(cycles) < WARM_UP:
        return
    first, last = cycles[WARM_UP - 1], cycles[-1]
    yield f"{len(cycles)} cycles in the last life, memory grew by {growth_bytes(cycles) / (1 << 20):+.1f} MiB (slope)"
    for name in ("descriptors", "threads", "processes"):
        yield f"{name}: {first[name]} after the warm-up, {last[name]} at the end"


def write(settings: Settings, results: Sequence[Result]) -> None:
    """Write soak.json and soak.txt into the folder of the soak."""
    folder = Path(settings.folder)
    (folder / "soak.json").write_text(json.dumps(as_json(settings, results), indent=1), encoding="utf-8")
    (folder / "soak.txt").write_text(as_text(settings, results), encoding="utf-8")
