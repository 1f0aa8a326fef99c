"""Draw rows that benchmarks wrote with `--json`: a point per loader and configuration, with the spread over the rounds.

    python -m benchmarks.plot w1.jsonl --figure batches_per_s --out w1.svg
    python -m benchmarks.plot w2.jsonl --figure gb_per_s --out w2.svg

The pictures are SVG files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from feedline.tools.measure import chart


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="rows written by a benchmark")
    parser.add_argument("--figure", default="batches_per_s", help="the figure to draw (batches_per_s)")
    parser.add_argument("--out", type=Path, required=True, help="image to write, as SVG")
    arguments = parser.parse_args(argv)
    lines = [line for file in arguments.files for line in file.read_text(encoding="utf-8").splitlines()]
    found = lines_of(lines, arguments.figure)
    if not found:
        parser.error(
            f"no summary in these files has a figure {arguments.figure!r}; there are: {', '.join(figures(lines))}"
        )
    panels = [chart.Panel(arguments.figure, title, arguments.figure, own, joins=False) for title, own in found.items()]
    title = " ".join(file.stem for file in arguments.files)
    arguments.out.write_text(chart.draw(title, panels), encoding="utf-8")
    return 0


def lines_of(lines: Iterable[str], figure: str) -> dict[str, list[chart.Line]]:
    """Pick one figure from all summaries that have it: a line for each loader, by the names of what is varied."""
    found: dict[str, dict[str, list[chart.Point]]] = {}
    for row in map(json.loads, lines):
        if row["kind"] == "summary" and (values := row["figures"].get(figure)):
            case = ", ".join(str(value) for value in row["case"].values())
            point = chart.Point(case, values["median"], values["low"], values["high"])
            found.setdefault(", ".join(row["case"]), {}).setdefault(row["side"], []).append(point)
    return {title: [chart.Line(side, points) for side, points in sides.items()] for title, sides in found.items()}


def figures(lines: Iterable[str]) -> list[str]:
    """List the figures the summaries have."""
    return sorted({name for row in map(json.loads, lines) if row["kind"] == "summary" for name in row["figures"]})


if __name__ == "__main__":
    sys.exit(main())
