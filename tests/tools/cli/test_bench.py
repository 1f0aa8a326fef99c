from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from feedline.errors import InternalError
from feedline.tools.cli import bench
from feedline.tools.cli.main import main
from feedline.tools.measure.harness import Side
from tests.tools.cli.sweeping import OWN, run_quietly


def test_different_batches_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Side, "open", lambda side, *_, **__: [torch.full((2,), float(side.library == "torch"))])
    with pytest.raises(InternalError, match="'tiny', feedline's first batch differs"):
        bench.check_equal_batches("tiny", [0], 1)


@pytest.mark.slow
def test_the_quick_set_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json", "--rounds", "1", "--seconds", "0.05"]) == 0
    first, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["kind"] == "machine"
    found = [row for row in rows if row["kind"] == "summary"]
    cases = [("tiny", 0), ("tiny", 2), ("38 MB", 2), ("JPEG", 2)]
    assert [(row["case"]["data"], row["case"]["workers"]) for row in found[::2]] == cases
    assert [row["side"] for row in found] == ["torch", "feedline/inline", *["torch", "feedline/auto"] * 3]
    assert all(row["figures"]["samples_per_s"]["median"] > 0 for row in found)


# -- the user's own dataset --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_user_dataset_is_measured_beside_torch(tmp_path: Path) -> None:
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "bench.svg"
    done = run_quietly(
        "bench", f"{OWN}:Sleeping", "--batch-size", 5, "--workers", 0, 2, "--rounds", 1, "--seconds", 100,
        "--json", rows, "--plot", picture,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for head in ("samples/s", "x torch", "per 1,000", "peak PSS"):
        assert head in done.stdout
    found = [row for row in map(json.loads, rows.read_text().splitlines()) if row["kind"] == "summary"]
    engines = ("torch", "feedline/process", "feedline/thread")
    assert {(row["case"]["workers"], row["side"]) for row in found if row["case"]["prefetch"] in ("-", 2)} == {
        (0, "torch"),
        (0, "feedline/inline"),
        *((2, engine) for engine in engines),
    }
    assert {row["case"]["prefetch"] for row in found} == {"-", 2, 4, 8}, "more prefetching with the best setting"
    assert all(row["figures"]["samples_per_s"]["median"] > 0 for row in found)
    assert all(row["peak_pss_mb"] > 0 for row in found)
    texts = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"torch", *engines, "workers", "Throughput, samples/s", "Memory of all processes, MB"} <= set(texts)
