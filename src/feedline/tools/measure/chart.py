"""Draws lines and points as a self-contained SVG or PNG file: rates of loaders against numbers of workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from feedline.system.optional import require

if TYPE_CHECKING:
    from PIL.Image import Image

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
    marked: tuple[str, int] | None = None
    """The line and the x of a point to mark with a ring."""
    joins: bool = True
    """False if the x values are not numbers, so that there is nothing between them."""


def write(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write a plot to a file; its extension, .svg or .png, selects the format.

    Raises:
        MissingExtra: a PNG needs Pillow, which is not installed.
    """
    if path.suffix == ".png":
        canvas = _Png()
        _draw(canvas, title, panels)
        canvas.image().save(path)
    else:
        path.write_text(draw(title, panels), encoding="utf-8")


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return the plot as SVG: the panels side by side, at most two in a row, below a title and a legend."""
    canvas = _Svg()
    _draw(canvas, title, panels)
    return "\n".join([*canvas.parts, "</g>", "</svg>\n"])


Place = tuple[float, float]


class _Canvas(Protocol):
    """The drawing operations. Coordinates count from the upper left corner of a panel."""

    def open(self, width: int, height: int, title: str) -> None: ...

    def move_to(self, left: int, top: int) -> None:
        """Start a panel."""

    def line(self, places: Sequence[Place], colour: str, width: float = 1.0, *, dashed: bool = False) -> None: ...

    def dot(self, place: Place, colour: str, tooltip: str = "") -> None:
        """Draw a point; `tooltip` is its tooltip, where the format has tooltips."""

    def ring(self, place: Place) -> None: ...

    def text(
        self, place: Place, text: str, anchor: str = "start", *, size: int = 12, bold: bool = False, up: bool = False
    ) -> None:
        """Write text that starts, ends or is centred at a place; upwards if `up`."""


class _Svg:
    """Writes elements of SVG."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def open(self, width: int, height: int, title: str) -> None:
        self.parts += [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            "<g>",
        ]

    def move_to(self, left: int, top: int) -> None:
        self.parts += ["</g>", f'<g transform="translate({left} {top})">']

    def line(self, places: Sequence[Place], colour: str, width: float = 1.0, *, dashed: bool = False) -> None:
        path = " ".join(f"{x},{y}" for x, y in places)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashes}/>')

    def dot(self, place: Place, colour: str, tooltip: str = "") -> None:
        x, y = place
        self.parts.append(
            f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"><title>{escape(tooltip)}</title></circle>'
        )

    def ring(self, place: Place) -> None:
        x, y = place
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="{_INK}" stroke-width="1.5"/>')

    def text(
        self, place: Place, text: str, anchor: str = "start", *, size: int = 12, bold: bool = False, up: bool = False
    ) -> None:
        x, y = place
        where = f'transform="translate({x} {y}) rotate(-90)"' if up else f'x="{x}" y="{y}"'
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(f'<text {where} text-anchor="{anchor}" font-size="{size}"{weight}>{escape(text)}</text>')


