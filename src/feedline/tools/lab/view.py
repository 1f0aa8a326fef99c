"""What a view of the lab is: controls, the code that they stand for, and a run that tells what happens."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.tools.lab.controls import Control, Values, described
from feedline.tools.lab.pictures import Event

Actions = queue.SimpleQueue[str]
"""What the user clicked while a run goes on, by the names that the run gave its `buttons`."""


@dataclass(frozen=True)
class View:
    """One page of the lab.

    `run` is called on a thread of its own, for each run anew, and yields events. It is closed when the user has left,
    so it must not stay away for longer than a second or two between events, and frees what it holds in `finally`.
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
    presets: Sequence[Values] = ({},)
    """What the exported page holds: values that differ from the defaults, one run each."""

    # Any: what JSON has.
    def described(self) -> dict[str, Any]:
        """Return the view as the page gets it."""
        return {
            "name": self.name,
            "title": self.title,
            "notice": self.notice,
            "more": self.more,
            "controls": [described(control) for control in self.controls],
        }


# Any: arguments of a loader.
def loader_code(**arguments: Any) -> str:
    """Return the configuration of a loader, an argument a line."""
    given = ["dataset", *(f"{name}={value!r}" for name, value in arguments.items())]
    lines = ["from feedline import DataLoader", "", "loader = DataLoader(", *(f"    {one}," for one in given), ")", ""]
    return "\n".join(lines)
