from __future__ import annotations

import importlib
import json
import re
import subprocess
from argparse import Namespace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from feedline.errors import InternalError
from feedline.tools.cli import bench
from feedline.tools.cli.main import main
from feedline.tools.measure import jpegs
from feedline.tools.measure.harness import Side
from tests import program_server

OWN = Path(__file__).parent / "own_datasets.py"
PROGRAM = """
import os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with a GPU, there would also be rows with pinned memory
from feedline.tools.measure import sweep
from feedline.tools.cli.main import main
sweep._LONGEST_S = 0.05  # per setting, regardless of --seconds
sys.exit(main())
"""


@pytest.mark.slow
def test_quick_set_covers_inline_transport_and_images(tmp_path: Path) -> None:
    jpegs.write_jpegs(4, tmp_path / "images")
    flags = Namespace(seconds=0.1, warmup=8)
    entries = bench.quick_set(sorted((tmp_path / "images").iterdir()), flags)
    assert [entry.side.library for entry in entries] == ["torch", "feedline"] * 4
    assert [(entry.case["data"], entry.case["workers"]) for entry in entries[::2]] == [
        ("tiny", 0),
        ("tiny", 2),
        ("38 MB", 2),
        ("JPEG", 2),
    ]


def test_different_batches_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Side, "open", lambda side, *_, **__: [torch.full((2,), float(side.library == "torch"))])
    with pytest.raises(InternalError, match="'tiny', feedline's first batch differs"):
        bench.check_equal_batches("tiny", [0], 1)


@pytest.mark.slow
def test_plot_draws_the_rows_that_bench_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json", "--rounds", "1", "--seconds", "0.05"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text.splitlines()[0])["kind"] == "machine"
    plot = importlib.import_module("benchmarks.plot")
    (lines,) = plot.lines_of(text.splitlines(), "samples_per_s").values()
    assert {line.name for line in lines} == {"torch", "feedline/inline", "feedline/auto"}
    points = [point for line in lines for point in line.points]
    assert len(points) == 8
    assert all(point.y > 0 for point in points)


# -- the user's own dataset --------------------------------------------------------------------------------------------


def run_bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return program_server.run(PROGRAM, "bench", *arguments)


def test_a_user_dataset_is_measured_beside_torch(tmp_path: Path) -> None:
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "bench.svg"
    done = run_bench(
        f"{OWN}:Sleeping", "--batch-size", 5, "--workers", 0, 2, "--rounds", 1, "--seconds", 100, "--json", rows,
        "--plot", picture,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for head in ("samples/s", "x torch", "per 1,000", "peak PSS"):
        assert head in done.stdout
    plot = importlib.import_module("benchmarks.plot")
    lines = plot.lines_of(rows.read_text().splitlines(), "samples_per_s")["workers"]
    rates = {(point.x, line.name): point.y for line in lines for point in line.points}
    engines = ("torch", "feedline/process", "feedline/thread")
    assert set(rates) == {("0", "torch"), ("0", "feedline/inline")} | {("2", engine) for engine in engines}
    assert all(rate > 0 for rate in rates.values())
    texts = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"torch", *engines, "workers", "samples/s", "Memory of all processes"} <= set(texts)


def test_a_user_loader_is_measured_with_every_prefetch_factor(tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    done = run_bench(
        f"{OWN}:loader", "--workers", 1, "--prefetch", 1, 2, "--engine", "thread", "--rounds", 1, "--seconds", 100,
        "--plot", picture, "--json",
    )  # fmt: skip
    texts = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"prefetch 1", "prefetch 2", "prefetch factor, with 1 workers"} <= set(texts)
    assert (done.returncode, done.stderr) == (0, "")
    found = [row for row in map(json.loads, done.stdout.splitlines()) if row["kind"] == "summary"]
    assert [(row["case"]["prefetch"], row["side"]) for row in found] == [
        (1, "torch"),
        (1, "feedline/thread"),
        (2, "torch"),
        (2, "feedline/thread"),
    ]


def test_a_setting_that_raises_is_skipped_and_the_others_are_measured() -> None:
    done = run_bench(f"{OWN}:RaisingInWorkers", "--workers", 0, 1, "--rounds", 1, "--seconds", 100, "--json")
    assert done.returncode == 0
    sides = {row["side"] for row in map(json.loads, done.stdout.splitlines()) if row["kind"] == "summary"}
    assert sides == {"torch", "feedline/inline", "feedline/thread"}
    (skipped,) = re.findall("^Skipped .*", done.stderr, re.MULTILINE)
    assert skipped.endswith(" workers=1: OSError: the file is locked")
    assert "torch workers=1" in skipped
    assert "feedline/process workers=1" in skipped
