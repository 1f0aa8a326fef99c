"""Draw the figures of the chapter about the device: how a copy reaches the GPU, and what overlaps with it.

python docs/learn/figures/device.py [measured.json]

With the output of `docs/learn/experiments/device.py` as its argument, it also draws the measured rates and writes the
numbers into the page: each behind its mark `<!-- figure: device.<key> -->`, in the place of what was there.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from svg import COLOURS, GRID, Axes, Figure

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "learn"
PAGE = Path(__file__).resolve().parents[1] / "device.md"
RECORDED = Path(__file__).resolve().parents[3] / "src" / "feedline" / "tools" / "lab" / "recorded" / "transfer.json"
BLUE, AMBER, GREEN, RED, VIOLET, GREY = COLOURS


def box(figure: Figure, x: float, y: float, width: float, words: tuple[str, ...], colour: str) -> None:
    """Draw a box with lines of text."""
    figure.rect(x, y, width, 54, colour, opacity=0.16)
    for number, line in enumerate(words):
        figure.text(x + width / 2, y + (32 if len(words) == 1 else 23) + 18 * number, line, anchor="middle", size=12)


def arrow(figure: Figure, x0: float, x1: float, y: float, words: str, colour: str) -> None:
    """Draw an arrow from left to right, with words above it."""
    figure.line([(x0, y), (x1, y)], colour, width=3)
    figure.line([(x1 - 8, y - 5), (x1, y), (x1 - 8, y + 5)], colour, width=3)
    figure.text((x0 + x1) / 2, y - 9, words, anchor="middle", size=12, colour=colour)


def paths() -> None:
    """Draw the way of a batch from pageable and from pinned memory."""
    figure = Figure("How a batch gets to the GPU", height=300)
    figure.text(24, 30, "From pageable memory: the CPU copies into a pinned buffer, piece by piece", bold=True)
    box(figure, 24, 50, 150, ("your tensor", "(pageable)"), GREY)
    arrow(figure, 180, 296, 78, "CPU copies", RED)
    box(figure, 302, 50, 150, ("the driver's buffer", "(pinned, small)"), AMBER)
    arrow(figure, 458, 556, 78, "DMA", BLUE)
    box(figure, 562, 50, 134, ("GPU memory",), GREEN)
    figure.text(
        24, 130, "The calling thread works for the whole copy. It returns when the last piece is staged.", size=12
    )
    figure.line([(24, 150), (696, 150)], GRID, width=1)
    figure.text(24, 184, "From pinned memory: the GPU's copy engine reads your tensor itself", bold=True)
    box(figure, 24, 204, 150, ("your tensor", "(pinned)"), AMBER)
    arrow(figure, 180, 556, 232, "DMA, at the full rate of the link", BLUE)
    box(figure, 562, 204, 134, ("GPU memory",), GREEN)
    figure.text(24, 284, "The calling thread only leaves an order. With non_blocking=True it goes on at once.", size=12)
    figure.save(ASSETS / "device-paths.svg")


def bars(figure: Figure, y: float, name: str, parts: tuple[tuple[float, float, str, str], ...]) -> None:
    """Draw one lane: (begin, length, colour, words) in units of the axis."""
    figure.text(128, y + 17, name, anchor="end", size=12)
    for begin, length, colour, words in parts:
        x, width = 138 + begin * 22, length * 22 - 2
        figure.rect(x, y, width, 24, colour, opacity=0.85)
        if width > 14:
            figure.text(x + width / 2, y + 17, words, anchor="middle", size=12, colour="#ffffff")


def schedules() -> None:
    """Draw three ways to bring batches to a GPU: a copy takes 3 units, a step 5, starting either next to nothing."""
    figure = Figure("Three ways to bring batches to a GPU", height=440)
    figure.text(24, 30, ".to(device): the CPU waits for the copy, the copy waits for the step before it", bold=True)
    copies = tuple((8 * n, 3.0, BLUE, f"copy {n}") for n in range(3))
    steps = tuple((8 * n + 3, 5.0, GREEN, f"step {n}") for n in range(3))
    waits = tuple((8 * n - 5 if n else 0, 8.0 if n else 3.0, RED, "waits") for n in range(3))
    bars(figure, 44, "CPU", waits)
    bars(figure, 72, "copy engine", copies)
    bars(figure, 100, "GPU", steps)
    figure.text(
        24, 164, "Pinned and non_blocking, one stream: the CPU is free, but copy and step still take turns", bold=True
    )
    bars(figure, 178, "CPU", ((0, 0.8, GREY, ""), (1, 0.8, GREY, ""), (2, 0.8, GREY, "")))
    bars(figure, 206, "copy engine", copies)
    bars(figure, 234, "GPU", steps)
    figure.text(24, 298, "A stream of its own for copies: the next copy runs beside the step", bold=True)
    beside = tuple((begin, 3.0, BLUE, f"copy {n}") for n, begin in enumerate((0, 3, 8, 13, 18)))
    bars(figure, 312, "CPU", ((0, 0.8, GREY, ""), (3, 0.8, GREY, ""), (8, 0.8, GREY, ""), (13, 0.8, GREY, "")))
    bars(figure, 340, "copy engine", beside)
    bars(figure, 368, "GPU", tuple((3 + 5 * n, 5.0, GREEN, f"step {n}") for n in range(4)))
    figure.text(
        138,
        420,
        "time: a copy takes 3 units here, a step 5. The third way needs 5 units per step, the others 8.",
        size=12,
    )
    figure.save(ASSETS / "device-schedules.svg")


def rates(measured: dict[str, Any]) -> None:
    """Draw GB/s against the size of the copy."""
    sizes = [float(size) for size in measured]
    top = max(row["pinned_gb_s"] for row in measured.values())
    ceiling = math.ceil(top / 10) * 10
    figure = Figure("Host to device: pageable against pinned memory", height=320)
    axes = Axes(
        figure,
        x=(math.log10(min(sizes)) - 0.2, math.log10(max(sizes)) + 0.2),
        y=(0, ceiling),
        x_label="size of the copy, MB",
        y_label="GB/s, host to device",
    )
    axes.y_ticks([(value, str(value)) for value in range(0, ceiling + 1, 10)])
    axes.x_ticks([(math.log10(size), f"{size:g}") for size in sizes])
    for name, colour in (("pinned", BLUE), ("pageable", RED)):
        points = [(math.log10(float(size)), row[f"{name}_gb_s"]) for size, row in measured.items()]
        axes.curve(points, colour, dots=True)
        x, y = axes.at(*points[-1])
        figure.text(x - 4, y - 12, name, anchor="end", colour=colour, bold=True)
    figure.save(ASSETS / "device-rates.svg")


def ways() -> None:
    """Draw how close training comes to its rate without copies, from the run on an H200 that the lab shows."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    figure = Figure("Training rate by length of the step and way of copying", height=330)
    axes = Axes(
        figure,
        x=(0, 13),
        y=(0, 100),
        x_label="length of a training step, ms",
        y_label="training rate, % of the rate of steps without copies; batches of 38.5 MB on an H200",
    )
    axes.y_ticks([(value, str(value)) for value in range(0, 101, 20)])
    axes.x_ticks([(one["step_ms"], str(one["step_ms"])) for one in recorded])
    names = {"pageable": (RED, 70), "pinned": (AMBER, 84), "device=": (GREEN, 101)}
    for way, (colour, label) in names.items():
        shares = [(one["step_ms"], 100 * one["ways"][way]["samples_per_s"] / one["alone_per_s"]) for one in recorded]
        axes.curve(shares, colour, dots=True)
        x, y = axes.at(12.9, label)
        words = {"pageable": "pageable", "pinned": "pinned", "device=": "side stream (device=)"}[way]
        figure.text(x, y + (14 if way == "pageable" else 4), words, anchor="end", colour=colour, bold=True)
    figure.save(ASSETS / "device-ways.svg")


