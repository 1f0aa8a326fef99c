from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from feedline.bench.harness import Side
from feedline.cli import bench
from feedline.cli.main import main
from feedline.cli.pictures import PictureDataset, write_pictures
from feedline.errors import InternalError


def test_quick_set_covers_inline_transport_and_images(tmp_path: Path) -> None:
    write_pictures(tmp_path, 32)
    flags = Namespace(seconds=0.1, warmup=8)
    entries = bench.quick_set(PictureDataset(tmp_path, range(32)), flags)
    assert [entry.side.library for entry in entries] == ["torch", "feedline"] * 4
    assert [(entry.case["data"], entry.case["workers"]) for entry in entries[::2]] == [
        ("tiny", 0),
        ("tiny", 2),
        ("38 MB", 2),
        ("JPEG", 2),
    ]


def test_different_batches_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Side, "open", lambda side, *_, **__: [torch.full((2,), float(side.library == "torch"))])
    with pytest.raises(InternalError, match="'tiny' feedline's first batch differs"):
        bench.check_equal_batches("tiny", [0], 1)


@pytest.mark.slow
def test_what_is_written_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json", "--rounds", "1", "--seconds", "0.05"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text.splitlines()[0])["kind"] == "machine"
    plot = importlib.import_module("benchmarks.plot")
    bars = plot.bars(text.splitlines(), "samples_per_s")
    assert len(bars) == 8
    assert {bar.side for bar in bars} == {"torch", "feedline/inline", "feedline/auto"}
    assert all(bar.median > 0 for bar in bars)
