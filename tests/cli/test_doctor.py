from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from feedline import Loader
from feedline.cli.doctor import show
from feedline.cli.main import main
from feedline.tune.finding import Finding
from tests import program_server
from tests.report.recordings import recording_of


def draw(*findings: Finding, lines: tuple[str, ...] = ()) -> str:
    out = io.StringIO()
    show("This machine", findings, Console(file=out, width=80), after=lines)
    return out.getvalue()


def test_the_table_fits_a_narrow_terminal_and_cuts_nothing() -> None:
    text = draw(Finding("cores", "found " * 30, "change " * 30), Finding("torch", "2.13"))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("found") == 31
    assert text.count("change") == 31


def test_nothing_to_change_is_said() -> None:
    assert "nothing" in draw(Finding("torch", "2.13"))


def test_what_was_found_is_not_taken_for_markup() -> None:
    text = draw(Finding("[red]x[/red]", "[bold]y"), lines=("[/z] w",))
    assert "[red]x[/red]" in text
    assert "[bold]y" in text
    assert "[/z] w" in text


def test_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for subject in ("cores", "memory", "open files", "process engine", "torch"):
        assert subject in out


def test_the_machine_for_programs_needs_no_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("rich", "PIL", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["torch"] is None
    assert set(told["findings"][0]) == {"name", "evidence", "fix", "code", "gain", "is_serious", "severity"}


def test_a_table_without_the_package_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["doctor"]) == 1
    told = capsys.readouterr().err
    assert "pip install 'feedline[demo]'" in told
    assert "--json" in told


def saved(folder: Path) -> Path:
    loader = Loader({7: "seven"}, 1, sampler=[7, 8], on_error="skip")
    assert list(loader) == [["seven"]]
    path = folder / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    return path


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(saved(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "Faults in state.json" in out
    assert "KeyError" in out
    assert "sample 8: KeyError: 8" in out
    assert "cores" not in out


def test_a_file_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", str(saved(tmp_path))]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["faults"]["lost"] == [8]
    assert told["findings"][0]["name"] == "state"
    assert told["findings"][0]["evidence"] == "at the end of epoch 0"
    assert told["findings"][0]["severity"] == "fine"


def test_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recording_of(200, workers=2)
    recording.settings["cores"] = 8
    for name in ("run.json", "run.json.gz"):
        recording.save(tmp_path / name)
        assert main(["doctor", str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        assert out.startswith("data-bound: training waited")
        assert "too-few-workers" in out
        assert main(["doctor", "--json", str(tmp_path / name)]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [finding["name"] for finding in told["findings"]] == ["too-few-workers"]
        assert told["run"]["verdict"] == recording.stats().verdict
    recording.counters["restarted_workers"] = 2
    recording.save(tmp_path / "run.json")
    assert main(["doctor", str(tmp_path / "run.json")]) == 3


def test_a_recording_that_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run.json", "run.json.gz"):
        recording_of(20).save(tmp_path / name)
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        assert main(["doctor", str(tmp_path / name)]) == 1
        assert "was cut off" in capsys.readouterr().err


def test_a_file_that_is_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04rest")
    assert main(["doctor", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"feedline: {path} is a pickle")


# -- datasets ----------------------------------------------------------------------------------------------------------

DATASETS = Path(__file__).parents[1] / "tune" / "broken.py"
PROGRAM = "import sys; from feedline.cli.main import main; sys.exit(main())"


def examined(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return program_server.run(PROGRAM, "doctor", *arguments, cwd=cwd)


def test_a_dataset() -> None:
    done = examined(f"{DATASETS}:Plain", "--seconds", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Plain: 100 samples" in done.stdout
    assert "Nothing that ought to be changed was found" in done.stdout


def test_something_serious() -> None:
    done = examined(f"{DATASETS}:Serious", "--seconds", 2)
    assert done.returncode == 3
    assert "copied-random" in done.stdout
    assert "feedline.rng()" in done.stdout


def test_a_dataset_for_programs() -> None:
    done = examined(f"{DATASETS}:Talking", "--json", "--seconds", 2)
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["measured"]["samples"] == 100
    assert told["findings"] == []
    assert "hello" in done.stderr, "what the dataset prints is no part of the result"


@pytest.mark.parametrize(
    ("name", "status", "text", "traceback"),
    [
        ("Raising", 5, "None of the 16 samples", "in look_up"),
        ("Hanging", 6, "did not come to an end", "in wait_for_ever"),
        ("Exiting", 7, "ended its process with status 9", ""),
        ("Empty", 8, "is empty", ""),
        ("number", 1, "is no dataset", ""),
        ("missing", 1, "has no 'missing'", ""),
    ],
)
def test_datasets_that_cannot_be_tried(name: str, status: int, text: str, traceback: str) -> None:
    done = examined(f"{DATASETS}:{name}", "--seconds", 0.5)
    assert done.returncode == status
    assert done.stdout == ""
    *before, last = done.stderr.splitlines()
    assert last.startswith("feedline: ")
    assert text in last
    assert traceback in "\n".join(before)
    assert "tune/probing" not in done.stderr, "frames of feedline's own help nobody"


@pytest.mark.parametrize("what", [str(DATASETS), "not_there", "not_there.csv"])
def test_what_is_neither_a_dataset_nor_a_file_of_faults(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", what]) == 1
    assert "is no file of faults and no recording. Name a dataset as" in capsys.readouterr().err


def test_a_module_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import json\n\ndef load():\n    return json.loads('{')\n\ndata = load()\n")
    for source in ("mine:data", f"{tmp_path / 'mine.py'}:data"):
        done = examined(source, cwd=tmp_path)
        assert done.returncode == 4
        assert "in load" in done.stderr
        assert "JSONDecodeError" in done.stderr
    done = examined("not_there:data", cwd=tmp_path)
    assert done.returncode == 1
    assert "no module 'not_there'" in done.stderr


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, time\nclass Slow:\n    def __len__(self): return 9\n    def __getitem__(self, index):\n"
        "        open('running', 'w').write(str(os.getpid()))\n        time.sleep(100)\n"
    )
    os.mkfifo(tmp_path / "running")
    with open(os.devnull, "r+b") as nothing:
        null = nothing.fileno()
        program = program_server.start(
            PROGRAM, ["doctor", "mine:Slow", "--json"], stdin=null, stdout=null, stderr=null, cwd=tmp_path
        )
    pid = (tmp_path / "running").read_text()  # waits for it
    os.kill(program.pid, signal.SIGINT)
    assert program.wait(30) == 130
    assert not Path(f"/proc/{pid}").exists()