def number(value: Any) -> str:
    """Return a measurement with no more digits than it deserves."""
    if not isinstance(value, (int, float)):
        return "not measured"
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.2g}"


def fill(measured: dict[str, Any]) -> None:
    """Write the numbers into the page."""
    machine, decode = measured["machine"], measured["decode"]
    words = {
        "machine": f"These were taken on an {machine['gpu']} with {machine['cores']} cores "
        f"(Python {machine['python']}, torch {machine['torch']}).",
        "rates_picture": "![Rates of copies, pageable and pinned memory](../assets/learn/device-rates.svg)",
        "decode": ""
        if "failed" in decode
        else f"Without a loader, one core decodes {number(decode['cpu_one_core_images_s'])} JPEG files of "
        f"500 x 375 pixels ({decode['file_kb']:.0f} KB) a second with torchvision, the GPU "
        f"{number(decode['gpu_images_s'])}.",
    }

    def value(key: str) -> str:
        if key in words:
            return words[key]
        part, _, rest = key.partition(".")
        found: Any = measured[part]
        if part == "rates":
            size, _, name = rest.rpartition(".")
            return number(found[size][name]) + ("x" if name == "ratio" else "")
        for name in rest.split("."):
            found = found.get(name)
        return number(found)

    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(
        r"(<!-- figure: device\.(\S+) -->)[^|\n]*?(?= \||$)",
        lambda mark: mark[1] + value(mark[2]),
        text,
        flags=re.MULTILINE,
    )
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    paths()
    schedules()
    ways()
    if len(sys.argv) > 1:
        found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        rates(found["rates"])
        fill(found)
