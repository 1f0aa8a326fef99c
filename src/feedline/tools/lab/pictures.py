"""What a view tells the page, as plain values: pictures made of a few kinds of marks, figures, and sentences.

Every function returns an event, a dict that JSON takes. `assets/marks.js` draws them. An event with `at` is shown that
many seconds after the run began, if the user wants to watch; without it, at once. A picture shown again under the same
name takes the place of the former one.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from feedline.errors import DatasetFailed, FeedlineError

# Any: what JSON has.
Event = dict[str, Any]
Shade = str
"""A colour by its meaning: one of the names in `lab.css`, such as `fetch`, `order`, `class-3`, `faint`."""


def figures(values: Mapping[str, str | float]) -> Event:
    """Tell numbers that stand above the pictures."""
    return {"kind": "figures", "values": dict(values)}


def say(text: str) -> Event:
    """Show a sentence: what has just happened."""
    return {"kind": "say", "text": text}


def doing(text: str, seconds: float | None = None) -> Event:
    """Show what the run does now, with a progress bar.

    Args:
        text: what it does; an empty text hides the bar, for a run that waits for a click.
        seconds: about how long it takes. The bar moves without a goal if this is not known.
    """
    return {"kind": "doing", "text": text, "seconds": seconds}


def buttons(actions: Mapping[str, str]) -> Event:
    """Show what may be clicked from now on, in place of former buttons: the text of each button by its action."""
    return {"kind": "buttons", "actions": dict(actions)}


def code(text: str) -> Event:
    """Replace the code of the configuration, where it depends on what the run has found."""
    return {"kind": "code", "text": text}


def cells(
    name: str,
    title: str,
    rows: Sequence[tuple[str, Sequence[tuple[str, Shade]]]],
    legend: Sequence[tuple[str, Shade]],
    at: float | None = None,
) -> Event:
    """Draw rows of small boxes, each with a text and a shade: samples in batches.

    Args:
        name: of the picture.
        title: above it.
        rows: the name of each row, and its boxes.
        legend: the meaning of each shade.
        at: when it is shown, in seconds since the run began.
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
    """Draw spans of time on lanes: (lane, from, to, shade, what it is), in seconds."""
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
    """Draw lines: a name, and x and y for each; `across` and `up` name the axes.

    With `doubling`, x and twice x are the same distance apart everywhere (a logarithmic axis).
    """
    drawn = [{"name": key, "x": list(x), "y": list(y)} for key, (x, y) in series.items()]
    event = {"kind": "lines", "name": name, "title": title, "across": across, "up": up, "series": drawn}
    return {**event, "doubling": doubling}


def bars(name: str, title: str, values: Sequence[tuple[str, float, str, Shade]]) -> Event:
    """Draw bars: a label, a length, the text beside it, and a shade."""
    return {"kind": "bars", "name": name, "title": title, "bars": [list(bar) for bar in values]}


def table(name: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Event:
    """Draw a table."""
    return {"kind": "table", "name": name, "title": title, "head": list(head), "rows": [list(row) for row in rows]}


def path(name: str, title: str, stations: Sequence[tuple[str, str]], reached: int, at: float | None = None) -> Event:
    """Draw stations one behind the other, each with a text under it; those up to `reached` have been passed."""
    drawn = [list(station) for station in stations]
    return _timed({"kind": "path", "name": name, "title": title, "stations": drawn, "reached": reached}, at)


def failure(error: Exception) -> Event:
    """Tell what ended a run: in feedline's words, or as Python does if it is the lab's own fault, or the user's."""
    if not isinstance(error, FeedlineError):
        more = "".join(traceback.format_exception(error))
        return {"kind": "error", "text": f"{type(error).__name__}: {error}", "more": more}
    told = {"kind": "error", "text": str(error)}
    return {**told, "more": error.traceback} if isinstance(error, DatasetFailed) else told


def _timed(event: Event, at: float | None) -> Event:
    return event if at is None else {**event, "at": round(at, 4)}
