"""Draws docs/assets/report.png, the page of a recorded run: `python -m docs.building.report_picture`, in Chromium.

The run is kept beside this file, with the advice that the picture shows: a test fails once feedline says something else
about the run. With `--record` the script records the run anew; do that on a quiet machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import feedline
from feedline.insight.recording import Recording
from feedline.tools.advise import page

HERE = Path(__file__).parent
RUN = HERE / "report_run.json.gz"
ADVICE = HERE / "report_advice.txt"
PICTURE = HERE.parent / "assets" / "report.png"
WIDTH, HEIGHT = 1100, 990


class Photos:
    """Samples of 1.5 ms, of which one in a thousand takes 200 ms, as over a network."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> int:
        with feedline.stage("read"):
            time.sleep(0.2 if index % 997 == 0 else 0.0015)
        return index


def record() -> None:
    """Record an epoch of the run that the picture shows."""
    loader = feedline.Loader(Photos(), 16, shuffle=True, workers=2)
    with feedline.record(loader, RUN):
        for _ in loader:
            time.sleep(0.007)


def advice() -> str:
    """Return the verdict and the advice that the page of the run shows now."""
    shown = page.contents(Recording.load(RUN))
    parts = [shown["verdict"], *(one["text"] for one in shown["advice"])]
    return "\n\n".join(textwrap.fill(part, 100) for part in parts) + "\n"


def draw() -> None:
    """Write the picture, and the advice that it shows."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("The picture needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(page.page_of(page.contents(Recording.load(RUN))), "utf-8")
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000")
        size = (f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE}")
        subprocess.run([chromium, *options, *size, path.as_uri()], check=True, capture_output=True, timeout=120)
    ADVICE.write_text(advice(), "utf-8")


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        record()
    draw()
