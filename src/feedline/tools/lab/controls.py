"""The settings of a view, described once: the page draws them, and values are checked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from feedline.errors import BadOption
from feedline.types import JsonObject

Values = JsonObject
"""Numbers, strings and booleans."""


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
            raise BadOption(f"{self.label}: {given!r} is not a number. Enter one from {self._bounds()}.")
        if not self.least <= given <= self.most:
            raise BadOption(
                f"{self.label}: {given!s:.20} is not possible here. Enter a number from "
                f"{self._bounds()}: the lab runs on small data."
            )
        return int(given) if self.step == int(self.step) else float(given)

    def _bounds(self) -> str:
        return f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Choice:
    """One of several options."""

    name: str
    label: str
    options: tuple[str, ...]
    default: str

    def read(self, given: object) -> str:
        if given not in self.options:
            raise BadOption(f"{self.label}: {given!r} is not one of {', '.join(self.options)}.")
        return str(given)


@dataclass(frozen=True)
class Switch:
    """A checkbox."""

    name: str
    label: str
    default: bool

    def read(self, given: object) -> bool:
        if not isinstance(given, bool):
            raise BadOption(f"{self.label}: {given!r} is neither true nor false.")
        return given


@dataclass(frozen=True)
class Text:
    """A line of text."""

    name: str
    label: str
    default: str = ""

    def read(self, given: object) -> str:
        if not isinstance(given, str) or len(given) > 1000:
            raise BadOption(f"{self.label}: enter a text of at most 1,000 characters.")
        return given.strip()


Control = Number | Choice | Switch | Text


def read(controls: Sequence[Control], given: Mapping[str, object]) -> Values:
    """Return a value for every control: the given one, or its default.

    Raises:
        BadOption: a value is out of bounds, or there is no such control.
    """
    known = {control.name for control in controls}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise BadOption(f"This view has no setting {unknown[0]!r}. Its settings are {', '.join(sorted(known))}.")
    return {control.name: control.read(given.get(control.name, control.default)) for control in controls}


def described(control: Control) -> dict[str, object]:
    """Return a control as the page receives it."""
    return {"kind": type(control).__name__.lower(), **asdict(control)}
