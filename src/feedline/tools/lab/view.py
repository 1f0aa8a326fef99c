"""A view of the lab: a function from controls to a run of feedline, and to pictures of it.

The signature declares the controls, the first sentence of the docstring says what the view shows, and the rest of it
says what to look for. The body runs real loaders and yields events (`pictures.py`).
"""

from __future__ import annotations

import inspect
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_type_hints

from feedline.errors import BadOption
from feedline.tools.lab.pictures import Event
from feedline.types import JsonObject

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
    default: object = None

    def of(self, parameter: inspect.Parameter) -> Control:
        """Return this control for a parameter."""
        kind = "choice" if self.options else _KINDS[type(parameter.default)]
        return replace(self, name=parameter.name, kind=kind, default=parameter.default)

    # Any: a number, a text or a boolean.
    def read(self, given: object) -> Any:
        """Return a value that was given, as the view takes it.

        Raises:
            BadOption: it is not possible here.
        """
        if self.kind == "number":
            possible = f"a number from {self.least:g} to {self.most:g}"
            if isinstance(given, (int, float)) and not isinstance(given, bool) and self.least <= given <= self.most:
                return int(given) if isinstance(self.default, int) else float(given)
        elif self.kind == "choice":
            possible = f"one of {', '.join(self.options)}"
            if given in self.options:
                return given
        elif self.kind == "switch":
            possible = "true or false"
            if isinstance(given, bool):
                return given
        else:
            possible = f"a text of at most {_LONGEST_TEXT} characters"
            if isinstance(given, str) and len(given) <= _LONGEST_TEXT:
                return given.strip()
        raise BadOption(f"{self.label}: {given!r:.20} is not possible here. Enter {possible}.")


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
        parameters, hints = inspect.signature(draw).parameters, get_type_hints(draw, include_extras=True)
        self.takes_clicks = "clicks" in parameters
        self.controls: list[Control] = [
            hints[name].__metadata__[0].of(parameter) for name, parameter in parameters.items() if name != "clicks"
        ]

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
        controls = [asdict(control) for control in self.controls]
        texts = {"title": self.title, "notice": self.notice, "more": self.more}
        return {"name": self.name, **texts, "controls": controls}
