"""`feedline report`: what it writes, and what it refuses."""

import json
from pathlib import Path

import pytest

from feedline.insight.recording import Recording
from feedline.tools.cli.main import main
from tests.tools.advise.recordings import recording_of


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("feedline.tools.advise.what_if.GRID_BATCHES", 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["run.1.json.gz", "[red]data:train.json"])
def test_the_page_is_written_next_to_the_recording(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recording_of(60)
    recording.save(name)
    for _ in range(2):  # its own page is replaced
        assert main(["report", name]) == 0
    out = capsys.readouterr().out
    page = Path(name.removesuffix(".gz").removesuffix(".json") + ".html")
    assert recording.stats().verdict in out.replace("\n", " ")
    assert str(page) in out
    assert "<title>feedline report" in page.read_text("utf-8")


def test_page_and_trace_are_written_to_the_given_paths(folder: Path) -> None:
    recording_of(20).save("run.json")
    assert main(["report", "run.json", "-o", "other.html", "--trace", "trace.json"]) == 0
    assert Path("other.html").stat().st_size > 30_000
    assert not Path("run.html").exists()
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert sum(event["name"].startswith("batch ") and event["ph"] == "X" for event in events) == 20


@pytest.mark.parametrize("content", ["{}", "no JSON"])
def test_files_that_are_not_recordings_are_refused(content: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.json").write_text(content)
    assert main(["report", "run.json"]) == 1
    assert "run.json" in capsys.readouterr().err
    assert not Path("run.html").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["-o", "run.json"], "run.json"),
        (["--trace", "run.json"], "run.json"),
        (["-o", "out", "--trace", "out"], "out"),
        (["-o", "run.json/page.html"], "run.json"),
        ([], "run.html"),
    ],
)
def test_no_other_file_is_overwritten(options: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    recording_of(20).save("run.json")
    Path("run.html").write_text("my notes on the run")
    assert main(["report", "run.json", *options]) == 1
    assert named in capsys.readouterr().err
    Recording.load("run.json")
    assert Path("run.html").read_text() == "my notes on the run"
