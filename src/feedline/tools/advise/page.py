"""What a recording shows: as text, and as one self-contained HTML page, which needs no network and no other file.

The parts of the page are in `assets/`. The recording is packed into the page; the browser unpacks and draws it.
"""

from __future__ import annotations

import base64
import json
import math
import textwrap
import zlib
from collections.abc import Mapping
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadRecording
from feedline.insight.attribution import CAUSES, causes_of
from feedline.insight.batch_rows import DURATIONS, MOMENTS
from feedline.insight.recording import Recording
from feedline.tools.advise import what_if
from feedline.tools.advise.running import of_recording
from feedline.tools.screen import Table
from feedline.types import JsonObject

SCRIPTS = ("data.js", "drawing.js", "timeline.js", "main.js")
"""In the order in which the page runs them."""
_COUNTS = ("epoch", "ordinal", "worker", "samples", "behind", "held")
_MOST_ROWS = 100_000
"""Batches drawn in the timeline, about 4 MB: more would keep a browser busy for seconds. Figures cover all batches."""
_SHARES = ("cpu", "gpu")
"""Figures of the machine from 0 to 1; the page holds them in thousandths."""


def text_of(shown: JsonObject) -> str:
    """Return the verdict, findings that say more, and the best of other settings, as text."""
    best = [f"Best: {one['text']}" for one in shown["predicted"].get("all", ()) if one["is_best"]]
    parts = [shown["verdict"], *(one["text"] for one in shown["advice"] if not one["is_verdict"]), *best]
    return "\n\n".join(textwrap.fill(part, 100, break_long_words=False) for part in parts)


def page_of(shown: JsonObject) -> str:
    """Return the page with these contents."""
    assets = resources.files(__package__) / "assets"
    parts = {
        "STYLE": (assets / "page.css").read_text("utf-8"),
        "SCRIPT": "\n".join((assets / name).read_text("utf-8") for name in SCRIPTS),
        "DATA": packed(shown),
    }
    page = (assets / "page.html").read_text("utf-8")
    for name, text in parts.items():
        page = page.replace(f"/*{name}*/", text, 1)
    return page


def contents(recording: Recording, compared: Table | None = None) -> JsonObject:
    """Return what there is to show of a recording: its figures, what to change, and predictions for other settings.

    Args:
        recording: the recording.
        compared: a table that compares this run with others. None to leave that section out.
    """
    stats, count = recording.stats(), len(recording.rows["got"])
    verdict = stats.verdict
    log = list(recording.log)
    if count > _MOST_ROWS:
        log.append(f"The timeline shows the first {_MOST_ROWS:,} of {count:,} batches; the figures cover all.")
    return {
        "feedline": recording.environment.get("feedline", ""),
        "started": recording.started,
        "causes": CAUSES,
        "verdict": verdict,
        "advice": [
            {"text": str(finding), "code": finding.code, "is_verdict": str(finding.fix) in verdict}
            for finding in of_recording(recording)
        ],
        "stats": stats.as_dict(),
        "settings": dict(recording.settings),
        "environment": dict(recording.environment),
        "rows": _rows(recording),
        "system": {name: _differences(column) for name, column in _system(recording).items()},
        "predicted": _predicted(recording),
        "compared": None if compared is None else _plain(compared),
        "slow_samples": [[str(slow.index), slow.seconds * 1e6, slow.worker] for slow in stats.slowest_samples],
        "faults": list(recording.faults),
        "log": log,
    }


def _predicted(recording: Recording) -> JsonObject:
    """Return predictions for other settings; only a note if nothing can be predicted."""
    try:
        run = what_if.RecordedRun(recording)
    except BadRecording as exc:
        return {"notes": [str(exc)]}
    grid, faster = run.grid(), run.twice_as_fast()
    best = run.best(grid)
    shown = ("workers", "change", "samples_per_s", "stall", "is_recorded")
    found = [
        {**{name: getattr(one, name) for name in shown}, "is_best": one is best, "text": run.compared(one)}
        for one in (*grid, *faster)
    ]
    simulated = f"Simulated with the times of up to {what_if.GRID_BATCHES} batches from all over the run"
    return {"all": found, "notes": [f"{simulated}, without the starts of epochs.", *run.assumptions(grid)]}


def _plain(table: Table) -> JsonObject:
    rows = [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in table.rows]
    return {"title": table.title, "heads": list(table.heads), "rows": rows}


def packed(values: Mapping[str, object]) -> str:
    """Return values as text that can be embedded in a page."""
    text = json.dumps(_readable(values), separators=(",", ":"), allow_nan=False, default=str)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def _readable(value: object) -> object:
    """Return a value with everything that browsers cannot read, such as NaN or keys that are not strings, as text."""
    if isinstance(value, Mapping):
        return {str(name): _readable(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)) and not (value and type(value[0]) is int):
        return [_readable(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _rows(recording: Recording) -> dict[str, list[int]]:
    """Return the columns of the batches: microseconds since the first, and counts; each as differences."""
    columns = {name: column[:_MOST_ROWS] for name, column in recording.rows.items()}
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
    """Return figures of the machine as integers, at microseconds since the first batch; missing values are 0."""
    system = recording.system
    if not system.get("at"):
        return {}
    made = {name: np.array([value or 0 for value in column]) for name, column in system.items()}
    made["at"] = (made["at"] - _origin(recording.rows)) / 1000
    made |= {name: made[name] * 1000 for name in _SHARES if name in made}
    return {name: column.astype(np.int64) for name, column in made.items()}


def _differences(column: NDArray[np.int64]) -> list[int]:
    values: list[int] = np.diff(column, prepend=0).tolist()
    return values
