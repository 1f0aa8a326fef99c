"""`feedline report`: what it writes, and how it rejects files that are not recordings."""

import json
from pathlib import Path

import pytest

from feedline.insight.recording import Recording
from feedline.tools.cli.main import main
from tests.tools.advise.recordings import recording_of


@pytest.fixture(autouse=True)
def short_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.tools.advise.what_if.GRID_BATCHES", 20)


def test_the_page_is_written_next_to_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recording_of(60)
    recording.save(tmp_path / "run.json.gz")
    assert main(["report", str(tmp_path / "run.json.gz")]) == 0
    assert recording.stats().verdict in capsys.readouterr().out
    assert "<title>feedline report" in (tmp_path / "run.html").read_text("utf-8")


def test_numbered_recordings_get_separate_pages(tmp_path: Path) -> None:
    for number in (1, 2):
        recording_of(20).save(tmp_path / f"run.{number}.json")
        assert main(["report", str(tmp_path / f"run.{number}.json")]) == 0
    assert sorted(page.name for page in tmp_path.glob("*.html")) == ["run.1.html", "run.2.html"]


def test_the_page_is_written_to_the_given_path(tmp_path: Path) -> None:
    recording_of(60).save(tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json"), "-o", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").stat().st_size > 30_000


@pytest.mark.parametrize("content", ["", "{}", "no JSON", '{"format": "feedline recording"'])
def test_rejects_files_that_are_not_recordings(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text(content)
    assert main(["report", str(tmp_path / "run.json")]) == 1
    assert "run.json" in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"cores":16', '"cores":1e999'),
        ('"cores":16', f'"cores":{"9" * 5000}'),
        ('"epochs":[', f'"epochs":[{"[" * 9999}'),
    ],
)
def test_a_damaged_recording_is_reported_in_one_sentence(
    tmp_path: Path, before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recording_of(20).save(tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    assert before in text
    (tmp_path / "run.json").write_text(text.replace(before, after, 1))
    assert main(["report", str(tmp_path / "run.json")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("feedline: ")
    assert "run.json is" in message
    assert not (tmp_path / "run.html").exists()


def test_a_missing_recording_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "run.json")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording_of(20).save(tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json"), "-o", str(tmp_path / "run.json" / "page.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_trace_is_written_as_well(tmp_path: Path) -> None:
    recording_of(20).save(tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json"), "--trace", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["name"].startswith("batch ") and event["ph"] == "X" for event in events) == 20
    assert (tmp_path / "run.html").exists()


def test_page_and_trace_cannot_be_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording_of(20).save(tmp_path / "run.json")
    out = str(tmp_path / "out")
    assert main(["report", str(tmp_path / "run.json"), "-o", out, "--trace", out]) == 1
    assert "cannot be both" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_the_recording_is_not_overwritten(tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    recording_of(20).save(tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json"), option, str(tmp_path / "run.json")]) == 1
    assert "is the recording itself" in capsys.readouterr().err
    Recording.load(tmp_path / "run.json")


def test_only_its_own_page_is_replaced_without_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording_of(20).save(tmp_path / "run.json")
    for _ in range(2):
        assert main(["report", str(tmp_path / "run.json")]) == 0
    (tmp_path / "run.html").write_text("my notes on the run")
    assert main(["report", str(tmp_path / "run.json")]) == 1
    assert "run.html" in capsys.readouterr().err
    assert (tmp_path / "run.html").read_text() == "my notes on the run"
