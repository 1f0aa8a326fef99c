"""A view of the lab: a function from controls to a run of feedline, and to a drawing of it.

The signature declares the controls, the first sentence of the docstring says what the view shows, and the rest of it
says what to look for. The body runs real loaders and yields events: plain dicts, which `assets/marks.js` draws. A
picture replaces an earlier one of the same name. One with `at` is shown that many seconds after the start of the run.
"""

from __future__ import annotations

import inspect
import queue
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import feedline
from feedline.errors import BadOption, DatasetFailed, FeedlineError
from feedline.insight.recording import Recording
from feedline.insight.stats import Stats
from feedline.types import JsonObject

Event = JsonObject
Clicks = queue.SimpleQueue[str]
"""The clicks on the buttons of a run, by their actions. A view that has a parameter `clicks` gets them."""
_LONGEST_TEXT = 1000
_KINDS = {bool: "switch", str: "text", int: "number", float: "number"}


@dataclass(frozen=True)
class Control:
    """A setting of a view, given with the type of a parameter: `workers: Annotated[int, Control("Workers", 0, 4)] = 2`.

    Numbers have bounds and a step; a text with `options` is one of these.
    """

    label: str
    least: float = 0
    most: float = 0
    step: float = 1
    unit: str = ""
    options: tuple[str, ...] = ()
    name: str = ""
    """This and what follows comes from the parameter."""
    kind: str = ""
    # Any: a number, a text or a boolean.
    default: Any = None

    def read(self, given: Any) -> Any:
        """Return a value as the view takes it. Raises BadOption: the value is not possible here."""
        if self.kind == "number":
            possible = f"a number from {self.least:g} to {self.most:g}"
            fits = type(given) in (int, float) and self.least <= given <= self.most
        elif self.kind == "choice":
            possible, fits = f"one of {', '.join(self.options)}", given in self.options
        elif self.kind == "switch":
            possible, fits = "true or false", isinstance(given, bool)
        else:
            possible = f"a text of at most {_LONGEST_TEXT} characters"
            fits = isinstance(given, str) and len(given) <= _LONGEST_TEXT
        if not fits:
            raise BadOption(f"{self.label}: {given!r:.20} is not possible here. Enter {possible}.")
        return given.strip() if self.kind == "text" else type(self.default)(given)


class View:
    """One page of the lab.

    Args:
        draw: the function; importable by name, since each run is in a process of its own.
        presets: settings of the runs in the exported page: for each run, the values that differ from the defaults.
    """

    def __init__(self, draw: Callable[..., Iterator[Event]], presets: Sequence[Mapping[str, object]] = ({},)) -> None:
        self.draw = draw
        self.presets = presets
        self.name = draw.__name__
        self.title = self.name.replace("_", " ").capitalize()
        self.notice, _, self.more = (inspect.getdoc(draw) or "").partition("\n\n")
        parameters, hints = dict(inspect.signature(draw).parameters), get_type_hints(draw, include_extras=True)
        self.takes_clicks = parameters.pop("clicks", None) is not None
        self.controls: list[Control] = []
        for name, parameter in parameters.items():
            control: Control = hints[name].__metadata__[0]
            kind = "choice" if control.options else _KINDS[type(parameter.default)]
            self.controls.append(replace(control, name=name, kind=kind, default=parameter.default))

    def read(self, given: Mapping[str, object]) -> JsonObject:
        """Return a value for every control: the given one, or its default.

        Raises:
            BadOption: a value is not possible, or there is no such control.
        """
        known = [control.name for control in self.controls]
        for name in given:
            if name not in known:
                raise BadOption(f"This view has no setting {name!r:.40}. Its settings are {', '.join(known)}.")
        return {control.name: control.read(given.get(control.name, control.default)) for control in self.controls}

    def described(self) -> JsonObject:
        """Return the view as the page receives it."""
        texts = {"name": self.name, "title": self.title, "notice": self.notice, "more": self.more}
        return {**texts, "controls": [asdict(control) for control in self.controls]}


# -- loaders of views: the code that the page shows is the code that runs ----------------------------------------------


def loader_code(**arguments: object) -> str:
    """Return code that makes a loader of `dataset`, with one argument per line."""
    given = ["dataset", *(f"{name}={value!r}" for name, value in arguments.items())]
    lines = ["from feedline import DataLoader", "", "loader = DataLoader(", *(f"    {one}," for one in given), ")"]
    return "\n".join(lines)


# Any: a loader of any framework, and the user's objects.
def loader_of(code: str, **names: Any) -> Any:
    """Run code that makes a `loader`, and return it; `names` are the objects that the code expects."""
    exec(code, names)
    return names["loader"]


# Any: datasets and batches of any kind.
def record(loader: feedline.DataLoader[Any, Any], train: Callable[[], None]) -> Recording:
    """Train with a loader, close it, and return the recording of that."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        with feedline.record(loader, file):
            train()
        loader.close()
        return Recording.load(file)


def stats_of(loader: feedline.DataLoader[Any, Any], *, step_s: float, seconds: float) -> Stats:
    """Train for some seconds, epoch after epoch, with steps that sleep; close the loader and return its statistics."""
    until = time.monotonic() + seconds
    try:
        while True:
            for _ in loader:
                time.sleep(step_s)
                if time.monotonic() > until:
                    return loader.stats()  # while the workers, whose memory is included, are alive
    finally:
        loader.close()


# -- events ------------------------------------------------------------------------------------------------------------

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
    """Show what the run is doing, with a progress bar over about so many seconds; an empty text hides the bar."""
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
