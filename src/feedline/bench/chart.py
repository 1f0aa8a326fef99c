"""Lines and points as one SVG file that needs nothing else: rates against numbers of workers, for all loaders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_PANEL_W, _PANEL_H = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 18, 34, 46
_HEAD = 62
_COLOURS = {
    "torch": "#8b949e",
    "feedline/process": "#0b62d6",
    "feedline/thread": "#d4580b",
    "feedline/inline": "#1a8a3c",
    "feedline/auto": "#0b62d6",
}
_OTHERS = ("#7b3fb5", "#a3324f", "#00798c", "#d4580b", "#1a8a3c", "#8b949e")
_INK, _FAINT = "#24292f", "#e4e7eb"


@dataclass(frozen=True)
class Point:
    """A figure, and its range over the rounds."""

    x: int
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """The points of one loader, in order."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """One picture of several beside each other."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]
    level: tuple[float, str] | None = None
    """A dashed line across, and what it means."""
    marked: tuple[str, int] | None = None
    """The line and the x of a point that is ringed."""


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return the picture as SVG: the panels side by side, at most two in a row, below a title and a legend."""
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = columns * _PANEL_W, _HEAD + rows * _PANEL_H
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    others = [name for name in names if name not in _COLOURS]
    colours = {**_COLOURS, **{name: _OTHERS[place % len(_OTHERS)] for place, name in enumerate(others)}}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    x = 16.0
    for name in names:
        parts.append(f'<line x1="{x}" y1="46" x2="{x + 20}" y2="46" stroke="{colours[name]}" stroke-width="2.5"/>')
        parts.append(f'<circle cx="{x + 10}" cy="46" r="3.5" fill="{colours[name]}"/>')
        parts.append(f'<text x="{x + 26}" y="50">{escape(name)}</text>')
        x += 44 + 5.8 * len(name)
    for place, panel in enumerate(panels):
        left, top = place % columns * _PANEL_W, _HEAD + place // columns * _PANEL_H
        parts.append(f'<g transform="translate({left} {top})">')
        parts += _panel(panel, colours)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, colours: dict[str, str]) -> list[str]:
    xs = sorted({point.x for line in panel.lines for point in line.points})
    tops = [point.high for line in panel.lines for point in line.points]
    ticks = _ticks(max([*tops, panel.level[0] if panel.level else 0.0]))
    inner_w, inner_h = _PANEL_W - _LEFT - _RIGHT, _PANEL_H - _TOP - _BOTTOM

    def across(x: int) -> float:  # numbers of workers double, so each gets the same room
        return round(_LEFT + inner_w * (xs.index(x) + 0.5) / len(xs), 1)

    def up(y: float) -> float:
        return round(_TOP + inner_h * (1 - y / ticks[-1]), 1)

    parts = [f'<text x="{_LEFT}" y="20" font-weight="600">{escape(panel.title)}</text>']
    for tick in ticks:
        parts.append(f'<line x1="{_LEFT}" y1="{up(tick)}" x2="{_PANEL_W - _RIGHT}" y2="{up(tick)}" stroke="{_FAINT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{up(tick) + 4}" text-anchor="end">{tick:,.10g}</text>')
    parts += [f'<text x="{across(x)}" y="{_PANEL_H - _BOTTOM + 18}" text-anchor="middle">{x}</text>' for x in xs]
    middle = _LEFT + inner_w / 2
    parts.append(f'<text x="{middle}" y="{_PANEL_H - 8}" text-anchor="middle">{escape(panel.x_title)}</text>')
    parts.append(
        f'<text transform="translate(14 {_TOP + inner_h / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.y_title)}</text>"
    )
    if panel.level is not None:
        y = up(panel.level[0])
        parts.append(
            f'<line x1="{_LEFT}" y1="{y}" x2="{_PANEL_W - _RIGHT}" y2="{y}" stroke="{_INK}" stroke-dasharray="5 4"/>'
        )
        parts.append(f'<text x="{_PANEL_W - _RIGHT}" y="{y - 5}" text-anchor="end">{escape(panel.level[1])}</text>')
    for line in panel.lines:
        colour = colours[line.name]
        places = [(across(point.x), up(point.y), point) for point in line.points]
        path = " ".join(f"{x},{y}" for x, y, _ in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, point in places:
            if point.low < point.high:
                parts.append(f'<line x1="{x}" y1="{up(point.low)}" x2="{x}" y2="{up(point.high)}" stroke="{colour}"/>')
            told = f"{line.name}, {panel.x_title} {point.x}: {point.y:,.4g}"
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"><title>{escape(told)}</title></circle>')
            if panel.marked == (line.name, point.x):
                parts.append(f'<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="{_INK}" stroke-width="1.5"/>')
    return parts


def _ticks(highest: float) -> list[float]:
    """Return about five round numbers from 0 to the first that is not below the highest.

    Example:
        >>> _ticks(870.0)
        [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]
    """
    raw = max(highest, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [round(place * size, 12) for place in range(math.ceil(highest / size * 0.999) + 1 if highest > 0 else 2)]
