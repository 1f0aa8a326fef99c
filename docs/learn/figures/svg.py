"""Draw the course's figures: a few marks on a white card, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#64748b")
INK = "#1e293b"
GRID = "#e2e8f0"


class Figure:
    """An SVG picture that is drawn from left to right and from top to bottom, in pixels."""

    def __init__(self, title: str, *, width: int = 720, height: int = 360) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._marks: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, colour: str, *, opacity: float = 1) -> None:
        self._marks.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
            f'fill="{colour}" fill-opacity="{opacity}"/>'
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str, *, width: float = 2, dashes: str = "") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>')

    def dot(self, x: float, y: float, colour: str, *, radius: float = 4) -> None:
        self._marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        anchor: str = "start",
        size: int = 13,
        colour: str = INK,
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._marks.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{weight}>'
            f"{escape(words)}</text>"
        )

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        body = "\n".join(self._marks)
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="system-ui, sans-serif">\n'
            f"<title>{escape(self._title)}</title>\n"
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="#ffffff" stroke="{GRID}"/>\n'
            f"{body}\n</svg>\n",
            encoding="utf-8",
        )
