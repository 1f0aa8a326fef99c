"""The demo trains with both loaders, compares them, and writes a report of that run."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import program_server

PROGRAM = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from feedline.tools.measure.workloads import ReadySamples, TinyMap
from feedline.tools.cli import demo
demo.ROUNDS.rounds, demo.ROUNDS.seconds = 1, 0.02
demo.TinyMap = lambda _: TinyMap(20_000)
demo.ReadySamples = lambda length: ReadySamples(length, shape=(3, 7, 7))
from feedline.tools.cli.main import main
sys.exit(main(["demo", "--images", "64"]))
"""
IMAGES, BATCHES = 64, 4


class Ran(NamedTuple):
    """The output of a demo, and the folder it ran in."""

    out: str
    folder: Path

    def cells(self) -> list[list[str]]:
        """The rows of the table; two or more spaces separate cells."""
        lines = self.out.partition("Median of")[2].partition("again: images")[0].splitlines()[3:]
        return [re.split(r"\s{2,}", line.strip()) for line in lines]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "scratch").mkdir()
    done = program_server.run(PROGRAM, folder / "scratch", cwd=folder, timeout_s=900)
    assert (done.returncode, done.stderr) == (0, "")
    return Ran(done.stdout, folder)


def check_rows(rows: list[list[str]]) -> None:
    names, torchs, ours = zip(*(row[:3] for row in rows), strict=True)
    assert [name.split(" ")[0] for name in names] == ["train:", "waiting", "peak", "tiny", "9.6", "resume", "a"]
    assert re.fullmatch(r"[\d.]+ s, 48 again", torchs[5])
    assert re.fullmatch(r"[\d.]+ s, 0 again", ours[5])
    assert re.fullmatch(r"\w+Error at \d+", torchs[6])
    assert ours[6] == f"all {IMAGES} images"
    assert [len(row) for row in rows] == [4, 3, 4, 4, 4, 4, 3]  # rows that have a ratio have one cell more


def test_progress_and_figures_of_both_loaders_are_printed(ran: Ran) -> None:
    epochs = re.findall(r"epoch 1  (\w+) .* 4/4 +[\d,]+ images/s, waits \d+ %, accuracy \d+ %", ran.out)
    assert epochs == ["torch", "feedline"]
    assert "\x1b" not in ran.out
    check_rows(ran.cells())


def test_only_the_report_of_this_run_is_left_behind(ran: Ran) -> None:
    assert sorted(path.name for path in ran.folder.iterdir()) == ["feedline-demo.html", "scratch"]
    assert list((ran.folder / "scratch").iterdir()) == []
    page = (ran.folder / "feedline-demo.html").read_text("utf-8")
    assert ran.out.split()[-1] == (ran.folder / "feedline-demo.html").as_uri()
    text = page.partition('type="application/octet-stream">')[2].partition("</script>")[0]
    shown = json.loads(zlib.decompress(base64.b64decode(text)))
    assert [[cell.strip() for cell in row if cell] for row in shown["compared"]["rows"]] == ran.cells()
    assert (shown["settings"]["engine"], shown["settings"]["workers"]) == ("process", 2)
    assert len(shown["rows"]["got"]) == BATCHES, "the warm-up is not recorded"
