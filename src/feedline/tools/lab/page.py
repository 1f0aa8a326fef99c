"""The lab's page, one self-contained HTML file: live, or with recorded runs of every view."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Sequence
from importlib import resources

from feedline.errors import FeedlineError
from feedline.system.limits import usable_cores
from feedline.tools.advise.page import packed
from feedline.tools.lab.pictures import Event
from feedline.tools.lab.runs import Run
from feedline.tools.lab.view import View

_SCRIPTS = ("marks.js", "controls.js", "runs.js", "lab.js")
"""Scripts in the order in which the page runs them, after the report's `drawing.js`."""
_LIVE = ("doing", "buttons")
"""Events that matter only while a run goes on."""


def page_of(views: Sequence[View], *, token: str = "", nonce: str = "", recorded: str = "") -> str:
    """Return the page.

    Args:
        views: the views of the page.
        token: the token that the page sends with each request; empty in an exported page.
        nonce: lets the browser run the scripts of this page and no others.
        recorded: packed runs, for a page without a server.
    """
    assets = resources.files(__package__) / "assets"
    drawing = resources.files("feedline.tools.advise") / "assets" / "drawing.js"
    data = {"views": [view.described() for view in views], "token": token, "recorded": recorded}
    parts = {
        "STYLE": (assets / "lab.css").read_text("utf-8"),
        "SCRIPT": "\n".join(file.read_text("utf-8") for file in (drawing, *(assets / name for name in _SCRIPTS))),
        # A "<" could end the element that contains the data.
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "NONCE": nonce,
    }
    page = (assets / "lab.html").read_text("utf-8")
    return re.sub(r"/\*([A-Z]+)\*/", lambda found: parts[found[1]], page)


def exported(views: Sequence[View], on_run: Callable[[str], None] = lambda text: None) -> str:
    """Run every view with each of its presets, and return a page that contains the recorded events.

    Args:
        views: the views of the page.
        on_run: called with the title of the view before each run.

    Raises:
        FeedlineError: a run failed.
    """
    runs: dict[str, list[object]] = {view.name: [] for view in views}
    for view in views:
        for preset in view.presets:
            on_run(view.title)
            values, events = view.read(preset), list[Event]()
            for event in Run(view, values).events():
                if event and event["kind"] == "error":
                    raise FeedlineError(f"{view.title} failed with {preset or 'its defaults'}: {event['text']}")
                if event and event["kind"] not in _LIVE:
                    events.append(event)
            runs[view.name].append({"values": values, "events": events})
    machine = f"{usable_cores()} cores, {platform.machine()}"
    origin = f"Recorded on a machine with {machine}. `feedline lab` runs it on yours."
    return page_of(views, recorded=packed({"runs": runs, "origin": origin}))