class _Png:
    """Draws with Pillow at a larger size and scales the image down at the end, which makes lines smooth."""

    _FINE, _SHOWN = 4, 2

    def __init__(self) -> None:
        for name in ("Image", "ImageDraw", "ImageFont"):
            require(f"PIL.{name}", extra="demo", purpose="drawing a PNG")

    def open(self, width: int, height: int, title: str) -> None:
        from PIL import Image, ImageDraw

        self._image = Image.new("RGB", (width * self._FINE, height * self._FINE), "#ffffff")
        self._pen = ImageDraw.Draw(self._image)
        self._origin = (0, 0)

    def image(self) -> Image:
        """Return the finished image."""
        width, height = (size * self._SHOWN // self._FINE for size in self._image.size)
        return self._image.resize((width, height))

    def move_to(self, left: int, top: int) -> None:
        self._origin = left, top

    def _at(self, place: Place) -> Place:
        return (place[0] + self._origin[0]) * self._FINE, (place[1] + self._origin[1]) * self._FINE

    def line(self, places: Sequence[Place], colour: str, width: float = 1.0, *, dashed: bool = False) -> None:
        points = [self._at(place) for place in places]
        if dashed:  # Pillow has no dashed lines
            (left, y), (right, _) = points
            step = 9 * self._FINE
            for x in range(int(left), int(right), step):
                self._pen.line([(x, y), (min(x + 5 * self._FINE, right), y)], colour, round(width * self._FINE))
        elif len(points) > 1:
            self._pen.line(points, colour, round(width * self._FINE), joint="curve")

    def dot(self, place: Place, colour: str, tooltip: str = "") -> None:
        self._pen.circle(self._at(place), 3.5 * self._FINE, colour)

    def ring(self, place: Place) -> None:
        self._pen.circle(self._at(place), 8 * self._FINE, outline=_INK, width=round(1.5 * self._FINE))

    def text(
        self, place: Place, text: str, anchor: str = "start", *, size: int = 12, bold: bool = False, up: bool = False
    ) -> None:
        from PIL import Image, ImageDraw, ImageFont

        font, (x, y) = ImageFont.load_default(size * self._FINE), self._at(place)
        stroke = self._FINE // 4 if bold else 0
        if not up:
            sides = {"start": "l", "middle": "m", "end": "r"}
            self._pen.text((x, y), text, _INK, font, anchor=f"{sides[anchor]}s", stroke_width=stroke)
            return
        width, height = round(self._pen.textlength(text, font)), 2 * size * self._FINE
        written = Image.new("L", (width, height), 0)
        ImageDraw.Draw(written).text((0, height * 3 // 4), text, 255, font, anchor="ls")
        turned = written.rotate(90, expand=True)
        self._image.paste(_INK, (round(x) - height * 3 // 4, round(y) - width // 2), turned)


def _draw(canvas: _Canvas, title: str, panels: Sequence[Panel]) -> None:
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    others = [name for name in names if name not in _COLOURS]
    colours = {**_COLOURS, **{name: _OTHERS[place % len(_OTHERS)] for place, name in enumerate(others)}}
    canvas.open(columns * _PANEL_W, _HEAD + rows * _PANEL_H, title)
    canvas.text((16, 26), title, size=15, bold=True)
    x = 16.0
    for name in names:
        canvas.line([(x, 46), (x + 20, 46)], colours[name], 2.5)
        canvas.dot((x + 10, 46), colours[name])
        canvas.text((x + 26, 50), name)
        x += 44 + 6.2 * len(name)
    for place, panel in enumerate(panels):
        canvas.move_to(place % columns * _PANEL_W, _HEAD + place // columns * _PANEL_H)
        _draw_panel(canvas, panel, colours)


def _draw_panel(canvas: _Canvas, panel: Panel, colours: dict[str, str]) -> None:
    xs = list(dict.fromkeys(point.x for line in panel.lines for point in line.points))
    if all(isinstance(x, int) for x in xs):
        xs.sort()
    tops = [point.high for line in panel.lines for point in line.points]
    ticks = _ticks(max([*tops, panel.level[0] if panel.level else 0.0]))
    inner_w, inner_h = _PANEL_W - _LEFT - _RIGHT, _PANEL_H - _TOP - _BOTTOM

    def across(x: int | str) -> float:  # numbers of workers double, so each gets the same width
        return round(_LEFT + inner_w * (xs.index(x) + 0.5) / len(xs), 1)

    def up(y: float) -> float:
        return round(_TOP + inner_h * (1 - y / ticks[-1]), 1)

    def level(y: float, colour: str, *, dashed: bool = False) -> None:
        canvas.line([(_LEFT, up(y)), (_PANEL_W - _RIGHT, up(y))], colour, dashed=dashed)

    canvas.text((_LEFT, 20), panel.title, bold=True)
    for tick in ticks:
        level(tick, _FAINT)
        canvas.text((_LEFT - 8, up(tick) + 4), f"{tick:,.10g}", "end")
    for x in xs:
        canvas.text((across(x), _PANEL_H - _BOTTOM + 18), str(x), "middle")
    canvas.text((_LEFT + inner_w / 2, _PANEL_H - 8), panel.x_title, "middle")
    canvas.text((14, _TOP + inner_h / 2), panel.y_title, "middle", up=True)
    if panel.level is not None:
        level(panel.level[0], _INK, dashed=True)
        canvas.text((_PANEL_W - _RIGHT, up(panel.level[0]) - 5), panel.level[1], "end")
    for line in panel.lines:
        places = [(across(point.x), up(point.y)) for point in line.points]
        if panel.joins:
            canvas.line(places, colours[line.name], 2)
        for place, point in zip(places, line.points, strict=True):
            if point.low < point.high:
                canvas.line([(place[0], up(point.low)), (place[0], up(point.high))], colours[line.name])
            canvas.dot(place, colours[line.name], f"{line.name}, {panel.x_title} {point.x}: {point.y:,.4g}")
            if panel.marked == (line.name, point.x):
                canvas.ring(place)


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
