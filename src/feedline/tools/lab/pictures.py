"""Events that a view yields, as plain values: pictures made of a few kinds of marks, figures, and sentences.

Every function returns an event: a dict that can be written as JSON. `assets/marks.js` draws the pictures. A picture
replaces an earlier one of the same name. One with `at` is shown that many seconds after the start of the run.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

from feedline.errors import DatasetFailed, FeedlineError
from feedline.types import JsonObject

Event = JsonObject
Shade = str
"""A colour by its meaning: one of the names in `lab.css`, such as `fetch`, `order`, `class-3`, `faint`."""
Span = tuple[int, float, float, Shade, str]
"""A span of time on a lane: the lane, start and end in seconds, a shade and a description."""
Row = tuple[str, Sequence[tuple[str, Shade]]]
"""A name, and boxes with a text and a shade."""
Line = tuple[Sequence[float], Sequence[float]]
"""The x and y values of a line."""


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
    """Show the code of these settings, which the user may copy."""
    return {"kind": "code", "text": text}


def cells(name: str, title: str, rows: Sequence[Row], legend: Mapping[str, Shade], at: float | None = None) -> Event:
    """Draw rows of small boxes, such as samples in batches; the legend explains each shade."""
    return {"kind": "cells", "name": name, "title": title, "rows": rows, "legend": list(legend.items()), "at": at}


def lanes(name: str, title: str, names: Sequence[str], spans: Sequence[Span]) -> Event:
    """Draw spans of time on named lanes."""
    drawn = [(lane, round(start, 6), round(stop, 6), shade, text) for lane, start, stop, shade, text in spans]
    until = max((span[2] for span in spans), default=0.0)
    return {"kind": "lanes", "name": name, "title": title, "lanes": names, "spans": drawn, "until": until}


def lines(name: str, title: str, across: str, up: str, series: Mapping[str, Line], *, doubling: bool = False) -> Event:
    """Draw lines by their names; `across` and `up` name the axes. With `doubling`, the x axis is logarithmic."""
    drawn = [{"name": key, "x": x, "y": y} for key, (x, y) in series.items()]
    axes = {"across": across, "up": up, "doubling": doubling}
    return {"kind": "lines", "name": name, "title": title, **axes, "series": drawn}


def bars(name: str, title: str, values: Sequence[tuple[str, float, str, Shade]]) -> Event:
    """Draw bars: a label, a length, the text beside the bar, and a shade."""
    return {"kind": "bars", "name": name, "title": title, "bars": values}


def table(name: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Event:
    """Draw a table."""
    return {"kind": "table", "name": name, "title": title, "head": head, "rows": rows}


def notes(name: str, title: str, texts: Sequence[str]) -> Event:
    """Show paragraphs."""
    return {"kind": "notes", "name": name, "title": title, "texts": texts}


def path(name: str, title: str, stations: Sequence[tuple[str, str]], reached: int, at: float | None = None) -> Event:
    """Draw stations in a sequence, each with a text under it; those up to `reached` have been passed."""
    return {"kind": "path", "name": name, "title": title, "stations": stations, "reached": reached, "at": at}


def failure(error: Exception) -> Event:
    """Report the error that ended a run: feedline's own message, or a traceback for all other exceptions."""
    if not isinstance(error, FeedlineError):
        more = "".join(traceback.format_exception(error))
        return {"kind": "error", "text": f"{type(error).__name__}: {error}", "more": more}
    return {"kind": "error", "text": str(error), "more": error.traceback if isinstance(error, DatasetFailed) else ""}
