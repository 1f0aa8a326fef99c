from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from feedline.tools.cli import tune_runs
from feedline.tools.cli.main import main
from feedline.tools.measure.search import INLINE, Limits, Rate
from tests import program_server
from tests.tries import try_again

pytestmark = pytest.mark.sample(4)

OWN = Path(__file__).parent / "own_datasets.py"
BROKEN = Path(__file__).parents[1] / "measure" / "broken.py"
PROGRAM = "import sys; from feedline.tools.cli.main import main; sys.exit(main())"


Capture = pytest.CaptureFixture[str]


def run_tune(*arguments: object) -> subprocess.CompletedProcess[str]:
    return program_server.run(PROGRAM, "tune", *arguments)


def is_gone(pid: str) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" in status.read_text()
    except OSError:
        return True


def test_the_best_setting_for_a_dataset_is_printed(tmp_path: Path) -> None:
    done = run_tune(f"{OWN}:Ready", "--batch-size", 5, "--seconds", 5, "--plot", tmp_path / "tune.svg")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"loader = DataLoader\(dataset, batch_size=5, shuffle=True, num_workers=(\d+)", done.stdout)
    assert "from feedline import DataLoader\n" in done.stdout
    texts = [text.text for text in ElementTree.parse(tmp_path / "tune.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"Throughput", "feedline/process"} <= set(texts)


@pytest.mark.real_time
def test_workers_are_suggested_for_a_dataset_that_waits() -> None:
    def check() -> None:
        done = run_tune(f"{OWN}:Sleeping", "--batch-size", 5, "--seconds", 5)
        found = re.search(r"num_workers=(\d+)", done.stdout)
        assert found is not None
        assert int(found[1]) >= 2
        assert "Fewer are not enough" in done.stdout

    try_again(check)


@pytest.mark.real_time
def test_no_workers_are_suggested_for_a_slow_training_step() -> None:
    def check() -> None:
        done = run_tune(f"{OWN}:Ready", "--batch-size", 2, "--step-ms", 200, "--seconds", 10, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        output = json.loads(done.stdout)
        assert output["setting"]["workers"] == 0
        assert output["code"].endswith("loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=0)")
        assert len(output["tried"]) == 1
        assert output["batch_bytes"] == 2 * 16 * 4

    try_again(check)


@pytest.mark.slow
def test_the_best_setting_for_a_loader_keeps_its_other_arguments() -> None:
    done = run_tune(f"{OWN}:loader", "--seconds", 4, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    output = json.loads(done.stdout)
    assert "DataLoader(dataset, batch_size=5, num_workers=" in output["code"]
    assert output["code"].endswith("# and the other arguments of your loader, unchanged")


@pytest.mark.slow
def test_a_dataset_that_hangs_in_workers_leaves_nothing_running() -> None:
    done = run_tune(f"{OWN}:HangingInWorkers", "--seconds", 4, "--json")
    assert done.returncode == 6
    output = json.loads(done.stdout)
    assert (output["setting"], output["code"], output["missing"]) == (None, None, "1 worker (process)")
    assert [one["workers"] for one in output["tried"]] == [0]
    assert re.search(r"did not finish within \d+ s, .*while it was measured \(1 worker \(process\)\)", done.stderr)
    pids = re.findall(r"worker (\d+)", done.stderr)
    assert pids
    assert all(map(is_gone, pids))


def test_nothing_is_recommended_if_the_time_was_too_short(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A test that does not need to be slow: what the measuring process has sent when its time is up."""
    kept = tune_runs.Kept(Limits(4, 100, ""), 1280, "dataset", batch_size=5, tried={INLINE: Rate(6.0, other_cores=1.0)})
    monkeypatch.setattr(tune_runs, "measure_dataset", lambda *_, **__: kept)
    assert main(["tune", "a:b"]) == 6
    out = capsys.readouterr().out
    assert "No recommendation: the time was up before 1 worker (process)" in out
    assert not re.search("DataLoader|Fastest|chosen", out)


def test_errors_in_workers_are_reported_and_the_setting_is_skipped() -> None:
    done = run_tune(f"{OWN}:RaisingInWorkers", "--seconds", 4, "--json")
    assert done.returncode == 0
    assert all(one["engine"] != "process" for one in json.loads(done.stdout)["tried"])
    assert "Skipped 1 worker (process): OSError: the file is locked" in done.stderr


@pytest.mark.parametrize(
    ("name", "status", "text", "traceback"),
    [
        ("Raising", 5, "KeyError: 'no sample", "in look_up"),
        ("Hanging", 6, "did not finish", "in wait_for_ever"),
        ("Exiting", 7, "ended its process with status 9", ""),
        ("Empty", 8, "is empty", ""),
        ("number", 1, "is not a dataset", ""),
    ],
)
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_datasets_that_cannot_be_measured_are_explained(
    command: str, name: str, status: int, text: str, traceback: str
) -> None:
    # Only the dataset that hangs is waited for; the others end by themselves.
    done = program_server.run(PROGRAM, command, f"{BROKEN}:{name}", "--seconds", 0.5 if name == "Hanging" else 60)
    assert done.returncode == status
    assert done.stdout == ""
    *before, last = done.stderr.splitlines()
    assert last.startswith("feedline: ")
    assert text in last
    assert traceback in "\n".join(before)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["tune", "a:b", "--step-ms", "-1"], "-1 is not more than 0"),
        (["tune", "a:b", "--step-ms", "nan"], "nan is not more than 0"),
        (["tune", "a:b", "--plot", "a.gif"], ".svg or .png"),
        (["tune", "a:b", "--plot", f"{__file__}/a.svg"], "cannot be written"),
        (["bench", "a:b", "--workers", "-1"], "-1 is less than 0"),
        (["bench", "a:b", "--engine", "magic"], "invalid choice"),
    ],
)
def test_wrong_options_are_explained(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err
