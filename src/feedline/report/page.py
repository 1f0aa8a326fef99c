"""A recording as one page of HTML that needs nothing else: no network, no other file.

The parts of the page lie in `assets/`. What was recorded is packed into it, and unpacked and drawn by the browser.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.observe.attribution import CAUSES, causes_of
from feedline.observe.batch_rows import DURATIONS, MOMENTS
from feedline.observe.recording import Recording

SCRIPTS = ("data.js", "drawing.js", "timeline.js", "whatif.js", "main.js")
"""In the order in which the page runs them."""
_COUNTS = ("epoch", "ordinal", "worker", "samples", "behind")


def page_of(recording: Recording, advice: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        recording: what is shown.
        advice: what to change, a sentence each, the most rewarding first.
    """
    assets = resources.files(__package__) / "assets"
    parts = {
        "STYLE": (assets / "page.css").read_text("utf-8"),
        "SCRIPT": "\n".join((assets / name).read_text("utf-8") for name in SCRIPTS),
        "DATA": packed(contents(recording, advice)),
    }
    page = (assets / "page.html").read_text("utf-8")
    for name, text in parts.items():
        page = page.replace(f"/*{name}*/", text, 1)
    return page


# Any: what JSON has.
def contents(recording: Recording, advice: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the page shows."""
    stats = recording.stats()
    return {
        "feedline": recording.environment.get("feedline", ""),
        "started": recording.started,
        "causes": CAUSES,
        "verdict": stats.verdict,
        "advice": list(advice),
        "stats": stats.as_dict(),
        "settings": dict(recording.settings),
        "environment": dict(recording.environment),
        "rows": _rows(recording),
        "system": {name: _differences(column) for name, column in _system(recording).items()},
        "slow_samples": [[str(slow.index), slow.seconds * 1e6, slow.worker] for slow in stats.slowest_samples],
        "faults": list(recording.faults),
        "log": list(recording.log),
    }


def packed(values: Mapping[str, Any]) -> str:
    """Return values as text that a page may hold."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False, default=str)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def _rows(recording: Recording) -> dict[str, list[int]]:
    """Return the columns of the batches: microseconds since the first, and counts; each as differences."""
    columns = recording.rows
    origin = _origin(columns)
    made = {name: (columns[name] - origin) // 1000 for name in MOMENTS}
    made |= {name: np.maximum(columns[name], 0) // 1000 for name in DURATIONS if name != "body"}
    made |= {name: columns[name] for name in _COUNTS}
    waited = causes_of(columns, in_order=bool(recording.settings.get("in_order", True)))
    made["cause"] = np.stack([waited[cause] for cause in CAUSES]).argmax(axis=0)
    return {name: _differences(column) for name, column in made.items()}


def _origin(columns: Mapping[str, NDArray[np.int64]]) -> int:
    moments = [columns[name] for name in ("asked", "began") if len(columns[name])]
    return min((int(column[column > 0].min()) for column in moments if (column > 0).any()), default=0)


def _system(recording: Recording) -> dict[str, NDArray[np.int64]]:
    """Return figures of the machine as integers, at microseconds since the first batch; what was not told is 0."""
    system = recording.system
    if not system.get("at"):
        return {}
    made = {name: np.array([value or 0 for value in column]) for name, column in system.items()}
    made["at"] = (made["at"] - _origin(recording.rows)) / 1000
    return {name: column.astype(np.int64) for name, column in made.items()}


def _differences(column: NDArray[np.int64]) -> list[int]:
    values: list[int] = np.diff(column, prepend=0).tolist()
    return values
