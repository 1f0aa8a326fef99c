"""The lab as one file: a page with fresh recordings of every view, which needs no server."""

from __future__ import annotations

import platform
import queue
from collections.abc import Callable, Sequence

from feedline.errors import FeedlineError
from feedline.system.limits import usable_cores
from feedline.tools.lab.controls import read
from feedline.tools.lab.page import page_of
from feedline.tools.lab.view import View

_LIVE = ("still", "doing", "buttons")
"""Events that matter only while a run goes on."""


def exported(views: Sequence[View], on_run: Callable[[str], None] = lambda text: None) -> str:
    """Run every view with each of its presets, and return a page that contains the recorded events.

    Args:
        views: the views of the page.
        on_run: called with the title of the view before each run.

    Raises:
        FeedlineError: a run failed.
    """
    runs: dict[str, list[dict[str, object]]] = {view.name: [] for view in views}
    for view in views:
        for preset in view.presets:
            on_run(view.title)
            runs[view.name].append(_recorded(view, dict(preset)))
    machine = f"{usable_cores()} cores, {platform.machine()}"
    recorded = {"runs": runs, "origin": f"Recorded on a machine with {machine}. `feedline lab` runs it on yours."}
    return page_of(views, recorded=recorded)


# object: JSON values.
def _recorded(view: View, preset: dict[str, object]) -> dict[str, object]:
    values = read(view.controls, preset)
    events = [{"kind": "run", "number": 0, "code": view.code(values)}]
    for event in view.run(values, queue.SimpleQueue()):
        if event["kind"] == "error":
            raise FeedlineError(f"The view {view.title} failed with {preset or 'its defaults'}: {event['text']}")
        if event["kind"] not in _LIVE:
            events.append(event)
    return {"values": values, "events": events}
