from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from feedline.tools.cli.tune import recommend
from feedline.tools.measure.choice import Setting
from feedline.tools.measure.harness import Outcome, Side
from feedline.tools.measure.sweep import Swept
from tests.tools.cli.sweeping import OWN, run_quietly


def is_gone(pid: str) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" in status.read_text()
    except OSError:
        return True


@pytest.mark.slow
def test_the_recommendation_for_a_training_step_is_written_as_json_and_drawn(tmp_path: Path) -> None:
    options = ("--batch-size", 2, "--step-ms", 5, "--seconds", 100, "--json", "--plot", tmp_path / "tune.svg")
    done = run_quietly("tune", f"{OWN}:Ready", *options)
    assert (done.returncode, done.stderr) == (0, "")
    output = json.loads(done.stdout)
    assert set(output) == {"setting", "code", "reasons", "missing", "batch_size", "batch_bytes", "tried"}
    assert output["code"].startswith("DataLoader(dataset, batch_size=2, shuffle=True, num_workers=")
    assert {one["workers"] for one in output["tried"]} >= {0, 1}
    assert output["batch_bytes"] == 2 * 16 * 4
    texts = [text.text for text in ElementTree.parse(tmp_path / "tune.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"Throughput, samples/s", "feedline/process"} <= set(texts)


@pytest.mark.slow
def test_a_dataset_that_hangs_in_workers_leaves_nothing_running() -> None:
    done = run_quietly("tune", f"{OWN}:HangingInWorkers", "--seconds", 4, "--json")
    assert done.returncode == 6
    output = json.loads(done.stdout)
    assert (output["setting"], output["code"], output["missing"][0]) == (None, None, "1 worker (process)")
    assert [one["workers"] for one in output["tried"]] == [0]
    assert "did not finish within" in done.stderr
    pids = re.findall(r"worker (\d+)", done.stderr)
    assert pids
    assert all(map(is_gone, pids))


def test_nothing_is_recommended_if_the_time_was_too_short() -> None:
    done = Outcome({}, Side("feedline", "inline"), [{"samples_per_s": 9.0, "stall": 1.0}])
    swept = Swept({Setting("inline", 0): done, Setting("process", 1): Outcome({}, Side("feedline", "process"))})
    choice = recommend(swept, 0.0)
    assert choice.setting is None
    assert "1 worker (process)" in choice.reasons[0]
    assert "time was up" in choice.reasons[0]
    del swept.outcomes[Setting("process", 1)]
    assert recommend(swept, 0.0).setting == Setting("inline", 0)
