from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from feedline import Loader
from feedline.tools.cli.main import main
from tests import program_server
from tests.tools.advise.recordings import recording_of


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


def test_findings_about_a_saved_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = Loader({7: "seven"}, 1, sampler=[7, 8], on_error="skip")
    assert list(loader) == [["seven"]]
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    assert main(["doctor", str(path)]) == 0
    assert "sample 8: KeyError: 8" in capsys.readouterr().out
    assert main(["doctor", "--json", str(path)]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["faults"]["total"], output["faults"]["lost"]) == (1, [8])
    assert output["findings"][0]["name"] == "state"


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


def test_findings_about_a_dataset() -> None:
    done = program_server.run(PROGRAM, "doctor", f"{DATASETS}:Serious")
    assert done.returncode == 3, "something serious was found"
    assert done.stderr == ""
    assert "copied-random" in done.stdout
    assert "feedline.rng()" in done.stdout


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
