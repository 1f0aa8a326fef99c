"""A view of the lab: controls, the code that they stand for, and a run that yields events."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from feedline.tools.lab.controls import Control, Values, described
from feedline.tools.lab.pictures import Event

Actions = queue.SimpleQueue[str]
"""The user's clicks during a run, by the names that the run gave its `buttons`."""


@dataclass(frozen=True)
class View:
    """One page of the lab.

    `run` is called for each run, outside the event loop's thread, and yields events. It is closed when the user leaves,
    so it must yield at least every second or two, and release its resources in `finally`.
    """

    name: str
    title: str
    notice: str
    """What the view shows, in one short sentence above the controls."""
    more: str
    """What to look for, a paragraph below the controls that opens on a click."""
    controls: tuple[Control, ...]
    code: Callable[[Values], str]
    """The configuration, as Python that a user may copy."""
    run: Callable[[Values, Actions], Iterator[Event]]
    questions: Sequence[tuple[str, str]] = ()
    """Questions that the view answers, each with its answer, which opens on a click."""
    presets: Sequence[Values] = ({},)
    """Settings of the runs in the exported page: the values that differ from the defaults, for each run."""

    # object: JSON values.
    def described(self) -> dict[str, object]:
        """Return the view as the page receives it."""
        return {
            "name": self.name,
            "title": self.title,
            "notice": self.notice,
            "more": self.more,
            "questions": [list(one) for one in self.questions],
            "controls": [described(control) for control in self.controls],
        }


# object: arguments of a loader.
def loader_code(**arguments: object) -> str:
    """Return the code that creates a loader, one argument per line."""
    given = ["dataset", *(f"{name}={value!r}" for name, value in arguments.items())]
    lines = ["from feedline import DataLoader", "", "loader = DataLoader(", *(f"    {one}," for one in given), ")", ""]
    return "\n".join(lines)
