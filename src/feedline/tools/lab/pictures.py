"""Events that a view sends to the page, as plain values: pictures made of a few kinds of marks, figures, and sentences.

Every function returns an event: a dict that can be written as JSON. `assets/marks.js` draws the pictures. An event with
`at` is shown that many seconds after the start of the run, if the user wants to watch; all others at once. A picture
replaces an earlier one of the same name.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

from feedline.errors import DatasetFailed, FeedlineError
from feedline.types import JsonObject

Event = JsonObject
Shade = str
"""A colour by its meaning: one of the names in `lab.css`, such as `fetch`, `order`, `class-3`, `faint`."""


def figures(values: Mapping[str, str | float]) -> Event:
    """Show figures above the pictures."""
    return {"kind": "figures", "values": dict(values)}


def say(text: str) -> Event:
    """Show a sentence of at most 14 words: what has just happened, and at the end of a run its result."""
    return {"kind": "say", "text": text}


def doing(text: str, seconds: float | None = None) -> Event:
    """Show what the run is doing, with a progress bar.

    Args:
        text: what it is doing; an empty text hides the bar, for a run that waits for a click.
        seconds: about how long this takes; None for a bar without an end.
    """
    return {"kind": "doing", "text": text, "seconds": seconds}


def buttons(actions: Mapping[str, str]) -> Event:
    """Replace the buttons; `actions` maps each action to the text of its button."""
    return {"kind": "buttons", "actions": dict(actions)}


def code(text: str) -> Event:
    """Replace the code of the configuration, if it depends on what the run has found."""
    return {"kind": "code", "text": text}


def cells(
    name: str,
    title: str,
    rows: Sequence[tuple[str, Sequence[tuple[str, Shade]]]],
    legend: Sequence[tuple[str, Shade]],
    at: float | None = None,
) -> Event:
    """Draw rows of small boxes, such as samples in batches, each with a text and a shade.

    Args:
        name: the name of the picture.
        title: the title above it.
        rows: the name of each row, and its boxes.
        legend: the meaning of each shade.
        at: when to show it, in seconds after the start of the run.
    """
    drawn = [{"name": row, "cells": [list(cell) for cell in members]} for row, members in rows]
    event = {"kind": "cells", "name": name, "title": title, "rows": drawn, "legend": [list(one) for one in legend]}
    return _timed(event, at)


def lanes(
    name: str,
    title: str,
    names: Sequence[str],
    spans: Sequence[tuple[int, float, float, Shade, str]],
) -> Event:
    """Draw spans of time on lanes: (lane, start, end, shade, description), in seconds."""
    end = max([span[2] for span in spans], default=0.0)
    drawn = [[lane, round(start, 6), round(stop, 6), shade, text] for lane, start, stop, shade, text in spans]
    return {"kind": "lanes", "name": name, "title": title, "lanes": list(names), "spans": drawn, "until": end}


def lines(
    name: str,
    title: str,
    across: str,
    up: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    doubling: bool = False,
) -> Event:
    """Draw lines, each with a name and its x and y values; `across` and `up` name the axes.

    With `doubling`, the x axis is logarithmic: x and 2x are the same distance apart everywhere.
    """
    drawn = [{"name": key, "x": list(x), "y": list(y)} for key, (x, y) in series.items()]
    event = {"kind": "lines", "name": name, "title": title, "across": across, "up": up, "series": drawn}
    return {**event, "doubling": doubling}


def bars(name: str, title: str, values: Sequence[tuple[str, float, str, Shade]]) -> Event:
    """Draw bars: a label, a length, the text beside the bar, and a shade."""
    return {"kind": "bars", "name": name, "title": title, "bars": [list(bar) for bar in values]}


def table(name: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Event:
    """Draw a table."""
    return {"kind": "table", "name": name, "title": title, "head": list(head), "rows": [list(row) for row in rows]}


def path(name: str, title: str, stations: Sequence[tuple[str, str]], reached: int, at: float | None = None) -> Event:
    """Draw stations in a sequence, each with a text under it; those up to `reached` have been passed."""
    drawn = [list(station) for station in stations]
    return _timed({"kind": "path", "name": name, "title": title, "stations": drawn, "reached": reached}, at)


def failure(error: Exception) -> Event:
    """Report the error that ended a run: feedline's own message, or a traceback for all other exceptions."""
    if not isinstance(error, FeedlineError):
        more = "".join(traceback.format_exception(error))
        return {"kind": "error", "text": f"{type(error).__name__}: {error}", "more": more}
    event = {"kind": "error", "text": str(error)}
    return {**event, "more": error.traceback} if isinstance(error, DatasetFailed) else event


def _timed(event: Event, at: float | None) -> Event:
    return event if at is None else {**event, "at": round(at, 4)}
