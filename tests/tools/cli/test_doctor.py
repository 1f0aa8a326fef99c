from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedline import Loader
from feedline.tools.advise.finding import Finding
from feedline.tools.cli.doctor import show
from feedline.tools.cli.main import main
from feedline.tools.screen import Screen
from tests import program_server
from tests.tools.advise.recordings import recording_of


def test_each_finding_is_a_line_of_the_table_and_its_fix_follows() -> None:
    code = "DataLoader(dataset, batch_sampler=feedline.samplers.LengthBucketBatchSampler(lengths, 32), num_workers=8)"
    padding = Finding(
        "padding", "47% of a batch is padding.", "Make batches of samples of similar length.",
        f"lengths = [1, 2]\n{code}", 1.9, evidence="Samples have from 8 to 2,000 elements",
    )  # fmt: skip
    out = io.StringIO()
    show("This machine", [padding, Finding("torch", "2.13")], Screen(file=out, is_terminal=False))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[3:6] == ["padding   47% of a batch is padding.   1.9x", "torch     2.13", ""]
    assert lines[6:] == [
        "padding: Make batches of samples of similar length.",
        "    lengths = [1, 2]",
        f"    {code}",
        "  Samples have from 8 to 2,000 elements.",
    ], "the code is not wrapped, although it is wider than the terminal"


def test_findings_about_the_machine_need_no_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("PIL", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "process engine" in out
    assert main(["doctor", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["machine"]["torch"] is None
    assert set(output["findings"][0]) == {
        "name", "problem", "fix", "code", "gain", "is_serious", "evidence", "severity",
    }  # fmt: skip


def save_state(folder: Path) -> Path:
    loader = Loader({7: "seven"}, 1, sampler=[7, 8], on_error="skip")
    assert list(loader) == [["seven"]]
    path = folder / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    return path


def test_findings_about_a_saved_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(save_state(tmp_path))
    assert main(["doctor", path]) == 0
    out = capsys.readouterr().out
    assert "Faults in state.json" in out
    assert "sample 8: KeyError: 8" in out
    assert main(["doctor", "--json", path]) == 0
    output = json.loads(capsys.readouterr().out)
    faults = output["faults"]
    assert (faults["total"], faults["lost"], faults["actions"]["skip"]) == (1, [8], 1)
    assert faults["errors"] == [{"error": "KeyError", "action": "skip", "count": 1}]
    first = output["findings"][0]
    assert (first["name"], first["problem"], first["severity"]) == ("state", "at the end of epoch 0", "fine")


def test_findings_about_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recording_of(200, workers=2)
    recording.settings["cores"] = 8
    recording.save(tmp_path / "run.json.gz")
    assert main(["doctor", str(tmp_path / "run.json.gz")]) == 0
    assert "too-few-workers" in capsys.readouterr().out
    assert main(["doctor", "--json", str(tmp_path / "run.json.gz")]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in output["findings"]] == ["too-few-workers"]
    assert output["run"]["verdict"] == recording.stats().verdict
    recording.counters["restarted_workers"] = 2
    recording.save(tmp_path / "run.json")
    assert main(["doctor", str(tmp_path / "run.json")]) == 3


# -- datasets ----------------------------------------------------------------------------------------------------------

DATASETS = Path(__file__).parents[1] / "measure" / "broken.py"
PROGRAM = "import sys; from feedline.tools.cli.main import main; sys.exit(main())"


def run_doctor(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return program_server.run(PROGRAM, "doctor", *arguments, cwd=cwd)


def test_findings_about_a_dataset() -> None:
    done = run_doctor(f"{DATASETS}:Serious")
    assert done.returncode == 3, "something serious was found"
    assert done.stderr == ""
    assert "Serious: 100 samples" in done.stdout
    assert "copied-random" in done.stdout
    assert "feedline.rng()" in done.stdout


def test_a_warning_of_the_dataset_is_shown_once(tmp_path: Path) -> None:
    """Samples are made again and again, in several processes."""
    (tmp_path / "mine.py").write_text(
        "import warnings\nfrom feedline import DataLoader\nclass Warns:\n    def __len__(self): return 9\n"
        "    def __getitem__(self, index):\n        with warnings.catch_warnings():\n"
        "            warnings.simplefilter('ignore', ResourceWarning)\n"
        "        if index == 3:\n            warnings.warn('sample 3 is damaged')\n        return index\n"
        "def loader(): return DataLoader(Warns(), batch_size=3, num_workers=2)\n"
    )
    done = run_doctor("mine:loader", cwd=tmp_path)
    assert done.stderr.count("UserWarning: sample 3 is damaged") == 1, done.stderr


def test_ctrl_c_leaves_no_process_running(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, threading\nclass Slow:\n    def __len__(self): return 9\n    def __getitem__(self, index):\n"
        "        open('running', 'w').write(str(os.getpid()))\n        threading.Event().wait()\n"
    )
    os.mkfifo(tmp_path / "running")
    with open(os.devnull, "r+b") as nothing:
        null = nothing.fileno()
        program = program_server.start(
            PROGRAM, ["doctor", "mine:Slow", "--json"], stdin=null, stdout=null, stderr=null, cwd=tmp_path
        )
    pid = (tmp_path / "running").read_text()  # blocks until the dataset runs
    os.kill(program.pid, signal.SIGINT)
    assert program.wait(60) == 130
    assert not Path(f"/proc/{pid}").exists()
