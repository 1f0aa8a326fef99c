"""Draw what benchmarks wrote with `--json`: bars for each configuration, side by side, with the spread over the rounds.

    python -m benchmarks.plot w1.jsonl --figure batches_per_s --out w1.png
    python -m benchmarks.plot w2.jsonl --figure gb_per_s --out w2.svg

Needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bar:
    """One figure of one configuration."""

    case: str
    side: str
    median: float
    low: float
    high: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="rows written by a benchmark")
    parser.add_argument("--figure", default="batches_per_s", help="the figure to draw (batches_per_s)")
    parser.add_argument("--out", type=Path, required=True, help="image to write; its ending chooses the format")
    arguments = parser.parse_args(argv)
    lines = [line for file in arguments.files for line in file.read_text(encoding="utf-8").splitlines()]
    found = bars(lines, arguments.figure)
    if not found:
        parser.error(
            f"no summary in these files has a figure {arguments.figure!r}; there are: {', '.join(figures(lines))}"
        )
    try:
        draw(found, arguments.figure, arguments.out)
    except ModuleNotFoundError as exc:
        if exc.name != "matplotlib":
            raise
        parser.error("plotting needs matplotlib: python -m pip install matplotlib")
    return 0


def bars(lines: Iterable[str], figure: str) -> list[Bar]:
    """Pick one figure from all summaries that have it."""
    found = []
    for row in map(json.loads, lines):
        if row["kind"] == "summary" and (values := row["figures"].get(figure)):
            case = "\n".join(f"{name} {value}" for name, value in row["case"].items())
            found.append(Bar(case, row["side"], values["median"], values["low"], values["high"]))
    return found


def figures(lines: Iterable[str]) -> list[str]:
    """List the figures the summaries have."""
    return sorted({name for row in map(json.loads, lines) if row["kind"] == "summary" for name in row["figures"]})


def draw(found: Sequence[Bar], figure: str, out: Path) -> None:
    """Write the image."""
    importlib.import_module("matplotlib").use("Agg")  # by name: type checking needs no matplotlib either
    pyplot = importlib.import_module("matplotlib.pyplot")
    cases = list(dict.fromkeys(bar.case for bar in found))
    sides = list(dict.fromkeys(bar.side for bar in found))
    width = 0.8 / len(sides)
    picture, axes = pyplot.subplots(figsize=(2 + 1.2 * len(cases), 4.5), layout="constrained")
    for place, side in enumerate(sides):
        own = [bar for bar in found if bar.side == side]
        axes.bar(
            [cases.index(bar.case) + (place - (len(sides) - 1) / 2) * width for bar in own],
            [bar.median for bar in own],
            width,
            yerr=([bar.median - bar.low for bar in own], [bar.high - bar.median for bar in own]),
            label=side,
            capsize=2,
        )
    axes.set_xticks(range(len(cases)), cases)
    axes.set_ylabel(figure)
    axes.legend()
    picture.savefig(out)
    pyplot.close(picture)


if __name__ == "__main__":
    sys.exit(main())
