"""Draws figures against numbers of workers as an SVG file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from feedline.tools.measure.harness import Spread

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 18, 34, 46
_HEAD = 62
_COLOURS = ("#8b949e", "#0b62d6", "#d4580b", "#1a8a3c", "#7b3fb5", "#a3324f", "#00798c")
_INK, _FAINT = "#24292f", "#e4e7eb"


@dataclass(frozen=True)
class Panel:
    """One of several charts side by side: a line for each name, with a spread at each number of workers."""

    title: str
    unit: str
    lines: Mapping[str, Mapping[int, Spread]]


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return the panels as SVG, side by side below a title and a legend."""
    width, height = len(panels) * _WIDTH, _HEAD + _HEIGHT
    names = dict.fromkeys(name for panel in panels for name in panel.lines)
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{_text(16, 26, title, size=15)}',
    ]
    x = 16.0
    for name, colour in colours.items():
        parts.append(_line([(x, 46), (x + 20, 46)], colour, 2.5) + _text(x + 26, 50, name))
        x += 44 + 6.2 * len(name)
    for place, panel in enumerate(panels):
        parts.append(f'<g transform="translate({place * _WIDTH} {_HEAD})">{"".join(_panel(panel, colours))}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    xs = sorted({x for line in panel.lines.values() for x in line})
    ticks = _ticks(max(spread.high for line in panel.lines.values() for spread in line.values()))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at(x: int, y: float) -> tuple[float, float]:  # numbers of workers double, so each gets the same width
        across = _LEFT + (right - _LEFT) * (xs.index(x) + 0.5) / len(xs)
        return round(across, 1), round(bottom - (bottom - _TOP) * y / ticks[-1], 1)

    yield _text(_LEFT, 20, f"{panel.title}, {panel.unit}", size=13)
    yield _text((_LEFT + right) / 2, _HEIGHT - 8, "workers", "middle")
    yield from (_text(at(x, 0)[0], bottom + 18, str(x), "middle") for x in xs)
    for tick in ticks:
        _, y = at(xs[0], tick)
        yield _line([(_LEFT, y), (right, y)], _FAINT) + _text(_LEFT - 8, y + 4, f"{tick:,.10g}", "end")
    for name, line in panel.lines.items():
        yield _line([at(x, line[x].median) for x in sorted(line)], colours[name], 2)
        for x, spread in line.items():
            (cx, cy), shown = at(x, spread.median), f"{name}, {x} workers: {spread.median:,.4g} {panel.unit}"
            yield _line([at(x, spread.low), at(x, spread.high)], colours[name])
            yield f'<circle cx="{cx}" cy="{cy}" r="3.5" fill="{colours[name]}"><title>{escape(shown)}</title></circle>'


def _line(places: Sequence[tuple[float, float]], colour: str, width: float = 1.0) -> str:
    path = " ".join(f"{x},{y}" for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


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
    return [round(place * size, 12) for place in range(max(1, math.ceil(highest / size * 0.999)) + 1)]
