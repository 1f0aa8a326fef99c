"""`feedline what-if`: its tables, its JSON, and its messages about input it cannot use."""

import json
import re
from pathlib import Path

import pytest

from feedline.tools.cli.main import main
from tests.tools.advise.recordings import recording_of


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.json"
    recording_of(120).save(path)
    return str(path)


def test_recorded_and_predicted_values_are_shown_side_by_side(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", file, "--workers", "8", "--fetch", "0.5x", "--step", "2x", "--unordered"]) == 0
    lines = dict(
        re.split(r"  +", line.strip(), maxsplit=1) for line in capsys.readouterr().out.splitlines() if line[:1].strip()
    )
    assert re.split(r" +", lines["workers"]) == ["4", "8"]
    assert re.split(r" +", lines["in order"]) == ["yes", "no"]
    assert re.fullmatch(r"1[12][.\d]* ms +2[34][.\d]* ms", lines["training step"])


def test_changing_only_the_order_is_predicted(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", file, "--ordered"]) == 0
    assert "predicted" in capsys.readouterr().out


@pytest.mark.slow
def test_without_options_a_grid_of_settings_and_the_best_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = recording_of(120)
    recording.settings |= {"cores": 4, "local_ranks": 1}
    recording.save(tmp_path / "run.json")
    assert main(["what-if", str(tmp_path / "run.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("recorded: ")
    assert out.count("<- best") == 1
    assert out.count("share 4 cores") == 1


@pytest.mark.slow
def test_json_output(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", file, "--workers", "0", "--step", "50ms", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["workers"] == 0
    assert output["predicted"]["body"]["mean"] == pytest.approx(0.05, rel=0.1)
    assert main(["what-if", file, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["best"] in output["grid"]


def test_named_stages_of_the_dataset_can_be_scaled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recording_of(120)
    recording.stages = {"decode": [[number, 20_000_000] for number in range(120)], "a b": [[0, 1], [100, 5]]}
    recording.save(tmp_path / "run.json")
    rates = []
    for more in ([], ["--decode", "0.5x"], ["--stage", "decode=0.5x", "--stage", "a b=2"]):
        assert main(["what-if", str(tmp_path / "run.json"), "--workers", "2", "--json", *more]) == 0
        rates.append(json.loads(capsys.readouterr().out)["predicted"]["samples_per_s"])
    assert rates[1] > 1.1 * rates[0]
    assert rates[2] == pytest.approx(rates[1], rel=0.01)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a recording"),
        ('{"format":"feedline recording","version":1,"bytes":9,"crc32":5}\n{"rows', "cut off"),
        ('{"format":"feedline recording","version":99}', "version 99"),
        (None, "cannot be read"),
    ],
)
def test_rejects_files_that_are_not_recordings(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert main(["what-if", str(tmp_path / "run.json")]) == 1
    assert message in capsys.readouterr().err


def test_rejects_stages_that_were_not_recorded(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", file, "--decode", "0.5x"]) == 1
    assert "only of fetch, transform, collate, write" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--workers", "-1"],
        ["--prefetch", "0"],
        ["--fetch", "0x"],
        ["--fetch", "-1"],
        ["--fetch", "fast"],
        ["--step", "0"],
        ["--step", "0ms"],
        ["--stage", "decode"],
        ["--computing", "2"],
        ["--ordered", "--unordered"],
    ],
)
def test_rejects_impossible_options(file: str, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["what-if", file, *wrong])
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err
