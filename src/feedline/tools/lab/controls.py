"""What a user may set on a view of the lab, described once: the page draws it, values are checked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from feedline.errors import BadOption

# Any: numbers, words and switches, as JSON has them.
Values = dict[str, Any]


@dataclass(frozen=True)
class Number:
    """A number within bounds; the page shows a slider and a field."""

    name: str
    label: str
    least: float
    most: float
    default: float
    step: float = 1
    unit: str = ""

    def read(self, given: object) -> float:
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise BadOption(f"{self.label}: {given!r} is no number. Give one from {self._bounds()}.")
        if not self.least <= given <= self.most:
            raise BadOption(
                f"{self.label}: {given!s:.20} is not possible here: the lab runs on small data, and takes "
                f"{self._bounds()}."
            )
        return int(given) if self.step == int(self.step) else float(given)

    def _bounds(self) -> str:
        return f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Choice:
    """One of several words."""

    name: str
    label: str
    options: tuple[str, ...]
    default: str

    def read(self, given: object) -> str:
        if given not in self.options:
            raise BadOption(f"{self.label}: {given!r} is none of {', '.join(self.options)}.")
        return str(given)


@dataclass(frozen=True)
class Switch:
    """Yes or no."""

    name: str
    label: str
    default: bool

    def read(self, given: object) -> bool:
        if not isinstance(given, bool):
            raise BadOption(f"{self.label}: {given!r} is neither true nor false.")
        return given


@dataclass(frozen=True)
class Text:
    """A line that the user writes."""

    name: str
    label: str
    default: str = ""

    def read(self, given: object) -> str:
        if not isinstance(given, str) or len(given) > 1000:
            raise BadOption(f"{self.label}: give a text of at most 1,000 letters.")
        return given.strip()


Control = Number | Choice | Switch | Text


def read(controls: Sequence[Control], given: Mapping[str, Any]) -> Values:
    """Return a value for every control: what was given, or its default.

    Raises:
        BadOption: a value is out of bounds, or there is no such control.
    """
    known = {control.name for control in controls}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise BadOption(f"Nothing called {unknown[0]!r} can be set on this view: it has {', '.join(sorted(known))}.")
    return {control.name: control.read(given.get(control.name, control.default)) for control in controls}


def described(control: Control) -> dict[str, Any]:
    """Return a control as the page gets it."""
    return {"kind": type(control).__name__.lower(), **asdict(control)}
