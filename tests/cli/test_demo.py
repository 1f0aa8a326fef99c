"""The demo trains, and compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset

from feedline.cli.demo import count_batches, train
from feedline.cli.main import main
from feedline.cli.pictures import picture_folder, write_pictures


@pytest.mark.slow
def test_network_learns(tmp_path: Path) -> None:
    write_pictures(tmp_path, 160)
    pictures: Any = picture_folder(tmp_path)
    trained, held_out = Subset(pictures, range(128)), Subset(pictures, range(128, 160))
    reports: list[None] = []
    epochs = list(train(trained, held_out, epochs=5, worker_count=2, report=lambda: reports.append(None)))
    assert [epoch.number for epoch in epochs] == [1, 2, 3, 4, 5]
    assert len(reports) == 5 * count_batches(trained)
    assert epochs[-1].loss < epochs[0].loss / 2
    assert max(epoch.accuracy for epoch in epochs) > 0.5  # chance is 0.25


@pytest.mark.slow
def test_demo_from_pictures_to_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    flags = ["--images", "80", "--epochs", "2", "--folder", str(tmp_path), "--rounds", "1", "--seconds", "0.05"]
    assert main(["demo", *flags]) == 0
    out = capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 80
    for part in ("80 JPEG pictures", "epoch  1", "epoch  2", "tiny", "JPEG", "x torch"):
        assert part in out
