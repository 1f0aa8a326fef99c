"""Draws figures against numbers of workers, or other values, as an SVG file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 18, 34, 46
_HEAD = 62
_COLOURS = ("#8b949e", "#0b62d6", "#d4580b", "#1a8a3c", "#7b3fb5", "#a3324f", "#00798c")
_INK, _FAINT = "#24292f", "#e4e7eb"


@dataclass(frozen=True)
class Point:
    """A figure, and its range over the rounds."""

    x: int | str
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """The points of one loader, in order."""

    name: str
    points: Sequence[Point]


def lines_of(points: Sequence[tuple[str, Point]]) -> list[Line]:
    """Return a line for each name among points."""
    names = dict.fromkeys(name for name, _ in points)
    return [Line(name, [point for own, point in points if own == name]) for name in names]


@dataclass(frozen=True)
class Panel:
    """One of several charts side by side."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]
    level: tuple[float, str] | None = None
    """The height of a dashed line across the chart, and its label."""
    joins: bool = True
    """False if the x values are not numbers, so that there is nothing between them."""


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return the panels as SVG, at most two in a row, below a title and a legend."""
    columns = min(2, len(panels))
    width, height = columns * _WIDTH, _HEAD + math.ceil(len(panels) / columns) * _HEIGHT
    names = dict.fromkeys(line.name for panel in panels for line in panel.lines)
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(16, 26, title, size=15),
    ]
    x = 16.0
    for name, colour in colours.items():
        parts += [_line([(x, 46), (x + 20, 46)], colour, 2.5), _text(x + 26, 50, name)]
        x += 44 + 6.2 * len(name)
    for place, panel in enumerate(panels):
        left, top = place % columns * _WIDTH, _HEAD + place // columns * _HEIGHT
        parts += [f'<g transform="translate({left} {top})">', *_panel(panel, colours), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, colours: dict[str, str]) -> list[str]:
    points = [point for line in panel.lines for point in line.points]
    xs = list(dict.fromkeys(point.x for point in points))
    if all(isinstance(x, int) for x in xs):
        xs.sort()
    ticks = _ticks(max([*(point.high for point in points), panel.level[0] if panel.level else 0.0]))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def across(x: int | str) -> float:  # numbers of workers double, so each gets the same width
        return round(_LEFT + (right - _LEFT) * (xs.index(x) + 0.5) / len(xs), 1)

    def up(y: float) -> float:
        return round(bottom - (bottom - _TOP) * y / ticks[-1], 1)

    middle = (_TOP + bottom) / 2
    parts = [
        _text(_LEFT, 20, panel.title, size=13),
        _text((_LEFT + right) / 2, _HEIGHT - 8, panel.x_title, "middle"),
        f'<g transform="translate(14 {middle}) rotate(-90)">{_text(0, 0, panel.y_title, "middle")}</g>',
        *(_text(across(x), bottom + 18, str(x), "middle") for x in xs),
    ]
    for tick in ticks:
        parts += [_line([(_LEFT, up(tick)), (right, up(tick))], _FAINT)]
        parts += [_text(_LEFT - 8, up(tick) + 4, f"{tick:,.10g}", "end")]
    if panel.level is not None:
        height, label = up(panel.level[0]), panel.level[1]
        parts += [_line([(_LEFT, height), (right, height)], _INK, dashes="5 4"), _text(right, height - 5, label, "end")]
    for line in panel.lines:
        colour = colours[line.name]
        if panel.joins:
            parts.append(_line([(across(point.x), up(point.y)) for point in line.points], colour, 2))
        for point in line.points:
            x = across(point.x)
            parts.append(_line([(x, up(point.low)), (x, up(point.high))], colour))
            shown = escape(f"{line.name}, {panel.x_title} {point.x}: {point.y:,.4g}")
            parts.append(f'<circle cx="{x}" cy="{up(point.y)}" r="3.5" fill="{colour}"><title>{shown}</title></circle>')
    return parts


def _line(places: Sequence[tuple[float, float]], colour: str, width: float = 1.0, dashes: str = "none") -> str:
    path = " ".join(f"{x},{y}" for x, y in places)
    drawn = f'stroke="{colour}" stroke-width="{width:g}" stroke-dasharray="{dashes}"'
    return f'<polyline points="{path}" fill="none" {drawn}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", *, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _ticks(highest: float) -> list[float]:
    """Return about five round numbers from 0 to the first one at or above `highest`.

    Example:
        >>> _ticks(870.0)
        [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]
    """
    raw = max(highest, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [round(place * size, 12) for place in range(math.ceil(highest / size * 0.999) + 1 if highest > 0 else 2)]
